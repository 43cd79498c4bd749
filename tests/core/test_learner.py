"""The whole surface of a Learner, outside of any Algorithm, against gradients worked out by hand."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import re
import types
from collections.abc import Callable
from typing import ClassVar

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from jax.extend.core import jaxprs_in_params

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.algorithms.ppo.default_ppo_rl_module import DefaultPPORLModule
from jaxrl_stack.algorithms.ppo.ppo_learner import PPOLearner
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.learner import gradient_step, update
from jaxrl_stack.core.learner.gradient_step import microbatches_per_minibatch
from jaxrl_stack.core.learner.items import Items, RowForm
from jaxrl_stack.core.learner.learner import OLD_MEMBERS, Learner
from jaxrl_stack.core.learner.learner_group import LearnerGroup
from jaxrl_stack.core.learner.optimizer_losses import LossesByOptimizer
from jaxrl_stack.core.learner.optimizers import RegisteredOptimizer
from jaxrl_stack.core.rl_module import MultiRLModuleSpec, RLModule, RLModuleSpec
from jaxrl_stack.core.rl_module.apis import SelfSupervisedLossAPI, ValueFunctionAPI
from jaxrl_stack.env.multi_agent_episode import MultiAgentEpisode
from jaxrl_stack.env.single_agent_episode import SingleAgentEpisode
from jaxrl_stack.ops import reductions
from jaxrl_stack.utils import counters
from jaxrl_stack.utils.devices import host_view

OBS_SPACE = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
ACTION_SPACE = gym.spaces.Discrete(2)
LR = 0.1


class TwoVectors(RLModule):
    """Outputs ``[obs @ a, obs @ b]``: two parameters, each with a gradient that fits in one line of NumPy."""

    rows_are_independent = True

    def setup(self):
        self.a = nnx.Param(jnp.array([0.1, -0.2, 0.3]))
        self.b = nnx.Param(jnp.array([0.5, 0.4, -0.6]))

    def _forward(self, batch):
        obs = batch[Columns.OBS]
        outputs = jnp.stack([obs @ self.a[...], obs @ self.b[...]], axis=-1)
        return {Columns.ACTION_DIST_INPUTS: outputs}


A, B = "default_policy/a", "default_policy/b"


class SquaresLearner(Learner):
    """``mean((obs @ a - target)^2) + 2 mean((obs @ b - target)^2)``, by plain gradient descent."""

    def configure_optimizers_for_module(self, module_id, config=None):
        self.register_optimizer(
            module_id=module_id,
            optimizer=optax.sgd,
            params=self.get_parameters(self.module[module_id]),
            lr_or_lr_schedule=config.lr,
        )

    def errors(self, batch, fwd_out):
        error = fwd_out[Columns.ACTION_DIST_INPUTS] - batch["target"][:, None]
        means = self.masked_means({"a": jnp.square(error[:, 0]), "b": jnp.square(error[:, 1])}, batch)
        return means["a"], means["b"]

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        a, b = self.errors(batch, fwd_out)
        return a + 2.0 * b


SPEC = RLModuleSpec(module_class=TwoVectors)


def make_config(learner_class=SquaresLearner, spec=SPEC, **training):
    return (
        PPOConfig()
        .environment(observation_space=OBS_SPACE, action_space=ACTION_SPACE)
        .rl_module(rl_module_spec=spec)
        .training(**{"lr": LR, **training})
        .learners(learner_class=learner_class)
    )


def make(learner_class=SquaresLearner, spec=SPEC, **training):
    return make_config(learner_class, spec, **training).build_learner()


def rows(n=12, seed=0):
    rng = np.random.default_rng(seed)
    return {"obs": rng.normal(size=(n, 3)).astype(np.float32), "target": rng.normal(size=n).astype(np.float32)}


def gradients(weights, batch, scale_a=1.0, scale_b=2.0, mask=None):
    """Of ``scale_a mean((obs @ a - target)^2) + scale_b mean((obs @ b - target)^2)`` over the rows that count."""
    mask = np.ones(len(batch["target"]), bool) if mask is None else mask
    obs, target = batch["obs"][mask].astype(float), batch["target"][mask].astype(float)

    def one(vector, scale):
        return scale * 2.0 * ((obs @ vector - target)[:, None] * obs).mean(0)

    return {A: one(weights[A].astype(float), scale_a), B: one(weights[B].astype(float), scale_b)}


def assert_step(learner, batch, expected_gradients: Callable | None = None, lr=LR, **update):
    """One update moves the weights by ``-lr`` times the gradients; returns the metrics of the module."""
    before = learner.get_weights()
    metrics = learner.update(batch=batch, **update)
    after = learner.get_weights()
    for ref, gradient in (expected_gradients or gradients)(before, batch).items():
        np.testing.assert_allclose(after[ref], before[ref] - lr * gradient, rtol=1e-5, atol=1e-6, err_msg=ref)
    return metrics[DEFAULT_MODULE_ID]


@pytest.fixture(scope="module")
def squares():
    """A learner to read from, and to update where the weights do not matter."""
    return make()


# ------------------------------------------------------------------------------------------------------- building


def test_build_twice_changes_nothing():
    learner = make_config().learner_class(config=make_config(), module_spec=SPEC_WITH_SPACES)
    with pytest.raises(ValueError, match=r"SquaresLearner is not built. Call build\(\) first"):
        learner.update(batch=rows())
    learner.build()
    state, microbatches, optimizers = (
        learner.state,
        list(learner._learner_connector),
        learner.get_optimizers_for_module(),
    )
    learner.build()
    assert learner.state is state
    assert list(learner._learner_connector) == microbatches
    assert learner.get_optimizers_for_module() == optimizers


SPEC_WITH_SPACES = RLModuleSpec(module_class=TwoVectors, observation_space=OBS_SPACE, action_space=ACTION_SPACE)


def test_a_module_or_its_spec():
    module = SPEC_WITH_SPACES.build(seed=0)
    learner = SquaresLearner(config=make_config(), module=module)
    learner.build()
    assert set(learner.get_weights()) == {A, B}
    with pytest.raises(ValueError, match="module_spec=..., module=...\\): pass one of them"):
        SquaresLearner(config=make_config(), module=module, module_spec=SPEC_WITH_SPACES)


def test_a_module_without_the_api_of_the_loss_is_refused():
    needed = "PPOLearner needs a module with the methods of ValueFunctionAPI.*TwoVectors"
    with pytest.raises(ValueError, match=needed):
        make(PPOLearner)


def test_a_loss_must_be_there():
    class NoLoss(SquaresLearner):
        compute_loss_for_module = Learner.compute_loss_for_module

    with pytest.raises(NotImplementedError, match="NoLoss must implement compute_loss_for_module"):
        make(NoLoss).update(batch=rows())


# ----------------------------------------------------------------------------------------------------- data arguments


def test_one_update_is_one_step_of_gradient_descent(squares):
    metrics = assert_step(squares, rows())
    assert metrics["default_optimizer_learning_rate"] == pytest.approx(LR)
    assert np.isfinite(metrics["total_loss"])


def test_every_data_argument_means_the_same():
    batch = rows()
    halves = [{k: v[:6] for k, v in batch.items()}, {k: v[6:] for k, v in batch.items()}]
    learner = make()
    initial = learner.get_state()
    results = []
    for data in (
        {"batch": batch},
        {"batch": {DEFAULT_MODULE_ID: batch}},
        {"batches": halves},
        {"training_data": types.SimpleNamespace(batches=halves, episodes=None)},
        {"data_iterators": [iter(halves[:1]), iter(halves[1:])]},
    ):
        learner.set_state(initial)
        learner.update(**data)
        results.append(learner.get_weights())
    for other in results[1:]:
        assert_equal_trees(results[0], other)
    assert (results[0][A] != initial["rl_module"][DEFAULT_MODULE_ID]["a"]).any()


def assert_equal_trees(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for (path, x), y in zip(jax.tree.leaves_with_path(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y, err_msg=jax.tree_util.keystr(path))


def test_exactly_one_data_argument(squares):
    with pytest.raises(ValueError, match="exactly one data argument.*got none"):
        squares.update()
    with pytest.raises(ValueError, match="exactly one data argument.*got \\['batch', 'batches'\\]"):
        squares.update(batch=rows(), batches=[rows()])
    with pytest.raises(ValueError, match="exactly one data argument"):
        squares.update(training_data=types.SimpleNamespace())


def test_a_batch_of_other_modules(squares):
    with pytest.raises(ValueError, match="unknown modules \\['other'\\]"):
        squares.update(batch={DEFAULT_MODULE_ID: rows(), "other": rows()})


class MeanOfRewards(SquaresLearner):
    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        mean = self.masked_mean(batch[Columns.REWARDS], batch)
        ends = self.masked_mean(batch[Columns.TERMINATEDS].astype(jnp.float32), batch)
        first = self.masked_mean(batch[Columns.OBS][:, 0], batch)
        zero = 0.0 * self.masked_mean(fwd_out[Columns.ACTION_DIST_INPUTS][:, 0], batch)
        return zero + mean, {"ends": ends, "first": first}


def make_episode(length, seed, terminated):
    rng = np.random.default_rng(seed)
    return SingleAgentEpisode.from_arrays(
        observations=rng.normal(size=(length + 1, 3)).astype(np.float32),
        actions=np.zeros(length, np.int32),
        rewards=rng.normal(size=length).astype(np.float32),
        terminated=terminated,
        truncated=False,
    )


def test_update_from_episodes_sees_every_step_once():
    learner = make(MeanOfRewards)
    episodes = [make_episode(5, 1, True), make_episode(3, 2, False), make_episode(1, 3, True)]
    metrics = learner.update(episodes=episodes)[DEFAULT_MODULE_ID]
    rewards = np.concatenate([e.get_rewards() for e in episodes])
    observations = np.concatenate([e.get_observations()[:-1] for e in episodes])
    assert metrics["total_loss"] == pytest.approx(rewards.mean(), abs=1e-6)
    assert metrics["first"] == pytest.approx(observations[:, 0].mean(), abs=1e-6)
    assert metrics["ends"] == pytest.approx(2 / 9)
    with pytest.raises(ValueError, match="none of the 0 episodes has a step"):
        learner.update(episodes=[])
    stranger = make_episode(2, 4, True)
    stranger.module_id = "stranger"
    with pytest.raises(ValueError, match="belongs to module 'stranger'"):
        learner.update(episodes=[stranger])


# ------------------------------------------------------------------------------------------------------------- losses


class WithMetrics(SquaresLearner):
    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        a, b = self.errors(batch, fwd_out)
        return a + 2.0 * b, {"a": a, "parts": {"b": b}}


def test_a_loss_may_return_metrics():
    metrics = assert_step(make(WithMetrics), rows())
    assert metrics["total_loss"] == pytest.approx(metrics["a"] + 2.0 * metrics["parts"]["b"], rel=1e-6)


def test_masked_rows_do_not_count(squares):
    mask = np.arange(12) % 3 != 0
    batch = rows() | {Columns.LOSS_MASK: mask}
    assert_step(squares, batch, lambda w, b: gradients(w, b, mask=mask))
    # In minibatches, too: rows 0 to 5 have four that count.
    minibatch = {k: v[:6] for k, v in batch.items()}
    assert_step(
        squares, batch, lambda w, b: gradients(w, minibatch, mask=mask[:6]), minibatch_size=6, num_total_minibatches=1
    )


class Halved(SquaresLearner):
    def compute_losses(self, *, fwd_out, batch):
        return {mid: 0.5 * loss for mid, loss in super().compute_losses(fwd_out=fwd_out, batch=batch).items()}


def test_compute_losses_can_be_overridden():
    assert_step(make(Halved), rows(), lambda w, b: gradients(w, b, 0.5, 1.0))


class ScaledTooLate(SquaresLearner):
    def compute_gradients(self, loss_per_module, **kwargs):
        return super().compute_gradients({mid: 0.5 * loss for mid, loss in loss_per_module.items()}, **kwargs)


def test_compute_gradients_wants_the_losses_unchanged():
    with pytest.raises(ValueError, match="override compute_losses"):
        make(ScaledTooLate).update(batch=rows())


def test_parts_of_an_update_say_so_where_there_is_none(squares):
    gradients_of = {A: np.full(3, 3.0, np.float32), B: np.full(3, 4.0, np.float32)}
    for call in (
        lambda: squares.compute_losses(fwd_out={}, batch={}),
        lambda: squares.compute_gradients({DEFAULT_MODULE_ID: 1.0}),
        lambda: squares.apply_gradients(gradients_of),
    ):
        with pytest.raises(RuntimeError, match=r"\(\) is a part of the compiled update .* Call update\(batch=...\)"):
            call()
    # Clipping needs nothing of an update.
    clipped = make(grad_clip=1.0, grad_clip_by="global_norm").postprocess_gradients(gradients_of)
    assert sum(np.sum(np.square(g)) for g in clipped.values()) == pytest.approx(1.0, rel=1e-4)


class TooEarly(SquaresLearner):
    def compute_losses(self, **kwargs):
        losses = super().compute_losses(**kwargs)
        self.compute_gradients(losses)
        return losses


def test_gradients_before_the_losses_are_complete_are_refused():
    with pytest.raises(RuntimeError, match=r"before compute_losses\(\) returned"):
        make(TooEarly).update(batch=rows())


@pytest.mark.parametrize("name", OLD_MEMBERS)
def test_old_names_say_what_took_their_place(squares, name):
    with pytest.raises(AttributeError, match=rf"SquaresLearner.{name} is gone. (Use|Override) (algorithm\.)?\w+\("):
        getattr(squares, name)
    with pytest.raises(AttributeError, match="has no attribute 'compute_los'"):
        squares.compute_los  # noqa: B018


def test_a_hook_of_the_past_is_not_passed_over_in_silence(caplog):
    type("OldHook", (SquaresLearner,), {"configure_optimizer_for_module": lambda self, **kwargs: None})
    assert "OldHook.configure_optimizer_for_module() is never called" in caplog.text
    assert "configure_optimizers_for_module(module_id, config)" in caplog.text


class VectorLoss(SquaresLearner):
    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        return jnp.square(fwd_out[Columns.ACTION_DIST_INPUTS][:, 0])


def test_a_loss_that_is_no_scalar_is_refused():
    with pytest.raises(ValueError, match="loss of module 'default_policy' in VectorLoss has the shape.*masked_mean"):
        make(VectorLoss).update(batch=rows())


class TwoOptimizers(SquaresLearner):
    """Both losses depend on both parameters."""

    def configure_optimizers_for_module(self, module_id, config=None):
        module = self.module[module_id]
        self.register_optimizer(
            module_id=module_id, optimizer_name="of_a", optimizer=optax.sgd, params=[module.a], lr_or_lr_schedule=0.1
        )
        self.register_optimizer(
            module_id=module_id,
            optimizer_name="of_b",
            optimizer=optax.sgd,
            params=[self.get_param_ref(module.b)],
            lr_or_lr_schedule=[[0, 0.2], [100, 0.0]],
        )

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        a, b = self.errors(batch, fwd_out)
        return {"of_a": a + 3.0 * b, "of_b": 5.0 * a + 2.0 * b}


def test_each_optimizer_has_its_own_loss_and_learning_rate():
    learner, batch = make(TwoOptimizers), rows()
    before = learner.get_weights()
    metrics = learner.update(batch=batch, timesteps={"num_env_steps_sampled_lifetime": 50})[DEFAULT_MODULE_ID]
    after, own = learner.get_weights(), gradients(before, batch, 1.0, 2.0)
    np.testing.assert_allclose(after[A], before[A] - 0.1 * own[A], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(after[B], before[B] - 0.2 * own[B], rtol=1e-5, atol=1e-6)
    assert metrics["of_b_learning_rate"] == pytest.approx(0.2)
    # The schedule has moved to 50 steps past that update.
    metrics = learner.update(batch=batch, timesteps=60)[DEFAULT_MODULE_ID]
    assert metrics["of_b_learning_rate"] == pytest.approx(0.1)
    own = gradients(after, batch, 1.0, 2.0)
    np.testing.assert_allclose(learner.get_weights()[B], after[B] - 0.1 * own[B], rtol=1e-5, atol=1e-6)

    assert [name for name, _ in learner.get_optimizers_for_module(DEFAULT_MODULE_ID)] == ["of_a", "of_b"]
    assert len(learner.get_optimizers_for_module()) == 2
    optimizer = learner.get_optimizer(DEFAULT_MODULE_ID, "of_b")
    assert learner.filter_param_dict_for_optimizer(after, optimizer) == {B: after[B]}
    with pytest.raises(KeyError, match="has no optimizer 'of_c'; registered are"):
        learner.get_optimizer(DEFAULT_MODULE_ID, "of_c")


class Penalized(TwoOptimizers):
    def compute_loss_for_module(self, *, module_id, **kwargs):
        losses = LossesByOptimizer(super().compute_loss_for_module(module_id=module_id, **kwargs))
        self.metrics.log_dict(losses, key=module_id, window=1)
        penalty = 0.5 * sum(jnp.sum(jnp.square(w[...])) for w in self.get_parameters(self.module[module_id]))
        return 1.5 + losses + penalty - 1.0


def test_a_term_that_is_added_to_all_losses_moves_all_parameters_and_counts_once():
    learner, batch = make(Penalized), rows()
    before = learner.get_weights()
    metrics = learner.update(batch=batch)[DEFAULT_MODULE_ID]
    after, own = learner.get_weights(), gradients(before, batch, 1.0, 2.0)
    for ref, lr in ((A, 0.1), (B, 0.2)):
        np.testing.assert_allclose(after[ref], before[ref] - lr * (own[ref] + before[ref]), rtol=1e-5, atol=1e-6)
    penalty = 0.5 * sum(np.sum(np.square(w)) for w in before.values())
    assert metrics["total_loss"] == pytest.approx(metrics["of_a"] + metrics["of_b"] + penalty + 0.5, rel=1e-5)


def registers(*calls):
    """A learner class that registers optimizers with these arguments; `params` are attribute names."""

    class Registering(SquaresLearner):
        def configure_optimizers_for_module(self, module_id, config=None):
            module = self.module[module_id]
            for call in calls:
                params = [getattr(module, name) for name in call["params"]]
                self.register_optimizer(module_id=module_id, **{**call, "params": params})

    return Registering


SGD_OF_A = {"optimizer": optax.sgd, "params": ["a"], "lr_or_lr_schedule": LR}


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        ([], r"configure_optimizers_for_module\('default_policy'\) registered no optimizer"),
        (
            [SGD_OF_A, SGD_OF_A | {"params": ["b", "a"], "optimizer_name": "second"}],
            "'default_policy/a' already belongs to optimizer 'default_optimizer'.*out of optimizer 'second'",
        ),
        ([SGD_OF_A, SGD_OF_A | {"params": ["b"]}], "already has an optimizer 'default_optimizer'"),
        ([SGD_OF_A | {"lr_or_lr_schedule": None}], "needs lr_or_lr_schedule"),
        ([SGD_OF_A | {"optimizer": optax.sgd(0.1)}], "has no effect on a finished optax transformation"),
    ],
    ids=["none", "shared parameter", "same name", "no lr", "lr of a finished one"],
)
def test_wrong_optimizers(calls, message):
    with pytest.raises(ValueError, match=message):
        make(registers(*calls))


def test_a_finished_transformation_and_parameters_without_optimizer():
    learner = make(registers({"optimizer": optax.sgd(0.05), "params": ["a"]}))
    before = learner.get_weights()
    metrics = assert_step(learner, rows(), lambda w, b: {A: gradients(w, b)[A]}, lr=0.05)
    assert "default_optimizer_learning_rate" not in metrics
    np.testing.assert_array_equal(learner.get_weights()[B], before[B])


# ------------------------------------------------------------------------------------------------------ gradient hooks


class OwnPostprocessing(SquaresLearner):
    def postprocess_gradients_for_module(self, *, module_id, config, module_gradients_dict):
        assert module_id == DEFAULT_MODULE_ID
        # The module is there in every hook, with its weights.
        norm = jnp.sum(jnp.square(self.module[module_id].a[...]))
        self.metrics.log_value((module_id, "norm"), norm)
        module_gradients_dict = super().postprocess_gradients_for_module(
            module_id=module_id, config=config, module_gradients_dict=module_gradients_dict
        )
        return {ref: gradient / config.lr for ref, gradient in module_gradients_dict.items()}


def test_gradients_can_be_postprocessed():
    learner = make(OwnPostprocessing)
    expected = np.square(learner.get_weights()[A]).sum()
    assert assert_step(learner, rows(), lr=1.0)["norm"] == pytest.approx(expected, rel=1e-5)


class OwnGradients(SquaresLearner):
    def compute_gradients(self, loss_per_module, **kwargs):
        gradients = super().compute_gradients(loss_per_module, **kwargs)
        return {ref: -gradient for ref, gradient in gradients.items()}

    def apply_gradients(self, gradients_dict):
        super().apply_gradients({ref: 2.0 * gradient for ref, gradient in gradients_dict.items()})


def test_compute_and_apply_gradients_can_be_overridden():
    assert_step(make(OwnGradients), rows(), lr=-2.0 * LR)


def test_norms_of_gradients_are_reported_without_clipping():
    learner, batch = make(), rows()
    own = gradients(learner.get_weights(), batch)
    norm = np.sqrt(sum(np.square(gradient).sum() for gradient in own.values()))
    assert assert_step(learner, batch)["gradients_default_optimizer_global_norm"] == pytest.approx(norm, rel=1e-5)


# ------------------------------------------------------------------------------------------------------------- hooks


class Hooks(SquaresLearner):
    """Counts updates in its own state, on the device and on the host."""

    def initial_extra_state(self):
        return {"count": {DEFAULT_MODULE_ID: jnp.float32(0.0)}}

    def before_gradient_based_update(self, *, timesteps):
        super().before_gradient_based_update(timesteps=timesteps)
        count = float(self.extra["count"][DEFAULT_MODULE_ID])
        self.seen = [("before", timesteps["num_env_steps_sampled_lifetime"], count)]
        self.metrics.log_value("of_before", 7.0, window=1)

    def pre_update(self, state, batch):
        return state.replace(extra={"count": {DEFAULT_MODULE_ID: state.extra["count"][DEFAULT_MODULE_ID] + 1.0}})

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        loss = super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)
        return loss, {"count": self.extra["count"][module_id], "double": 2.0 * loss}

    def post_update(self, state, *, metrics, settings):
        state, metrics = super().post_update(state, metrics=metrics, settings=settings)
        half = metrics[(DEFAULT_MODULE_ID, "total_loss")] / 2.0
        gamma = settings[DEFAULT_MODULE_ID]["gamma"]
        metrics = {**metrics, (DEFAULT_MODULE_ID, "gamma"): gamma, (DEFAULT_MODULE_ID, "half"): half}
        count = state.extra["count"][DEFAULT_MODULE_ID]
        return state.replace(extra={"count": {DEFAULT_MODULE_ID: count * 10.0}}), metrics

    def after_gradient_based_update(self, *, timesteps):
        count = float(self.extra["count"][DEFAULT_MODULE_ID])
        self.seen.append(("after", timesteps["num_env_steps_sampled_lifetime"], count))
        weight = float(self.module[DEFAULT_MODULE_ID].a[...][0])
        self.metrics.log_value((DEFAULT_MODULE_ID, "of_after"), weight, window=1)


def test_hooks_run_in_their_order():
    learner = make(Hooks, gamma=0.9)
    assert learner.has_host_hooks and not make_config().learner_class(config=make_config()).has_host_hooks
    for before, during, after in ((0.0, 1.0, 10.0), (10.0, 11.0, 110.0)):
        results = learner.update(batch=rows(), timesteps=40)
        metrics = results[DEFAULT_MODULE_ID]
        assert learner.seen == [("before", 40, before), ("after", 40, after)]
        assert metrics["count"] == during
        assert metrics["half"] == pytest.approx(metrics["double"] / 4.0)
        assert metrics["gamma"] == pytest.approx(0.9)
        # What the host's hooks log is part of the result.
        assert results["of_before"] == 7.0
        assert metrics["of_after"] == learner.get_weights()[A][0]


class ReadsItself(SquaresLearner):
    reads = "module"

    def pre_update(self, state, batch):
        getattr(self, self.reads)
        return state


class ReadsItselfAfterwards(SquaresLearner):
    def post_update(self, state, *, metrics, settings):
        self.metrics.log_value("x", metrics[(DEFAULT_MODULE_ID, "total_loss")])
        return state, metrics


def test_pure_hooks_do_not_read_the_learner_itself():
    with pytest.raises(RuntimeError, match=r"pre_update\(\) is compiled into the update and cannot read self.state"):
        make(ReadsItself).update(batch=rows())
    with pytest.raises(RuntimeError, match=r"post_update\(\) is compiled into the update and cannot read self.metrics"):
        make(ReadsItselfAfterwards).update(batch=rows())


COUNT = (DEFAULT_MODULE_ID, "count")


class Counting(SquaresLearner):
    """Counts updates, and the updates that a metric of a base class has seen."""

    def initial_extra_state(self):
        return {"count": jnp.float32(0.0)}

    def post_update(self, state, *, metrics, settings):
        state, metrics = super().post_update(state, metrics=metrics, settings=settings)
        count = state.extra["count"] + 1.0
        return state.replace(extra={"count": count}), {**metrics, COUNT: count}


class Doubled(Counting):
    def post_update(self, state, *, metrics, settings):
        state, metrics = super().post_update(state, metrics=metrics, settings=settings)
        doubled = 2.0 * metrics[COUNT] + settings[DEFAULT_MODULE_ID]["gamma"]
        metrics = {path: value for path, value in metrics.items() if path[-1] != "total_loss"}
        return state.replace(extra={"count": doubled}), {**metrics, (DEFAULT_MODULE_ID, "doubled"): doubled}


class DoubledInPlace(Counting):
    """The same in the form of earlier versions."""

    def post_update(self, state, *, metrics, settings):
        state = super().post_update(state, metrics=metrics, settings=settings)
        doubled = 2.0 * metrics[COUNT] + settings[DEFAULT_MODULE_ID]["gamma"]
        del metrics[(DEFAULT_MODULE_ID, "total_loss")]
        metrics[(DEFAULT_MODULE_ID, "doubled")] = doubled
        return dataclasses.replace(state, extra={"count": doubled})


class DoubledBefore(Counting):
    """Likewise, with the state of `super()` as it is, which another class of the new form changes further."""

    def post_update(self, state, *, metrics, settings):
        state = super().post_update(state, metrics=metrics, settings=settings)
        del metrics[(DEFAULT_MODULE_ID, "total_loss")]
        return state


class DoubledAfter(DoubledBefore):
    def post_update(self, state, *, metrics, settings):
        state, metrics = super().post_update(state, metrics=metrics, settings=settings)
        doubled = 2.0 * metrics[COUNT] + settings[DEFAULT_MODULE_ID]["gamma"]
        return state.replace(extra={"count": doubled}), {**metrics, (DEFAULT_MODULE_ID, "doubled"): doubled}


class Mixin:
    """In the form of earlier versions, of a class that is no learner."""

    def post_update(self, state, *, metrics, settings):
        state = super().post_update(state, metrics=metrics, settings=settings)
        doubled = 2.0 * metrics[COUNT] + settings[DEFAULT_MODULE_ID]["gamma"]
        del metrics[(DEFAULT_MODULE_ID, "total_loss")]
        metrics[(DEFAULT_MODULE_ID, "doubled")] = doubled
        return state.replace(extra={"count": doubled})


class DoubledByMixin(Mixin, Counting):
    pass


class HandsOn(Doubled):
    def post_update(self, state, *, metrics, settings):
        return super().post_update(state, metrics=metrics, settings=settings)


@pytest.mark.parametrize(
    ("learner_class", "told"),
    [
        (DoubledInPlace, "DoubledInPlace"),
        (DoubledAfter, "DoubledBefore"),
        (DoubledByMixin, "DoubledByMixin"),
        (HandsOn, None),
    ],
)
def test_both_forms_of_post_update_do_the_same_and_the_old_one_is_named_once(learner_class, told, caplog):
    new, old = make(Doubled), make(learner_class)
    for _ in range(2):
        expected, result = (learner.update(batch=rows())[DEFAULT_MODULE_ID] for learner in (new, old))
        assert "total_loss" not in expected and {"count", "doubled"} <= expected.keys()
        assert result == expected
        assert float(old.extra["count"]) == float(new.extra["count"])
        assert type(old.state) is type(new.state)
    notices = [record.message for record in caplog.records if "post_update() returns only the state" in record.message]
    assert [message.split(".")[0] for message in notices] == ([told] if told else [])
    assert all("return state, {**metrics" in message for message in notices)


def test_the_argument_of_a_hook_in_the_new_form_stays_as_it_is():
    seen = []

    class Watching(Doubled):
        def post_update(self, state, *, metrics, settings):
            before = dict(metrics)
            after = Doubled.post_update(self, state, metrics=dict(metrics), settings=settings)[1]
            seen.append((metrics == before, after.keys() ^ before.keys()))
            return state, after

    make(Watching).update(batch=rows())
    assert seen == [(True, {COUNT, (DEFAULT_MODULE_ID, "doubled"), (DEFAULT_MODULE_ID, "total_loss")})]


@pytest.mark.parametrize(
    ("hook", "result", "message"),
    [
        ("post_update", None, "returned None, but must return (state, metrics)"),
        ("post_update", (1, {}), "returned a tuple of int, dict, but must return"),
        ("post_update", {}, "returned a dict, but must return"),
        ("post_update", lambda state: (state, {"x": 1.0}), "returned a metric named 'x'. A name must be a tuple"),
        ("post_update", lambda state: (state, {}, 3), "returned a tuple of LearnerState, dict, int"),
        ("pre_update", None, "returned NoneType. Return the LearnerState"),
        ("compute_gradients", None, "returned NoneType. Return the gradients"),
        ("postprocess_gradients", None, "returned NoneType. Return the gradients"),
        ("postprocess_gradients_for_module", 1.0, "returned float. Return the gradients"),
    ],
)
def test_a_pure_hook_that_returns_something_else_is_named(hook, result, message):
    def wrong(self, *args, **kwargs):
        return result(args[0]) if callable(result) else result

    learner = make(type("Wrong", (SquaresLearner,), {hook: wrong}))
    with pytest.raises(ValueError, match=rf"Wrong\.{hook}\(\) {re.escape(message)}"):
        learner.update(batch=rows())


def test_other_threads_use_the_learner_while_an_update_is_traced():
    learner = make(SquaresLearner)
    with learner.in_pure_hook("post_update"), concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: learner.num_updates).result() == 0
        with pytest.raises(RuntimeError, match="post_update"):
            _ = learner.state


# ------------------------------------------------------------------------------------------------------------ metrics


class Logging(SquaresLearner):
    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        mean = self.masked_mean(batch["target"], batch)
        for reduce in (None, "mean", "sum", "min", "max"):
            self.metrics.log_value((module_id, str(reduce)), mean, reduce=reduce)
        self.metrics.log_value((module_id, "window"), mean, reduce="mean", window=1)
        self.metrics.log_value("top", 3)
        self.metrics.log_dict({"x": mean, "deep": {"y": 2.0 * mean}}, key=(module_id, "nested"))
        return super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)


def test_every_reduction_over_the_minibatches():
    batch = rows()
    results = make(Logging).update(batch=batch, minibatch_size=4)
    means = batch["target"].reshape(3, 4).mean(-1)
    expected = {
        "None": means[-1],
        "window": means[-1],
        "mean": means.mean(),
        "sum": means.sum(),
        "min": means.min(),
        "max": means.max(),
    }
    metrics = results[DEFAULT_MODULE_ID]
    for name, value in expected.items():
        assert metrics[name] == pytest.approx(value, abs=1e-6), name
    assert results["top"] == 3.0
    assert metrics["nested"]["x"] == pytest.approx(means[-1], abs=1e-6)
    assert metrics["nested"]["deep"]["y"] == pytest.approx(2.0 * means[-1], abs=1e-6)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"reduce": "percentiles"}, "reduce='percentiles'"),
        ({"reduce": "sum", "with_throughput": True}, "'with_throughput'.* cannot be used inside"),
        ({"reduce": "item_series", "with_throughput": True}, "'with_throughput'.* cannot be used inside"),
        ({"value": jnp.ones(3)}, "the value has shape \\(3,\\)"),
    ],
)
def test_what_cannot_be_logged_inside(kwargs, message):
    class Wrong(SquaresLearner):
        def compute_loss_for_module(self, *, module_id, **loss_kwargs):
            self.metrics.log_value((module_id, "x"), **{"value": 1.0, **kwargs})
            return super().compute_loss_for_module(module_id=module_id, **loss_kwargs)

    with pytest.raises(ValueError, match=message):
        make(Wrong).update(batch=rows())


# ----------------------------------------------------------------------------------------------------------- settings


class Branching(SquaresLearner):
    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        a, b = self.errors(batch, fwd_out)
        if config.clip_param > 0.25:
            return a
        return b


def test_branching_on_a_traced_setting_names_it_and_static_settings_helps():
    with pytest.raises(TypeError, match=r"'clip_param', read on this line\..*_static_settings=\['clip_param'\]"):
        make(Branching, clip_param=0.3).update(batch=rows())
    for clip_param, scales in ((0.3, (1.0, 0.0)), (0.2, (0.0, 1.0))):
        config = make_config(Branching, clip_param=clip_param).experimental(_static_settings=["clip_param"])
        assert_step(config.build_learner(), rows(), lambda w, b, s=scales: gradients(w, b, *s))


class ReadsConfig(SquaresLearner):
    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        loss = super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)
        assert config.num_epochs == 30 and config.use_critic is True and config["grad_clip_by"] == "global_norm"
        assert config.get("no such setting", 5) == 5
        with pytest.raises(AttributeError, match="read-only"):
            config.gamma = 0.5
        return loss, {
            "gamma": config.gamma,
            "clip_param": config["clip_param"],
            "entropy_coeff": config.get("entropy_coeff"),
            "gamma_again": config.get_config_for_module(module_id).gamma,
        }


def test_the_config_of_the_loss_has_current_values():
    learner = make(ReadsConfig, gamma=0.95, clip_param=0.125, entropy_coeff=[[0, 1.0], [100, 0.0]])
    metrics = learner.update(batch=rows(), timesteps=25)[DEFAULT_MODULE_ID]
    assert metrics["gamma"] == metrics["gamma_again"] == pytest.approx(0.95)
    assert metrics["clip_param"] == pytest.approx(0.125) and metrics["entropy_coeff"] == 1.0
    assert learner.update(batch=rows(), timesteps=50)[DEFAULT_MODULE_ID]["entropy_coeff"] == pytest.approx(0.75)


# ------------------------------------------------------------------------------------------------- several modules


class PerModule(SquaresLearner):
    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        return config.gamma * super().compute_loss_for_module(
            module_id=module_id, config=config, batch=batch, fwd_out=fwd_out
        )


def make_two(learner_class=PerModule, **multi_agent):
    config = make_config(learner_class, gamma=1.0)
    if multi_agent:
        config.multi_agent(**multi_agent)
    spec = MultiRLModuleSpec(rl_module_specs={"p": SPEC_WITH_SPACES, "q": SPEC_WITH_SPACES})
    learner = learner_class(config=config, module_spec=spec)
    learner.build()
    return learner


def two_batches():
    return {"p": rows(12, 1), "q": rows(6, 2)}


def step_of(module_id, before, batch, scale=1.0):
    """The weights of one module after a step."""
    own = {f"default_policy/{x}": before[f"{module_id}/{x}"] for x in "ab"}
    moved = gradients(own, batch[module_id], scale, 2.0 * scale)
    return {x: own[f"default_policy/{x}"] - LR * moved[f"default_policy/{x}"] for x in "ab"}


def assert_module_moved(module_id, before, after, batch, scale=1.0):
    for x, value in step_of(module_id, before, batch, scale).items():
        np.testing.assert_allclose(after[f"{module_id}/{x}"], value, rtol=1e-5, atol=1e-6)


def test_modules_learn_each_from_its_own_rows():
    learner, batch = make_two(), two_batches()
    before = learner.get_weights()
    metrics = learner.update(batch=batch)
    after = learner.get_weights()
    for module_id in ("p", "q"):
        assert_module_moved(module_id, before, after, batch)
        assert np.isfinite(metrics[module_id]["total_loss"])
    with pytest.raises(ValueError, match="Pass batches of the form {module_id: columns}"):
        learner.update(batch=rows())
    with pytest.raises(ValueError, match="Pass episodes with a module_id"):
        learner.update(episodes=[SingleAgentEpisode(observations=[0, 1], actions=[0], rewards=[0.0])])
    # Minibatches of 4 rows of each: 3 for p, and q goes round until p is through.
    state = learner.get_state()
    learner.update(batch=batch, minibatch_size=4)
    in_minibatches = learner.get_weights()
    learner.set_state(state)
    order = {"p": np.arange(12), "q": np.array([0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5])}
    for i in range(3):
        at = slice(4 * i, 4 * i + 4)
        learner.update(batch={m: {k: v[order[m][at]] for k, v in batch[m].items()} for m in batch})
    for ref, value in learner.get_weights().items():
        np.testing.assert_allclose(in_minibatches[ref], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wanted", [["q"], lambda module_id, batch: module_id == "q"], ids=["names", "function"])
def test_policies_to_train(wanted):
    learner, batch = make_two(policies_to_train=wanted), two_batches()
    before = learner.get_weights()
    metrics = learner.update(batch=batch)
    after = learner.get_weights()
    assert_module_moved("q", before, after, batch)
    assert_equal_trees({r: before[r] for r in ("p/a", "p/b")}, {r: after[r] for r in ("p/a", "p/b")})
    assert "total_loss" not in metrics["p"]
    assert learner.should_module_be_updated("q") and not learner.should_module_be_updated("p")
    with pytest.raises(ValueError, match="policies_to_train=\\['absent'\\]\\) trains no module"):
        make_two(policies_to_train=["absent"]).update(batch=batch)


@pytest.mark.parametrize("wanted", [[], lambda module_id, batch: False], ids=["names", "function"])
def test_a_learner_that_trains_nothing_makes_no_updates(wanted):
    learner, batch = make_two(policies_to_train=wanted), two_batches()
    before = learner.get_weights()
    result = learner.update(batch=batch, minibatch_size=2, num_epochs=2)
    assert_equal_trees(learner.get_weights(), before)
    assert result["__all_modules__"]["num_module_steps_trained"] == 0 and learner.num_updates == 0


def episodes_of_two_agents():
    episode = MultiAgentEpisode(agent_to_module_mapping_fn=lambda agent_id, episode, **kwargs: agent_id)
    rng = np.random.default_rng(0)
    observations = [{mid: rng.normal(size=3).astype(np.float32) for mid in "pq"} for _ in range(4)]
    episode.add_env_reset(observations=observations[0])
    for i, acting in enumerate(("pq", "pq", "q")):
        came = {mid: observations[i + 1][mid] for mid in ("pq", "q", "q")[i]}
        episode.add_env_step(came, dict.fromkeys(acting, 0), {mid: i + 1.0 for mid in acting}, {})
    return [episode.to_numpy()]


def test_episodes_of_several_agents_are_those_of_each_agent():
    """p completes one of its two actions, q three."""
    learner = make_two(MeanOfRewards)
    metrics = learner.update(episodes=episodes_of_two_agents())
    assert [metrics[mid]["total_loss"] for mid in "pq"] == pytest.approx([1.0, 2.0])
    assert [metrics[mid]["num_module_steps_trained"] for mid in "pq"] == [1, 3]
    again = LearnerGroup(config=learner.config, learner=learner).update(episodes=episodes_of_two_agents())
    assert [again[0][mid]["total_loss"] for mid in "pq"] == pytest.approx([1.0, 2.0])


@pytest.mark.parametrize("minibatch_size", [None, 2])
def test_episodes_without_a_module_that_is_trained_are_refused(minibatch_size):
    learner = make_two(MeanOfRewards, policies_to_train=["p"])
    (episode,) = episodes_of_two_agents()
    with pytest.raises(ValueError, match=r"policies_to_train=\['p'\]\) trains no module.* rows of \['q'\]"):
        learner.update(episodes=[episode.agent_episodes["q"]], minibatch_size=minibatch_size)


def test_policies_to_train_comes_from_the_config():
    config = make_config().multi_agent(policies_to_train=[DEFAULT_MODULE_ID])
    learner = SquaresLearner(config=config, module_spec=SPEC_WITH_SPACES)
    assert learner.should_module_be_updated(DEFAULT_MODULE_ID)
    assert not learner.should_module_be_updated("another")


class WithMomentum(PerModule):
    def configure_optimizers_for_module(self, module_id, config=None):
        self.register_optimizer(
            module_id=module_id,
            optimizer=lambda lr: optax.sgd(lr, momentum=0.9),
            params=self.get_parameters(self.module[module_id]),
            lr_or_lr_schedule=config.lr,
        )


def test_add_and_remove_modules_keep_the_others():
    learner, batch = make_two(WithMomentum), two_batches()
    learner.update(batch=batch)
    state = learner.get_state()
    spec = learner.add_module(
        module_id="r",
        module_spec=SPEC_WITH_SPACES,
        config_overrides=PPOConfig.overrides(gamma=0.5),
        new_should_module_be_updated=["q", "r"],
    )
    assert set(spec.rl_module_specs) == {"p", "q", "r"} and set(learner.module) == {"p", "q", "r"}
    grown = learner.get_state()
    for module_id in ("p", "q"):
        assert_equal_trees(grown["rl_module"][module_id], state["rl_module"][module_id])
    for module_id in ("p", "q"):
        assert_equal_trees(grown["optimizer"][module_id], state["optimizer"][module_id])
    steps = [counted["counters"].pop("steps_trained")["steps"] for counted in (grown, state)]
    assert_equal_trees({mid: n for mid, n in steps[0].items() if mid != "r"}, steps[1])
    assert_equal_trees(grown["counters"], state["counters"])

    before = learner.get_weights()
    three = batch | {"r": rows(8, 3)}
    learner.update(batch=three)
    after = learner.get_weights()
    # The new one starts without momentum, and its discount is its own.
    assert_module_moved("r", before, after, three, scale=0.5)
    assert_equal_trees({r: before[r] for r in ("p/a", "p/b")}, {r: after[r] for r in ("p/a", "p/b")})
    assert (after["q/a"] != before["q/a"]).any()

    left = learner.remove_module("q", new_should_module_be_updated=lambda module_id, batch: True)
    assert set(left.rl_module_specs) == {"p", "r"}
    assert learner.get_weights().keys() == {"p/a", "p/b", "r/a", "r/b"}
    assert_equal_trees(learner.get_state()["optimizer"]["p"], state["optimizer"]["p"])
    before = learner.get_weights()
    assert_equal_trees({r: before[r] for r in ("r/a", "r/b")}, {r: after[r] for r in ("r/a", "r/b")})
    learner.update(batch={"p": batch["p"], "r": three["r"]})
    assert all((learner.get_weights()[ref] != before[ref]).any() for ref in before)

    with pytest.raises(ValueError, match="Module 'q' does not exist"):
        learner.remove_module("q")
    with pytest.raises(ValueError, match="'p' exists already"):
        learner.add_module(module_id="p", module_spec=SPEC_WITH_SPACES)


class OneForAll(PerModule):
    """One optimizer over the parameters of all modules."""

    def configure_optimizers(self):
        self.register_optimizer(
            optimizer=lambda lr: optax.sgd(lr, momentum=0.9),
            params=[ref for module_id in self.module for ref in self.get_parameters(self.module[module_id])],
            lr_or_lr_schedule=LR,
        )


def test_an_optimizer_over_all_modules_starts_afresh_when_they_change():
    learner, batch = make_two(OneForAll), two_batches()
    before = learner.get_weights()
    learner.update(batch=batch)
    after = learner.get_weights()
    for module_id in ("p", "q"):
        assert_module_moved(module_id, before, after, batch)
    learner.add_module(module_id="r", module_spec=SPEC_WITH_SPACES)
    batch |= {"r": rows(8, 3)}
    before = learner.get_weights()
    learner.update(batch=batch)
    after = learner.get_weights()
    for module_id in ("p", "q", "r"):
        assert_module_moved(module_id, before, after, batch)


def test_a_module_that_does_not_fit_is_not_added():
    class NeedsValues(PerModule):
        @classmethod
        def rl_module_required_apis(cls):
            return [RLModule]

        def rl_module_is_compatible(self, module):
            return module.model_config.get("fits", True)

    learner = make_two(NeedsValues)
    before = learner.get_state()
    misfit = RLModuleSpec(
        module_class=TwoVectors, observation_space=OBS_SPACE, action_space=ACTION_SPACE, model_config={"fits": False}
    )
    with pytest.raises(ValueError, match=r"rl_module_is_compatible\(\) is False for module 'r', a TwoVectors"):
        learner.add_module(module_id="r", module_spec=misfit)
    # Nor do other changes of the same call remain.
    with pytest.raises(ValueError, match="'r', a TwoVectors"):
        learner.change_modules(added={"new": SPEC_WITH_SPACES, "r": misfit}, removed=["q"])
    assert set(learner.module) == {"p", "q"}
    assert_equal_trees(learner.get_state(), before)
    learner.update(batch=two_batches())


# -------------------------------------------------------------------------------------------------------------- state


def test_state_goes_to_another_learner_and_on_bit_for_bit():
    def make_ppo():
        return ppo_config(minibatch_size=16).build_learner()

    first, second = make_ppo(), make_ppo()
    update = {"num_epochs": 2, "minibatch_size": 16, "shuffle_batch_per_epoch": True}
    first.update(batch=ppo_rows(), timesteps=100, **update)
    state = first.get_state()
    arrays = {name: part for name, part in state.items() if name != "metrics_logger"}
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(arrays))
    second.set_state(state)
    assert_equal_trees(second.get_state(), state)
    metrics = [learner.update(batch=ppo_rows(seed=1), timesteps=200, **update) for learner in (first, second)]
    assert metrics[0] == metrics[1]
    assert_equal_trees(first.get_state(), second.get_state())
    # The first one's state was not touched by what followed.
    assert_equal_trees(state, jax.tree.map(np.array, state))
    kernel = state["rl_module"][DEFAULT_MODULE_ID]["pi/dense_0/kernel"]
    assert (kernel != first.get_weights()["default_policy/pi/dense_0/kernel"]).any()


def test_components_of_the_state(squares):
    everything = squares.get_state()
    names = {"rl_module", "optimizer", "extra", "connector", "host_connector", "counters", "metrics_logger"}
    assert set(everything) == names
    assert set(squares.get_state("rl_module")) == {"rl_module"}
    assert set(squares.get_state(["rl_module", "optimizer"])) == {"rl_module", "optimizer"}
    assert set(squares.get_state(not_components=["optimizer"])) == set(everything) - {"optimizer"}
    with pytest.raises(ValueError, match="Unknown components \\['weights'\\]"):
        squares.get_state("weights")
    # Only what is given changes.
    changed = jax.tree.map(np.zeros_like, everything["rl_module"])
    squares.set_state({"rl_module": changed})
    assert_equal_trees(squares.get_state(), everything | {"rl_module": changed})
    np.testing.assert_array_equal(squares.module[DEFAULT_MODULE_ID].a[...], np.zeros(3))
    squares.set_state(everything)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"rl_module": {DEFAULT_MODULE_ID: {"a": np.zeros(3), "c": np.zeros(3)}}}, "array 'c', which this module does"),
        ({"rl_module": {DEFAULT_MODULE_ID: {"b": np.zeros(4)}}}, r"'b' of shape \(4,\)"),
        ({"rl_module": {DEFAULT_MODULE_ID: {"b": np.zeros(3, complex)}}}, "dtype complex128"),
        ({"optimizer": {}}, r"optimizer has entries for \[\], but this learner needs entries for \['default_policy'\]"),
        ({"optimizer": {DEFAULT_MODULE_ID: {"x": np.zeros(3)}}}, "optimizer 'default_policy' does not fit: it lacks"),
        ({"weights": {}}, "Unknown components \\['weights'\\]"),
    ],
)
def test_states_that_do_not_fit(squares, state, message):
    before = squares.get_state()
    with pytest.raises(ValueError, match=message):
        squares.set_state(state)
    assert_equal_trees(squares.get_state(), before)


class Counts(ConnectorV2):
    """A host connector with a state, which takes numbers below 10."""

    count = 0

    def __call__(self, *, batch, **kwargs):
        return batch

    def get_state(self, components=None, *, not_components=None, **kwargs):
        return {"count": self.count}

    def set_state(self, state):
        self.count = state["count"]
        if self.count >= 10:
            raise ValueError("too many")


class CountsMore(Counts):
    pass


class CountsUp(Counts):
    """Takes no lower number than it has."""

    def set_state(self, state):
        if state["count"] < self.count:
            raise ValueError("not down")
        super().set_state(state)


def test_a_connector_that_does_not_go_back_is_told_of():
    config = make_config().learners(learner_connector=lambda *spaces: [CountsUp(), CountsMore()])
    learner = config.build_learner()
    counts = {"CountsUp": {"count": 5}, "CountsMore": {"count": 10}}
    with pytest.raises(ValueError, match="too many") as caught:
        learner.set_state({"host_connector": counts})
    assert caught.value.__notes__ == ["The earlier state of CountsUp could not be restored: ValueError('not down')"]


class CountsLate(Counts):
    """Has no state before it is given one."""

    count = None

    def get_state(self, components=None, *, not_components=None, **kwargs):
        if self.count is None:
            raise RuntimeError("not fitted")
        return {"count": self.count}


def test_a_connector_without_a_state_of_its_own_takes_one_over():
    learner = make_config().learners(learner_connector=lambda *spaces: [CountsLate()]).build_learner()
    learner.set_state({"host_connector": {"CountsLate": {"count": 3}}})
    assert learner.get_state(components="host_connector") == {"host_connector": {"CountsLate": {"count": 3}}}


@pytest.mark.parametrize(
    ("counts", "error", "message"),
    [({"Counts": 1, "CountsMore": 10}, ValueError, "too many"), ({"Counts": 1, "Other": 1}, KeyError, "Other")],
)
def test_a_state_that_a_connector_refuses_changes_nothing(counts, error, message):
    config = make_config().learners(learner_connector=lambda *spaces: [Counts(), CountsMore()])
    learner = config.build_learner()
    before = learner.get_state()
    assert before["host_connector"] == {"Counts": {"count": 0}, "CountsMore": {"count": 0}}
    weights = {DEFAULT_MODULE_ID: {"a": np.zeros(3, np.float32), "b": np.zeros(3, np.float32)}}
    given = {"rl_module": weights, "host_connector": {name: {"count": n} for name, n in counts.items()}}
    with pytest.raises(error, match=message):
        learner.set_state(before | given)
    assert_equal_trees(learner.get_state(), before)
    assert (learner.module[DEFAULT_MODULE_ID].a[...] != 0.0).any()


def test_set_weights(squares):
    before = squares.get_weights()
    squares.set_weights({DEFAULT_MODULE_ID: {"a": np.ones(3, np.float32)}})
    assert_equal_trees(squares.get_weights(), {A: np.ones(3, np.float32), B: before[B]})
    with pytest.raises(KeyError, match="No module 'other'"):
        squares.set_weights({DEFAULT_MODULE_ID: {"a": np.zeros(3)}, "other": {}})
    assert_equal_trees(squares.get_weights(), {A: np.ones(3, np.float32), B: before[B]})
    np.testing.assert_array_equal(squares.module[DEFAULT_MODULE_ID].a[...], np.ones(3))


def test_parameters_and_their_refs(squares):
    module = squares.module[DEFAULT_MODULE_ID]
    assert [squares.get_param_ref(p) for p in squares.get_parameters(module)] == [A, B]
    with pytest.raises(ValueError, match="that are not in the Learner's module"):
        squares.get_param_ref(SPEC_WITH_SPACES.build(seed=0).a)


# ------------------------------------------------------------------------------------------------------ non-finite


class Poisoned(SquaresLearner):
    """The second minibatch has gradients that are not finite for `a` alone."""

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        a, b = self.errors(batch, fwd_out)
        poison = self.masked_mean(batch["poison"], batch)
        return a * jnp.where(poison > 0, jnp.nan, 1.0) + 2.0 * b


def poisoned_rows():
    return rows() | {"poison": np.repeat(np.float32([0, 1, 0]), 4)}


def test_non_finite_gradients_become_numbers_or_skip_the_step():
    batch = poisoned_rows()
    thirds = [{k: v[i : i + 4] for k, v in batch.items()} for i in (0, 4, 8)]
    for skip in (False, True):
        learner = make_config(Poisoned).framework(torch_skip_nan_gradients=skip).build_learner()
        weights = learner.get_weights()
        learner.update(batch=batch, minibatch_size=4)
        for i, third in enumerate(thirds):
            own = gradients(weights, third)
            if i == 1:
                own = {A: np.zeros(3), B: np.zeros(3) if skip else own[B]}
            weights = {ref: weights[ref] - LR * own[ref] for ref in weights}
        for ref, value in learner.get_weights().items():
            np.testing.assert_allclose(value, weights[ref], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("is_flat", [True, False])
def test_an_optimizer_of_any_size_takes_non_finite_gradients_as_numbers(is_flat):
    optimizer = RegisteredOptimizer("m", "o", optax.sgd, refs=("w",), lr=0.5, is_flat=is_flat)
    params, gradients = {"w": jnp.zeros(2)}, {"w": jnp.array([jnp.nan, 1.0])}
    new, _ = optimizer.step(0.5, gradients, optimizer.init(params), params)
    np.testing.assert_array_equal(new["w"], [0.0, -0.5])


class BadGradient(SquaresLearner):
    """A finite loss with an infinite derivative in `a`: the root of 0."""

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        a, b = self.errors(batch, fwd_out)
        return a + 2.0 * b + jnp.sqrt(jnp.sum(jnp.square(0.0 * self.module[module_id].a[...])))


def test_check_nans_names_the_update_the_module_and_the_tensor():
    learner = make_config(Poisoned).debugging(check_nans=True).build_learner()
    metrics = learner.update(batch=rows() | {"poison": np.zeros(12, np.float32)})
    assert not any("finite" in name for name in metrics[DEFAULT_MODULE_ID])
    with pytest.raises(FloatingPointError, match="Non-finite loss in module 'default_policy', iteration 2"):
        learner.update(batch=poisoned_rows(), minibatch_size=4)
    # The learner is still there.
    learner.update(batch=rows() | {"poison": np.zeros(12, np.float32)})
    learner = make_config(BadGradient).debugging(check_nans=True).build_learner()
    where = "gradient of default_policy/a in module 'default_policy', iteration 1"
    with pytest.raises(FloatingPointError, match=where):
        learner.update(batch=rows())


# ------------------------------------------------------------------------------------- PPO: microbatches of a minibatch


def ppo_config(learner_class=PPOLearner, **training):
    return (
        PPOConfig()
        .environment(observation_space=OBS_SPACE, action_space=ACTION_SPACE)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .training(lr=0.01, entropy_coeff=0.01, grad_clip=0.5, **training)
        .learners(learner_class=learner_class)
    )


def ppo_rows(n=64, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "obs": rng.normal(size=(n, 3)).astype(np.float32),
        "actions": rng.integers(0, 2, n).astype(np.int32),
        "action_logp": np.full(n, np.log(0.5), np.float32),
        "action_dist_inputs": np.zeros((n, 2), np.float32),
        "advantages": rng.normal(size=n).astype(np.float32),
        "value_targets": rng.normal(size=n).astype(np.float32),
        "loss_mask": rng.random(n) < 0.7,
    }


def test_gradients_added_up_over_microbatches_are_the_same(monkeypatch):
    results = []
    for rows_per_microbatch in (None, 8):
        monkeypatch.setattr(gradient_step, "gradient_rows_per_microbatch", lambda devices, n=rows_per_microbatch: n)
        learner = ppo_config(minibatch_size=32).build_learner()
        assert microbatches_per_minibatch(learner, {DEFAULT_MODULE_ID: 32}, 1) == (
            1 if rows_per_microbatch is None else 4
        )
        metrics = learner.update(batch=ppo_rows(), num_epochs=2, minibatch_size=32, shuffle_batch_per_epoch=True)
        results.append((learner.get_weights(), metrics[DEFAULT_MODULE_ID]))
    (weights, metrics), (weights_in_microbatches, metrics_in_microbatches) = results
    for ref in weights:
        np.testing.assert_allclose(weights_in_microbatches[ref], weights[ref], rtol=1e-6, atol=1e-6, err_msg=ref)
    assert metrics.keys() == metrics_in_microbatches.keys()
    for name in metrics:
        assert metrics_in_microbatches[name] == pytest.approx(metrics[name], rel=1e-5, abs=1e-6), name


@pytest.mark.parametrize(("rows_per_microbatch", "num_devices"), [(8, 1), (None, 2)])
def test_explained_variance_of_targets_far_from_zero(rows_per_microbatch, num_devices, monkeypatch):
    monkeypatch.setattr(gradient_step, "gradient_rows_per_microbatch", lambda devices: rows_per_microbatch)
    learner = ppo_config().training(lr=0.0).learners(num_cpus_per_learner=num_devices).build_learner()
    batch = ppo_rows()
    batch["value_targets"] += 5000.0
    metrics = learner.update(batch=batch, minibatch_size=64)[DEFAULT_MODULE_ID]
    values = learner.module[DEFAULT_MODULE_ID].compute_values({Columns.OBS: batch["obs"]})
    targets = batch["value_targets"].astype(float)[batch["loss_mask"]]
    errors = targets - np.asarray(values, float)[batch["loss_mask"]]
    assert metrics["vf_explained_var"] == pytest.approx(1.0 - errors.var() / targets.var(), abs=1e-3)


def test_divergence_without_its_term_in_the_loss():
    batch = ppo_rows()
    # Both actions in every state, as often as the old policy takes them: the estimate is the divergence itself.
    batch |= {name: np.repeat(batch[name][::2], 2, axis=0) for name in ("obs", "loss_mask")}
    batch["actions"] = np.tile(np.arange(2, dtype=np.int32), 32)
    results = []
    for use_kl_loss in (True, False):
        learner = ppo_config(use_kl_loss=use_kl_loss, kl_coeff=0.2).build_learner()
        if not use_kl_loss:
            del batch["action_dist_inputs"]
        results.append(learner.update(batch=batch)[DEFAULT_MODULE_ID])
    exact, sampled = (found["mean_kl_loss"] for found in results)
    assert exact > 1e-4 and sampled == pytest.approx(exact, rel=1e-3)
    assert results[1]["curr_kl_coeff"] == pytest.approx(0.2)


def concatenated_sizes(jaxpr):
    """Lengths of the float vectors that a program concatenates, loops and branches included."""
    found = set()
    for equation in jaxpr.eqns:
        if equation.primitive.name == "concatenate":
            out = equation.outvars[0].aval
            found |= {out.size} if out.ndim == 1 and out.dtype == jnp.float32 else set()
        for inner in jaxprs_in_params(equation.params):
            found |= concatenated_sizes(inner)
    return found


def test_many_parameters_are_never_laid_end_to_end(monkeypatch):
    monkeypatch.setattr(gradient_step, "gradient_rows_per_microbatch", lambda devices: 8)
    weights, largest = [], []
    for limit in (2**16, 40):
        monkeypatch.setattr(reductions, "LARGEST_VECTOR", limit)
        learner = ppo_config().learners(num_cpus_per_learner=2).build_learner()
        learner.update(batch=ppo_rows(), minibatch_size=32, num_epochs=2)
        weights.append(learner.get_weights())
        columns = jax.tree.map(lambda x: x[None], ppo_rows(32))
        items = {DEFAULT_MODULE_ID: Items(columns, None, RowForm(is_masked=True), 32)}
        plan = learner.plan(minibatch_size=32)
        fit = functools.partial(learner.pure_update, plan=plan, axis_name="devices")
        program = jax.make_jaxpr(fit, axis_env=[("devices", 2)])(
            host_view(learner.state), items, learner.settings(), counters.zero()
        )
        largest.append(max(concatenated_sizes(program.jaxpr)))
    num_params = sum(value.size for value in weights[0].values())
    assert largest[0] >= num_params and largest[1] < num_params / 2
    for ref, value in weights[0].items():
        np.testing.assert_allclose(weights[1][ref], value, rtol=1e-5, atol=1e-6, err_msg=ref)


class NotLinear(PPOLearner):
    """A function of a mean, which no sum over microbatches can give."""

    def compute_loss_for_module(self, **kwargs):
        loss = super().compute_loss_for_module(**kwargs)
        squared = jnp.square(self.masked_mean(kwargs["batch"][Columns.ADVANTAGES], kwargs["batch"]))
        return loss + squared, {"squared": squared}


class StillLinear(NotLinear):
    loss_is_linear_in_means = True


class LinearAndSaysSo(PPOLearner):
    loss_is_linear_in_means = True

    def compute_loss_for_module(self, **kwargs):
        return super().compute_loss_for_module(**kwargs)


class OtherLosses(PPOLearner):
    def compute_losses(self, **kwargs):
        return super().compute_losses(**kwargs)


class OtherHooks(PPOLearner):
    def postprocess_gradients_for_module(self, **kwargs):
        return super().postprocess_gradients_for_module(**kwargs)


def test_an_overridden_loss_is_taken_whole(monkeypatch):
    monkeypatch.setattr(gradient_step, "gradient_rows_per_microbatch", lambda devices: 8)

    def microbatches(learner_class):
        return microbatches_per_minibatch(ppo_config(learner_class).build_learner(), {DEFAULT_MODULE_ID: 64}, 1)

    assert (
        microbatches(PPOLearner)
        == microbatches(OtherHooks)
        == microbatches(LinearAndSaysSo)
        == microbatches(StillLinear)
        == 8
    )
    assert microbatches(NotLinear) == microbatches(OtherLosses) == 1
    batch = ppo_rows()
    metrics = ppo_config(NotLinear).build_learner().update(batch=batch)[DEFAULT_MODULE_ID]
    mean = batch["advantages"][batch["loss_mask"]].mean()
    assert metrics["squared"] == pytest.approx(np.square(mean), rel=1e-4)


class LinearPerOptimizer(PPOLearner):
    loss_is_linear_in_means = True

    def configure_optimizers_for_module(self, module_id, config=None):
        module = self.module[module_id]
        parts = {"policy": [module.pi, module.encoder.actor], "value": [module.vf, module.encoder.critic]}
        for name, part in parts.items():
            self.register_optimizer(
                module_id=module_id, optimizer_name=name, optimizer=optax.sgd, params=part, lr_or_lr_schedule=config.lr
            )

    def compute_loss_for_module(self, **kwargs):
        loss = super().compute_loss_for_module(**kwargs)
        return {"policy": loss, "value": 2.0 * self.metrics.peek((kwargs["module_id"], "vf_loss"))}


class PerOptimizer(LinearPerOptimizer):
    loss_is_linear_in_means = False


def test_losses_per_optimizer_in_microbatches(monkeypatch):
    monkeypatch.setattr(gradient_step, "gradient_rows_per_microbatch", lambda devices: 16)
    weights = []
    for learner_class in (LinearPerOptimizer, PerOptimizer):
        learner = ppo_config(learner_class).build_learner()
        learner.update(batch=ppo_rows())
        weights.append(learner.get_weights())
    for ref in weights[0]:
        np.testing.assert_allclose(weights[0][ref], weights[1][ref], rtol=1e-5, atol=1e-6, err_msg=ref)


# ------------------------------------------------------------------------------------------- modules of other kinds


class Noisy(RLModule, ValueFunctionAPI):
    """Dropout and batch statistics."""

    def setup(self):
        self.first = nnx.Linear(3, 8, rngs=self.rngs)
        self.norm = nnx.BatchNorm(8, momentum=0.5, rngs=self.rngs)
        self.dropout = nnx.Dropout(0.5, rngs=self.rngs)
        self.pi = nnx.Linear(8, 2, rngs=self.rngs)
        self.vf = nnx.Linear(8, 1, rngs=self.rngs)

    def _forward(self, batch):
        hidden = self.norm(self.first(batch[Columns.OBS]), use_running_average=True)
        return {Columns.ACTION_DIST_INPUTS: self.pi(hidden)}

    def _forward_train(self, batch):
        hidden = self.dropout(self.norm(self.first(batch[Columns.OBS]), use_running_average=False))
        return {Columns.ACTION_DIST_INPUTS: self.pi(hidden)}

    def compute_values(self, batch, embeddings=None):
        return self.vf(self.first(batch[Columns.OBS]))[..., 0]


class Torso(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(3)(linen.tanh(linen.Dense(8)(x)))


class Wrapped(RLModule, ValueFunctionAPI):
    """A linen network."""

    def setup(self):
        self.net = nnx.bridge.ToNNX(Torso(), rngs=self.rngs)
        self.net.lazy_init(jnp.zeros((1, 3)))

    def _forward(self, batch):
        return {Columns.ACTION_DIST_INPUTS: self.net(batch[Columns.OBS])[..., :2]}

    def compute_values(self, batch, embeddings=None):
        return self.net(batch[Columns.OBS])[..., 2]


@pytest.mark.parametrize("module_class", [Noisy, Wrapped])
def test_modules_with_random_layers_statistics_or_linen_networks_train(module_class, monkeypatch):
    monkeypatch.setattr(gradient_step, "gradient_rows_per_microbatch", lambda devices: 8)
    learner = ppo_config().rl_module(rl_module_spec=RLModuleSpec(module_class=module_class)).build_learner()
    # Neither batch statistics nor random streams, which a wrapped linen module has, are the same for parts of a batch.
    assert microbatches_per_minibatch(learner, {DEFAULT_MODULE_ID: 32}, 1) == 1
    before = learner.get_state()
    losses = []
    for _ in range(4):
        metrics = learner.update(batch=ppo_rows(), minibatch_size=32, num_epochs=4, shuffle_batch_per_epoch=True)
        losses.append(metrics[DEFAULT_MODULE_ID]["total_loss"])
    after = learner.get_state()
    assert np.isfinite(losses).all()
    if module_class is Wrapped:  # The other one's losses are noise, mostly.
        assert losses[-1] < losses[0]
    states = [state["rl_module"][DEFAULT_MODULE_ID] for state in (before, after)]
    for ref in learner.get_weights():
        name = ref.removeprefix(f"{DEFAULT_MODULE_ID}/")
        assert (states[1][name] != states[0][name]).any(), ref
    if module_class is Noisy:
        others = {f"{DEFAULT_MODULE_ID}/{name}" for name in states[1]} - set(learner.get_weights())
        assert others == {"default_policy/norm/mean", "default_policy/norm/var"}
        batch_mean = (ppo_rows()["obs"] @ np.asarray(learner.module[DEFAULT_MODULE_ID].first.kernel[...])).mean(0)
        batch_mean += np.asarray(learner.module[DEFAULT_MODULE_ID].first.bias[...])
        np.testing.assert_allclose(states[1]["norm/mean"], batch_mean, atol=0.2)
    # A state goes on as the learner itself does, random streams included.
    learner.update(batch=ppo_rows())
    expected = learner.get_state()
    learner.set_state(after)
    learner.update(batch=ppo_rows())
    assert_equal_trees(learner.get_state(), expected)


class DropoutOnly(TwoVectors):
    def setup(self):
        super().setup()
        self.dropout = nnx.Dropout(0.5, rngs=self.rngs)

    def _forward_train(self, batch):
        return super()._forward({Columns.OBS: self.dropout(batch[Columns.OBS])})


def test_random_layers_draw_anew_in_every_minibatch_and_update():
    learner = make(WithMetrics, RLModuleSpec(module_class=DropoutOnly), lr=0.0)
    batch = {k: np.ones_like(v) for k, v in rows(32).items()}
    losses = [learner.update(batch=batch)[DEFAULT_MODULE_ID]["total_loss"] for _ in range(3)]
    # Two passes over the same rows: the second one's loss is with other draws than a single pass's.
    learner.set_state({"counters": make(WithMetrics, RLModuleSpec(module_class=DropoutOnly)).get_state()["counters"]})
    losses.append(learner.update(batch=batch, num_epochs=2)[DEFAULT_MODULE_ID]["total_loss"])
    assert len(set(losses)) == 4


class DropsValues(DefaultPPORLModule):
    def setup(self):
        super().setup()
        self.dropout = nnx.Dropout(0.5, rngs=self.rngs)

    def compute_values(self, batch, embeddings=None):
        return self.dropout(super().compute_values(batch, embeddings))


@pytest.mark.parametrize("module_class", [DefaultPPORLModule, DropsValues])
def test_random_layers_draw_anew_in_every_learner_pipeline(module_class):
    learner = ppo_config().rl_module(rl_module_spec=RLModuleSpec(module_class=module_class)).build_learner()
    rng, flags = np.random.default_rng(0), np.zeros((8, 4), bool)
    block = {name: rng.normal(size=(8, 4, 3)).astype(np.float32) for name in ("obs", "final_obs")}
    block |= {"rewards": np.ones((8, 4), np.float32), "terminateds": flags, "truncateds": flags}
    state, counter = host_view(learner.state), counters.zero()
    connect = jax.jit(functools.partial(learner.pure_update.connect, axis_name=None))

    def targets(num_updates):
        before = state.replace(num_updates=jnp.uint32(num_updates))
        _, batch = connect(before, {DEFAULT_MODULE_ID: block}, learner.settings(), counter)
        return np.asarray(batch[DEFAULT_MODULE_ID]["value_targets"])

    np.testing.assert_array_equal(targets(0), targets(0))
    assert (targets(0) == targets(1)).all() == (module_class is DefaultPPORLModule)


class OwnLoss(TwoVectors, SelfSupervisedLossAPI):
    """Brings its loss along."""

    rows_are_independent = True

    def compute_self_supervised_loss(self, *, learner, module_id, config, batch, fwd_out):
        error = fwd_out[Columns.ACTION_DIST_INPUTS][:, 0] - batch["target"]
        learner.metrics.log_value((module_id, "own"), 1.0)
        return jnp.square(learner.masked_mean(error, batch))


def test_a_module_can_bring_its_loss_along(monkeypatch):
    monkeypatch.setattr(gradient_step, "gradient_rows_per_microbatch", lambda devices: 4)

    class Linear(SquaresLearner):
        loss_is_linear_in_means = True

    assert microbatches_per_minibatch(make(Linear), {DEFAULT_MODULE_ID: 12}, 1) == 3
    learner = make(Linear, RLModuleSpec(module_class=OwnLoss))

    def own_gradients(weights, batch):
        obs, target = batch["obs"].astype(float), batch["target"].astype(float)
        return {A: 2.0 * (obs @ weights[A] - target).mean() * obs.mean(0), B: np.zeros(3)}

    assert assert_step(learner, rows(), own_gradients)["own"] == 1.0


# ------------------------------------------------------------------------------------------------------------- columns


class Restless(SquaresLearner):
    """Handles its batch as a pytree, a mapping and a dict."""

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        assert Columns.LOSS_MASK in batch and batch.get("nothing") is None
        as_tree = jax.tree.map(lambda x: x, batch)
        merged = batch | {"more": as_tree["target"]}
        inner = jax.jit(lambda columns: columns["target"] * 1.0)(batch)
        error = fwd_out[Columns.ACTION_DIST_INPUTS] - (merged["more"] + inner - {**batch}["target"])[:, None]
        means = self.masked_means({"a": jnp.square(error[:, 0]), "b": jnp.square(error[:, 1])}, merged)
        return means["a"] + 2.0 * means["b"]


def test_a_loss_may_treat_its_batch_as_any_dict():
    assert_step(make(Restless), rows())


class InGroups(SquaresLearner):
    """Uses the number of rows of its minibatch, as losses over groups or pairs of rows do."""

    rows_seen: ClassVar[list[int]] = []

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        self.rows_seen.append(batch["target"].shape[0])
        error = fwd_out[Columns.ACTION_DIST_INPUTS] - batch["target"][:, None]
        means = jnp.mean(jnp.square(error.reshape(2, 3, 2)), axis=(0, 1))
        return means[0] + 2.0 * means[1]


def test_a_loss_may_use_the_number_of_its_rows():
    InGroups.rows_seen.clear()
    learner = make_config(InGroups).learners(num_shuffle_shards=2).build_learner()
    assert_step(learner, rows(6), minibatch_size=6)
    assert_step(learner, rows(6))
    learner.update(batch=rows(12), minibatch_size=6)
    assert set(InGroups.rows_seen) == {6}


def test_columns_without_a_part_in_the_loss_are_not_carried(monkeypatch):
    carried = []

    class Recording(update.PackedItems):
        def __init__(self, items, names):
            carried.append(set(names))
            super().__init__(items, names)

    monkeypatch.setattr(update, "PackedItems", Recording)
    unread = {"rewards": np.ones(12, np.float32), "nested": {"x": np.ones((12, 50), np.float32)}}
    assert_step(make(), rows() | unread, minibatch_size=12)
    assert carried == [{"obs", "target"}]
    carried.clear()
    assert_step(make(), rows() | unread | {Columns.LOSS_MASK: np.ones(12, bool)}, minibatch_size=12)
    assert carried == [{"obs", "target", Columns.LOSS_MASK}]


def test_sizes_that_do_not_fit():
    with pytest.raises(ValueError, match="num_shuffle_shards=3 must be a multiple of the number of devices, 2"):
        make_config().learners(num_cpus_per_learner=2, num_shuffle_shards=3).build_learner().update(batch=rows())
    learner = make_config().learners(num_shuffle_shards=4).build_learner()
    with pytest.raises(ValueError, match="minibatch_size=6 must be a positive multiple of 4, .*minibatch_size=4"):
        learner.update(batch=rows(), minibatch_size=6)


def test_rows_that_do_not_divide_by_the_shards_are_filled_up_and_masked():
    learner = make_config().learners(num_shuffle_shards=8).build_learner()
    assert_step(learner, rows(13))


def test_weights_go_back_where_they_came_from():
    learner, batch = make(), rows()
    weights = learner.get_weights()
    learner.update(batch=batch)
    assert any(np.any(weights[ref] != value) for ref, value in learner.get_weights().items())
    learner.set_weights(weights)
    assert_equal_trees(weights, learner.get_weights())
