"""TQC's update: which loss moves what, and what its own settings do to it."""

from __future__ import annotations

import functools

import gymnasium as gym
import jax
import numpy as np
import pytest

from jaxrl_stack.algorithms.tqc import TQCConfig, TQCLearner
from jaxrl_stack.core.learner.traced_metrics import nest_metrics
from jaxrl_stack.utils import counters

OBS, BOX = gym.spaces.Box(-1.0, 1.0, (3,), np.float32), gym.spaces.Box(-2.0, 2.0, (2,), np.float32)
MODULE = "default_policy"
NUM_ROWS = 8
QUANTILES = {"n_critics": 3, "n_quantiles": 5, "top_quantiles_to_drop_per_net": 2}
PARTS = {"policy": ("pi",), "critics": ("qf",), "temperature": ("log_alpha",)}


def make_learner(learner_class=TQCLearner, **training) -> TQCLearner:
    config = (
        TQCConfig()
        .environment(observation_space=OBS, action_space=BOX)
        .training(**QUANTILES | training)
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
        rng = np.random.default_rng(0)
        self.batch = {
            "obs": rng.normal(size=(NUM_ROWS, 3)).astype(np.float32),
            "new_obs": rng.normal(size=(NUM_ROWS, 3)).astype(np.float32),
            "actions": rng.uniform(-1, 1, (NUM_ROWS, 2)).astype(np.float32),
            "rewards": rng.normal(size=NUM_ROWS).astype(np.float32),
            "terminateds": np.zeros(NUM_ROWS, bool),
            "truncateds": np.zeros(NUM_ROWS, bool),
            "n_step": np.ones(NUM_ROWS, np.float32),
            "weights": np.ones(NUM_ROWS, np.float32),
        }

    def __call__(self, settings_of=None, **columns):
        settings = (settings_of or self.learner).settings()
        batch = {MODULE: {**self.batch, **columns}}
        state, metrics, rows = self.update(self.start, batch, settings, counters.from_int(100))
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
def three():
    return Updates()


@pytest.mark.parametrize(
    ("still", "settings"),
    [("policy", {"actor_lr": 0.0}), ("critics", {"critic_lr": 0.0}), ("temperature", {"alpha_lr": 0.0})],
)
def test_every_optimizer_moves_its_own_part(three, still, settings):
    state, metrics, _ = three(settings_of=make_learner(**settings))
    expected = {*PARTS, "targets"} - {still}
    # What does not move has nothing to follow it.
    assert three.moved(state) == expected - ({"targets"} if still == "critics" else set())
    assert set(state.optimizers[MODULE]) == {"qf", "policy", "alpha"}
    # What is there before the first update is what an update reports, and nothing of a second critic.
    counted = {"num_target_updates", "last_target_update_ts"}
    assert counted < metrics.keys() == set(TQCLearner.all_result_names())
    assert not any("twin" in name for name in metrics) and three.update._cache_size() == 1


def test_all_critics_learn(three):
    state, *_ = three()
    for i in range(3):
        ref = f"{MODULE}/qf_heads/{i}/dense_0/kernel"
        assert not np.array_equal(state.params[ref], three.start.params[ref])
        target = f"{MODULE}/target_qf_heads/{i}/dense_0/kernel"
        expected = 0.995 * three.start.rest[target] + 0.005 * np.asarray(state.params[ref])
        np.testing.assert_allclose(state.rest[target], expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dropped", [0, 2, 4])
def test_the_highest_quantiles_are_dropped(dropped):
    found = {}

    class Noted(TQCLearner):
        def compute_loss_for_module(self, *, fwd_out, **kwargs):
            keep = ("q_target_next", "logp_next_resampled", "qf_preds")
            jax.debug.callback(lambda out: found.update(jax.tree.map(np.asarray, out)), {k: fwd_out[k] for k in keep})
            return super().compute_loss_for_module(fwd_out=fwd_out, **kwargs)

    noted = Updates(learner_class=Noted, top_quantiles_to_drop_per_net=dropped)
    _, metrics, errors = noted()
    jax.effects_barrier()
    predicted = found["qf_preds"]
    atoms = np.sort(found["q_target_next"].reshape(NUM_ROWS, -1))[:, : 3 * (5 - dropped)]
    # The temperature is 1.
    targets = noted.batch["rewards"][:, None] + 0.99 * (atoms - found["logp_next_resampled"][:, None])
    np.testing.assert_allclose(errors, np.abs(predicted.mean((1, 2)) - targets.mean(1)), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(metrics["td_error_mean"], np.mean(errors), rtol=1e-5)
    for name, reduce in (("qf_mean", np.mean), ("qf_max", np.max), ("qf_min", np.min)):
        np.testing.assert_allclose(metrics[name], reduce(predicted), rtol=1e-5)


def test_importance_weights_touch_the_critics_only(three):
    _, plain, errors = three()
    state, weighted, weighted_errors = three(weights=np.zeros(NUM_ROWS, np.float32))
    assert float(weighted["qf_loss"]) == 0.0 < float(plain["qf_loss"])
    for name in ("policy_loss", "alpha_loss"):
        assert float(weighted[name]) == pytest.approx(float(plain[name]))
    np.testing.assert_allclose(errors, weighted_errors, rtol=1e-6)
    assert three.moved(state) == {"policy", "temperature"}


def test_truncated_rows_bootstrap_and_terminated_ones_do_not(three):
    _, _, plain = three()
    ends = np.arange(NUM_ROWS) < 3
    _, _, truncated = three(truncateds=ends)
    np.testing.assert_array_equal(truncated, plain)
    _, _, terminated = three(terminateds=ends)
    np.testing.assert_array_equal(terminated[3:], plain[3:])
    q_values = three.learner.module[MODULE].compute_q_values(three.batch)
    np.testing.assert_allclose(terminated[:3], np.abs(q_values - three.batch["rewards"])[:3], rtol=1e-4, atol=1e-6)
    _, _, far = three(n_step=np.full(NUM_ROWS, 3000.0, np.float32))
    np.testing.assert_allclose(far[:3], terminated[:3], rtol=1e-5)


def test_rows_that_do_not_count_change_nothing(three):
    mask = np.arange(NUM_ROWS) % 2 == 0
    masked = Updates()
    _, metrics, _ = masked(loss_mask=mask)
    rewards = np.where(mask, three.batch["rewards"], 1e6).astype(np.float32)
    # The critics' outputs of the other rows are in no extreme either.
    obs = np.where(mask[:, None], three.batch["obs"], 1e3).astype(np.float32)
    _, other, _ = masked(loss_mask=mask, rewards=rewards, obs=obs)
    assert {name: float(value) for name, value in metrics.items()} == {k: float(v) for k, v in other.items()}


def test_a_loss_that_is_one_number_trains_the_critics_no_other_way(three):
    """The policy's loss has no gradient in the critics, so all losses may be added up."""

    class Summed(TQCLearner):
        def compute_loss_for_module(self, **kwargs):
            return sum(super().compute_loss_for_module(**kwargs).values())

    summed, _, _ = Updates(learner_class=Summed)()
    separate, _, _ = three()
    for ref, value in separate.params.items():
        np.testing.assert_allclose(summed.params[ref], value, rtol=1e-4, atol=1e-7, err_msg=ref)
