"""Updates of a single gradient step: rows that leave them, target networks, losses with an optimizer each."""

from __future__ import annotations

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxrl_stack.algorithms.off_policy import OffPolicyConfig
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.core.learner.target_networks import LAST_TARGET_UPDATE, TargetNetworkUpdates
from jaxrl_stack.core.learner.traced_metrics import nest_metrics
from jaxrl_stack.core.learner.update import RowsUpdate
from jaxrl_stack.core.learner.utils import make_target_network, update_target_network
from jaxrl_stack.core.rl_module.apis import InferenceOnlyAPI, TargetNetworkAPI
from jaxrl_stack.core.rl_module.rl_module import RLModule, RLModuleSpec
from jaxrl_stack.core.rl_module.target_networks import TargetParam
from jaxrl_stack.utils import counters

OBS_SPACE = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
ACTION_SPACE = gym.spaces.Discrete(2)
MID = DEFAULT_MODULE_ID


class ActorAndCritic(RLModule, TargetNetworkAPI, InferenceOnlyAPI):
    """Linear actor and critic; the critic has a target."""

    def setup(self):
        self.pi = nnx.Linear(3, 2, rngs=self.rngs)
        self.q = nnx.Linear(3, 2, rngs=self.rngs)

    def make_target_networks(self):
        self.target_q = make_target_network(self.q)

    def get_target_network_pairs(self):
        return [(self.q, self.target_q)]

    def get_non_inference_attributes(self):
        return ["q", "target_q"]

    def forward_target(self, batch):
        return {"q": self.target_q(batch[Columns.OBS])}

    def _forward(self, batch):
        return {Columns.ACTION_DIST_INPUTS: self.pi(batch[Columns.OBS])}


def losses_of(module, batch):
    """The actor's loss depends on the critic, too, and the critic's on nothing else."""
    obs = batch[Columns.OBS]
    error = jnp.sum(module.q(obs), axis=-1) - batch[Columns.REWARDS] - jnp.sum(module.forward_target(batch)["q"], -1)
    policy = -jnp.sum(jnp.tanh(module.pi(obs)) * module.q(obs), axis=-1)
    return error, policy


class TwoLosses(TargetNetworkUpdates, Learner):
    """One loss and one optimizer each."""

    def configure_optimizers_for_module(self, module_id, config=None):
        module = self.module[module_id]
        for name, lr in (("pi", 0.1), ("q", 0.2)):
            self.register_optimizer(
                module_id=module_id,
                optimizer_name=name,
                optimizer=optax.sgd,
                params=self.get_parameters(getattr(module, name)),
                lr_or_lr_schedule=lr,
            )

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        error, policy = losses_of(self.module[module_id], batch)
        self.metrics.log_value((module_id, "td_error"), jnp.abs(error), reduce="item_series")
        loss = self.masked_mean(jnp.square(error), batch)
        return {"q": loss, "pi": self.masked_mean(policy, batch)}, {"q_loss": loss}


class Linear(TwoLosses):
    """Says that its losses are means, and logs what is none in ways of their own."""

    loss_is_linear_in_means = True

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        error, _ = losses_of(self.module[module_id], batch)
        self.metrics.log_value((module_id, "largest"), jnp.max(error), reduce="max")
        self.metrics.log_value((module_id, "smallest"), jnp.min(error), reduce="min")
        self.metrics.log_value((module_id, "rows"), jnp.sum(batch[Columns.LOSS_MASK]), reduce="sum")
        return super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)


def learner_of(num_devices=1, learner_class=TwoLosses, **settings):
    config = (
        OffPolicyConfig()
        .environment(observation_space=OBS_SPACE, action_space=ACTION_SPACE)
        .rl_module(rl_module_spec=RLModuleSpec(module_class=ActorAndCritic))
        .training(**({"tau": 0.5, "target_network_update_freq": 10} | settings))
        .learners(learner_class=learner_class, num_cpus_per_learner=num_devices)
    )
    learner = learner_class(config=config)
    learner.build()
    return learner


def rows(n=6):
    rng = np.random.default_rng(n)
    return {
        Columns.OBS: rng.normal(size=(n, 3)).astype(np.float32),
        Columns.REWARDS: rng.normal(size=n).astype(np.float32),
    }


@pytest.fixture(scope="module")
def learner():
    return learner_of()


@pytest.fixture(scope="module")
def step(learner):
    """The compiled step: ``(state, columns, sampled env steps) -> (state, metrics, rows)``."""
    settings = learner.settings()

    def pure(state, columns, timesteps):
        return learner.pure_update.step(state, {MID: columns}, settings, timesteps, axis_name=None)

    program = jax.jit(pure)
    return lambda state, columns, num_steps: program(state, columns, counters.from_int(num_steps))


def test_rows_are_those_of_the_batch_in_its_order(learner, step):
    batch = rows()
    error, _ = losses_of(learner.module[MID], batch)
    _, metrics, per_row = step(learner.state, batch, 1)
    np.testing.assert_allclose(per_row[MID, "td_error"], np.abs(error), rtol=1e-6)
    np.testing.assert_allclose(metrics[MID, "q_loss"], np.mean(np.square(error)), rtol=1e-6)


def test_every_loss_is_differentiated_for_its_own_optimizer_alone(learner, step):
    batch, state = rows(), learner.state
    after, *_ = step(state, batch, 1)
    refs = {name: [ref for ref in state.params if ref.startswith(f"{MID}/{name}/")] for name in ("pi", "q")}
    assert sorted(refs["pi"] + refs["q"]) == sorted(state.params)

    def loss(own, name):
        module = learner.pure.bind({**state.params, **own}, state.rest)[MID]
        error, policy = losses_of(module, batch)
        return jnp.mean(jnp.square(error) if name == "q" else policy)

    for name, lr in (("pi", 0.1), ("q", 0.2)):
        own = {ref: state.params[ref] for ref in refs[name]}
        gradients = jax.grad(loss)(own, name)
        for ref, gradient in gradients.items():
            np.testing.assert_allclose(after.params[ref], own[ref] - lr * gradient, rtol=1e-5, atol=1e-7)


def test_what_other_losses_need_is_not_computed(learner):
    """Three matrix products forward, actor, critic and target; backward one for each kernel that is trained: the
    actor's loss reaches the critic's, too, whose gradient by it must not count."""
    settings, state, batch = learner.settings(), learner.state, {MID: rows()}
    program = jax.jit(lambda *args: learner.pure_update.step(*args, axis_name=None))
    text = program.lower(state, batch, settings, counters.from_int(1)).compile().as_text()
    assert text.count(" dot(") == 3 + 2


def test_target_networks_follow_when_enough_steps_were_sampled(learner, step):
    state = learner.state
    q, target = f"{MID}/q/kernel", f"{MID}/target_q/kernel"
    np.testing.assert_array_equal(state.params[q], state.rest[target])
    number = 0
    for num_steps, is_due, last in ((9, False, 0), (10, True, 10), (15, False, 10), (20, True, 20), (40, True, 40)):
        number += is_due
        before = np.array(state.rest[target])
        state, metrics, _ = step(state, rows(), num_steps)
        expected = 0.5 * np.array(state.params[q]) + 0.5 * before if is_due else before
        np.testing.assert_allclose(state.rest[target], expected, rtol=1e-6)
        reported = nest_metrics(jax.device_get(metrics))[MID]
        assert (reported["num_target_updates"], reported["last_target_update_ts"]) == (number, last)
        assert counters.to_int(np.asarray(state.extra[LAST_TARGET_UPDATE][MID])) == last


def test_a_frequency_of_zero_updates_targets_after_every_update():
    learner = learner_of(target_network_update_freq=0, tau=1.0)
    step = jax.jit(lambda *args: learner.pure_update.step(*args, axis_name=None))
    state, *_ = step(learner.state, {MID: rows()}, learner.settings(), counters.zero())
    # XLA may compute the parameters once more for the target: the last bit may differ.
    np.testing.assert_array_max_ulp(state.rest[f"{MID}/target_q/kernel"], state.params[f"{MID}/q/kernel"], maxulp=1)


def test_target_networks_are_state_but_no_parameters(learner):
    module = learner.module[MID]
    assert all(
        isinstance(leaf, TargetParam)
        for leaf in jax.tree.leaves(nnx.state(module.target_q), is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))
    )
    assert {"q/kernel", "target_q/kernel"} <= module.get_state().keys()
    assert sorted(module.get_state(inference_only=True)) == ["pi/bias", "pi/kernel"]
    assert not any("target" in ref for ref in learner.get_weights())
    assert not any("target" in ref for part in learner.weights_for_runners().values() for ref in part)
    spec = RLModuleSpec(
        module_class=ActorAndCritic, observation_space=OBS_SPACE, action_space=ACTION_SPACE, inference_only=True
    )
    assert sorted(spec.build(seed=0).get_state()) == ["pi/bias", "pi/kernel"]


def test_state_of_a_learner_holds_its_targets_and_when_they_moved(learner, step):
    other = learner_of()
    state, *_ = step(learner.state, rows(), 30)
    learner_state = learner.get_state()
    other.place(state)
    moved = other.get_state()
    assert not np.array_equal(
        moved["rl_module"][MID]["target_q/kernel"], learner_state["rl_module"][MID]["target_q/kernel"]
    )
    other.set_state(learner_state)
    again = other.get_state()
    jax.tree.map(np.testing.assert_array_equal, again["rl_module"], learner_state["rl_module"])
    jax.tree.map(np.testing.assert_array_equal, again["extra"], learner_state["extra"])


@pytest.mark.parametrize("learner_class", [TwoLosses, Linear])
def test_two_devices_make_the_step_of_one(learner_class, learner, step):
    batch = rows(8)
    two, timesteps = learner_of(2, learner_class), counters.from_int(12)
    settings = two.settings()
    program = jax.pmap(
        lambda state, columns: two.pure_update.step(
            state, {MID: columns}, settings, timesteps, axis_name=two.axis_name
        ),
        axis_name=two.axis_name,
        in_axes=(None, 0),
        out_axes=RowsUpdate(None, None, 0),
        devices=two.devices,
    )
    shared = jax.tree.map(lambda x: x.reshape(2, 4, *x.shape[1:]), batch)
    state, metrics, per_row = program(two.state, shared)
    alone, metrics_alone, rows_alone = step(learner.state, batch, 12)
    for got, expected in zip(
        jax.tree.leaves((state.params, state.rest)), jax.tree.leaves((alone.params, alone.rest)), strict=True
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    for path, value in metrics_alone.items():
        np.testing.assert_allclose(metrics[path], value, rtol=1e-5, atol=1e-6, err_msg=str(path))
    np.testing.assert_allclose(per_row[MID, "td_error"].reshape(-1), rows_alone[MID, "td_error"], rtol=1e-5)
    if learner_class is Linear:
        error, _ = losses_of(learner.module[MID], batch)
        assert metrics[MID, "rows"] == 8
        np.testing.assert_allclose(metrics[MID, "largest"], np.max(error), rtol=1e-5)
        np.testing.assert_allclose(metrics[MID, "smallest"], np.min(error), rtol=1e-5)


def test_microbatches_of_a_minibatch_add_up(monkeypatch):
    """Gradients over microbatches that fit the cache, with a mask; sums and extremes go over all of them."""
    batch = rows(8) | {Columns.LOSS_MASK: np.array([True] * 5 + [False] * 3)}
    whole, microbatches = (learner_of(learner_class=Linear, target_network_update_freq=0) for _ in range(2))
    expected = whole.update(batch={MID: batch}, minibatch_size=8)[MID]
    monkeypatch.setattr("jaxrl_stack.core.learner.gradient_step.gradient_rows_per_microbatch", lambda devices: 2)
    got = microbatches.update(batch={MID: batch}, minibatch_size=8)[MID]
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-5, err_msg=name)
    for ref, value in whole.get_weights().items():
        np.testing.assert_allclose(microbatches.get_weights()[ref], value, rtol=1e-5)


def test_a_value_per_row_must_be_one(learner):
    class Wrong(TwoLosses):
        def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
            self.metrics.log_value((module_id, "td_error"), jnp.float32(1.0), reduce="item_series")
            return super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)

    wrong = Wrong(config=learner.config)
    wrong.build()
    with pytest.raises(ValueError, match=r"item_series.*one value per row"):
        wrong.pure_update.step(wrong.state, {MID: rows()}, wrong.settings(), counters.zero(), axis_name=None)


def test_target_networks_by_hand():
    net = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    target = make_target_network(net)
    net.kernel[...] = jnp.ones((2, 2))
    before = np.array(target.kernel[...])
    update_target_network(main_net=net, target_net=target, tau=0.25)
    np.testing.assert_allclose(target.kernel[...], 0.25 + 0.75 * before, rtol=1e-6)
    # Nothing is shared with the main network.
    np.testing.assert_array_equal(net.kernel[...], np.ones((2, 2)))
