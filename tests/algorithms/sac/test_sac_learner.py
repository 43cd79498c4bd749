"""SAC's update: which loss moves what, and what every setting does to it."""

from __future__ import annotations

import functools

import gymnasium as gym
import jax
import numpy as np
import pytest
from flax import nnx

from jaxrl_stack.algorithms.sac import SACConfig, SACLearner
from jaxrl_stack.core.learner.traced_metrics import nest_metrics
from jaxrl_stack.core.rl_module.apis import QNetAPI, TargetNetworkAPI
from jaxrl_stack.core.rl_module.rl_module import RLModule, RLModuleSpec
from jaxrl_stack.utils import counters

OBS = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
BOX = gym.spaces.Box(-2.0, 2.0, (2,), np.float32)
DISCRETE = gym.spaces.Discrete(4)
MODULE = "default_policy"
NUM_ROWS = 8
PARTS = {"policy": ("pi",), "critics": ("qf",), "temperature": ("log_alpha",)}


def make_learner(action_space=BOX, learner_class=SACLearner, **training) -> SACLearner:
    config = (
        SACConfig()
        .environment(observation_space=OBS, action_space=action_space)
        .training(**training)
        .learners(learner_class=learner_class)
        .rl_module(model_config={"fcnet_hiddens": [4], "fusionnet_hiddens": None})
        .debugging(seed=1)
    )
    return config.build_learner()


class Updates:
    """A learner and its compiled update, on a batch of its own."""

    def __init__(self, **kwargs):
        self.learner = make_learner(**kwargs)
        self.start = jax.device_get(self.learner.state)
        self.update = jax.jit(functools.partial(self.learner.pure_update.step, axis_name=None))
        is_discrete = self.learner.module[MODULE].action_space is DISCRETE
        rng = np.random.default_rng(0)
        self.batch = {
            "obs": rng.normal(size=(NUM_ROWS, 3)).astype(np.float32),
            "new_obs": rng.normal(size=(NUM_ROWS, 3)).astype(np.float32),
            "actions": rng.integers(4, size=NUM_ROWS).astype(np.int32)
            if is_discrete
            else rng.uniform(-1, 1, (NUM_ROWS, 2)).astype(np.float32),
            "rewards": rng.normal(size=NUM_ROWS).astype(np.float32),
            "terminateds": np.zeros(NUM_ROWS, bool),
            "truncateds": np.zeros(NUM_ROWS, bool),
            "n_step": np.ones(NUM_ROWS, np.float32),
            "weights": np.ones(NUM_ROWS, np.float32),
        }

    def __call__(self, settings_of=None, steps=100, state=None, **columns):
        settings = (settings_of or self.learner).settings()
        batch = {MODULE: {**self.batch, **columns}}
        state, metrics, rows = self.update(state or self.start, batch, settings, counters.from_int(steps))
        return state, nest_metrics(jax.device_get(metrics))[MODULE], rows[(MODULE, "td_error")]

    def moved(self, state) -> set[str]:
        """Which parts an update moved; the targets' among them."""
        refs = {ref for ref in state.params if not np.array_equal(state.params[ref], self.start.params[ref])}
        parts = {name for name, starts in PARTS.items() if any(r.split("/")[1].startswith(starts) for r in refs)}
        targets = [ref for ref in state.rest if "/target_" in ref]
        # tau * x + (1 - tau) * x is x but for its last digit.
        moved_targets = any(not np.allclose(state.rest[ref], self.start.rest[ref], rtol=1e-6) for ref in targets)
        return parts | ({"targets"} if moved_targets else set())


@pytest.fixture(scope="module")
def box():
    return Updates()


@pytest.fixture(scope="module")
def one_critic():
    return Updates(twin_q=False)


@pytest.mark.parametrize(
    ("still", "settings"),
    [("policy", {"actor_lr": 0.0}), ("critics", {"critic_lr": 0.0}), ("temperature", {"alpha_lr": 0.0})],
)
def test_every_optimizer_moves_its_own_part(box, still, settings):
    state, metrics, _ = box(settings_of=make_learner(target_entropy="auto", **settings))
    expected = {*PARTS, "targets"} - {still}
    # What does not move has nothing to follow it.
    assert box.moved(state) == expected - ({"targets"} if still == "critics" else set())
    for name in ("policy", "qf", "qf_twin", "alpha"):
        assert f"{name}_learning_rate" in metrics
    assert box.update._cache_size() == 1


def test_schedules_are_read_at_the_sampled_steps(box):
    schedules = make_learner(
        actor_lr=[[0, 1e-3], [1000, 2e-3]], critic_lr=[[0, 2e-3], [1000, 0.0]], alpha_lr=[[0, 1.0], [1000, 0.0]]
    )
    # Schedules stand where the update before ended.
    state, _, _ = box(settings_of=schedules, steps=500)
    _, metrics, _ = box(settings_of=schedules, steps=600, state=jax.device_get(state))
    rates = [float(metrics[f"{name}_learning_rate"]) for name in ("policy", "qf", "qf_twin", "alpha")]
    np.testing.assert_allclose(rates, [1.5e-3, 1e-3, 1e-3, 0.5], rtol=1e-5)
    assert box.update._cache_size() == 1


def test_the_temperature_follows_the_entropy():
    """It rises while the policy's entropy is below its target, and falls above it."""
    at = Updates(target_entropy=0.0)
    entropy = -float(at()[1]["logps"])
    for target, direction in ((entropy + 1.0, 1), (entropy - 1.0, -1)):
        state, metrics, _ = at(settings_of=make_learner(target_entropy=target))
        log_alpha = float(state.params[f"{MODULE}/log_alpha"])
        # Adam's first step has the size of the learning rate.
        np.testing.assert_allclose(log_alpha, direction * 3e-4, rtol=1e-3)
        assert float(metrics["target_entropy"]) == pytest.approx(target)
        assert float(metrics["alpha_value"]) == 1.0


def test_importance_weights_touch_the_critics_only(box):
    _, plain, errors = box()
    state, weighted, weighted_errors = box(weights=np.zeros(NUM_ROWS, np.float32))
    assert (float(weighted["qf_loss"]), float(weighted["qf_twin_loss"])) == (0.0, 0.0)
    for name in ("policy_loss", "alpha_loss"):
        assert float(weighted[name]) == pytest.approx(float(plain[name]))
    np.testing.assert_allclose(errors, weighted_errors, rtol=1e-6)
    assert box.moved(state) == {"policy", "temperature"}


def test_squared_errors_follow_the_paper(box):
    rewards = np.full(NUM_ROWS, 100.0, np.float32)
    ends = np.ones(NUM_ROWS, bool)
    preds = box.learner.module[MODULE].forward_train(box.batch)
    squared = Updates(td_error_loss_fn="mse")
    for updates, loss in ((box, lambda d: np.abs(d) - 0.5), (squared, np.square)):
        _, metrics, _ = updates(rewards=rewards, terminateds=ends)
        for name, q in (("qf_loss", "qf_preds"), ("qf_twin_loss", "qf_twin_preds")):
            assert float(metrics[name]) == pytest.approx(np.mean(loss(preds[q] - rewards)), rel=1e-5)


def test_truncated_rows_bootstrap_and_terminated_ones_do_not(box):
    _, _, plain = box()
    ends = np.arange(NUM_ROWS) < 3
    _, _, truncated = box(truncateds=ends)
    np.testing.assert_array_equal(truncated, plain)
    _, _, terminated = box(terminateds=ends)
    np.testing.assert_array_equal(terminated[3:], plain[3:])
    preds = box.learner.module[MODULE].forward_train(box.batch)
    rewards = box.batch["rewards"]
    distance = 0.5 * sum(np.abs(preds[name] - rewards) for name in ("qf_preds", "qf_twin_preds"))
    np.testing.assert_allclose(terminated[:3], distance[:3], rtol=1e-5)


def test_the_discount_is_to_the_power_of_the_steps(box):
    half = make_learner(gamma=0.5)
    _, _, one = box(settings_of=half)
    _, _, many = box(settings_of=half, n_step=np.full(NUM_ROWS, 60.0, np.float32))
    _, _, none = box(settings_of=half, terminateds=np.ones(NUM_ROWS, bool))
    np.testing.assert_allclose(many, none, rtol=1e-5)
    assert not np.allclose(one, none)


def test_rows_that_do_not_count_change_nothing(box):
    mask = np.arange(NUM_ROWS) % 2 == 0
    masked = Updates()
    _, metrics, _ = masked(loss_mask=mask)
    rewards = np.where(mask, box.batch["rewards"], 1e6).astype(np.float32)
    _, other, _ = masked(loss_mask=mask, rewards=rewards)
    assert {name: float(value) for name, value in metrics.items()} == {k: float(v) for k, v in other.items()}


def test_targets_follow_by_tau_when_they_are_due():
    at = Updates(target_network_update_freq=50)
    ref = f"{MODULE}/target_qf/dense_0/kernel"
    state, metrics, _ = at(steps=49)
    assert not float(metrics["num_target_updates"])
    np.testing.assert_array_equal(state.rest[ref], at.start.rest[ref])
    state, metrics, _ = at(steps=50, settings_of=make_learner(tau=1.0, target_network_update_freq=50))
    assert float(metrics["num_target_updates"]) and float(metrics["last_target_update_ts"]) == 50.0
    np.testing.assert_allclose(state.rest[ref], state.params[f"{MODULE}/qf/dense_0/kernel"], rtol=1e-6)


def test_clipping_bounds_every_optimizers_gradient(box):
    clipped = Updates(grad_clip=1e-3)
    state, metrics, _ = clipped()
    for name in ("policy", "qf", "qf_twin", "alpha"):
        assert float(metrics[f"gradients_{name}_global_norm"]) > 1e-3
    # Adam divides the size of gradients out: what it remembers shows it.
    for optimizer in state.optimizers[MODULE].values():
        squares = sum(float(np.sum(leaf)) for leaf in jax.tree.leaves(optimizer[0].nu))
        assert squares == pytest.approx(0.001 * 1e-6, rel=1e-2)


def test_one_critic(box, one_critic):
    state, metrics, errors = one_critic()
    assert "qf_twin_loss" not in metrics and "qf_twin_learning_rate" not in metrics
    assert set(state.optimizers[MODULE]) == {"qf", "policy", "alpha"}
    assert errors.shape == (NUM_ROWS,)
    _, _, errors_of_two = box()
    assert not np.allclose(errors, errors_of_two)


def test_the_initial_temperature_weighs_the_entropy(box):
    warm = make_learner(initial_alpha=3.0)
    assert warm.curr_log_alpha[MODULE] == pytest.approx(np.log(3.0))
    state = box.start.replace(params={**box.start.params, f"{MODULE}/log_alpha": np.float32(np.log(3.0))})
    _, metrics, _ = box(state=state)
    _, cold, _ = box()
    assert float(metrics["alpha_value"]) == pytest.approx(3.0)
    difference = float(metrics["policy_loss"]) - float(cold["policy_loss"])
    assert difference == pytest.approx(2.0 * float(cold["logps"]), rel=1e-4)


def test_the_temperature_is_saved_with_the_module(box):
    learner = make_learner()
    saved = learner.get_state()
    assert saved["rl_module"][MODULE]["log_alpha"] == 0.0
    saved["rl_module"][MODULE]["log_alpha"] = np.float32(-2.0)
    learner.set_state(saved)
    assert learner.curr_log_alpha[MODULE] == -2.0
    assert set(saved["optimizer"][MODULE]) != set()


@pytest.mark.parametrize("twin_q", [True, False])
def test_discrete_actions(twin_q):
    updates = Updates(action_space=DISCRETE, twin_q=twin_q)
    state, metrics, errors = updates()
    assert updates.moved(state) == {*PARTS, "targets"}
    assert errors.shape == (NUM_ROWS,) and np.isfinite(list(metrics.values())).all()
    # RLlib's target is below any entropy: the temperature falls.
    assert float(metrics["target_entropy"]) == -1.0
    assert float(state.params[f"{MODULE}/log_alpha"]) < 0.0
    assert updates.learner.target_entropy == {MODULE: -1.0}


def test_a_loss_that_is_one_number_trains_the_critics_no_other_way(box):
    """The policy's loss has no gradient in the critics, so all losses may be added up."""

    class Summed(SACLearner):
        def compute_loss_for_module(self, **kwargs):
            return sum(super().compute_loss_for_module(**kwargs).values())

    summed, _, _ = Updates(learner_class=Summed)()
    separate, _, _ = box()
    for ref, value in separate.params.items():
        np.testing.assert_allclose(summed.params[ref], value, rtol=1e-4, atol=1e-7, err_msg=ref)


def test_a_module_without_a_temperature_is_refused():
    class Bare(RLModule, QNetAPI, TargetNetworkAPI):
        def setup(self):
            self.layer = nnx.Linear(3, 4, rngs=self.rngs)

        def make_target_networks(self):
            pass

        def get_target_network_pairs(self):
            return []

        def compute_q_values(self, batch):
            return {"qf_preds": self.layer(batch["obs"])}

        def forward_target(self, batch):
            return self.compute_q_values(batch)

        def _forward(self, batch, **kwargs):
            return {"action_dist_inputs": self.layer(batch["obs"]), "qf_preds": 0.0, "q_target_next": 0.0}

    config = SACConfig().environment(observation_space=OBS, action_space=DISCRETE)
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=Bare))
    with pytest.raises(ValueError, match=r"Bare, has no temperature.*log_alpha = nnx.Param"):
        config.build_learner()
