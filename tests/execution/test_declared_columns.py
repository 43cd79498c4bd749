"""Columns of sampled steps that a loss, a module or a connector declares: they arrive wherever steps go."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.counter import CounterEnv
from jaxrl_stack.algorithms.dqn.default_dqn_rl_module import DefaultDQNRLModule
from jaxrl_stack.algorithms.dqn.dqn_learner import DQNLearner
from jaxrl_stack.algorithms.ppo.default_ppo_rl_module import DefaultPPORLModule
from jaxrl_stack.algorithms.ppo.ppo_learner import PPOLearner
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.columns import Columns, declared_columns
from jaxrl_stack.core.rl_module import RLModuleSpec
from tests import programs
from tests.execution.test_replay_of_agents import PRIORITIZED, Numbered, Pair, config_of

CONFIDENCE, HINT = "confidence", "hint"
ENVS = ("gymnax/CartPole-v1", "CartPole-v1")


def confidence_of(obs):
    """A number that says of which observation it is."""
    return 1.0 + jnp.sum(obs, axis=-1)


class _Confident:
    def _forward_exploration(self, batch, **kwargs):
        return {**super()._forward_exploration(batch, **kwargs), CONFIDENCE: confidence_of(batch[Columns.OBS])}


class ConfidentPPO(_Confident, DefaultPPORLModule):
    pass


class ConfidentDQN(_Confident, DefaultDQNRLModule):
    pass


class _Reads:
    """Logs how far each column is from the observations of its rows, and how large it is."""

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        loss = super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)
        for name in {CONFIDENCE, HINT}.intersection(declared_columns(self)):
            error = jnp.abs(batch[name] - confidence_of(batch[Columns.OBS]))
            means = self.masked_means({"error": error, "size": jnp.abs(batch[name])}, batch)
            for key, mean in means.items():
                self.metrics.log_value((module_id, f"{name}_{key}"), mean)
        return loss


class ReadingPPO(_Reads, PPOLearner):
    columns_from_acting = (CONFIDENCE,)


class ReadingDQN(_Reads, DQNLearner):
    columns_from_acting = (CONFIDENCE,)


class AddsHint(ConnectorV2):
    """An env-to-module connector that makes a column of its own."""

    def apply(self, state, batch, ctx):
        return state, {mid: {**own, HINT: confidence_of(own[Columns.OBS])} for mid, own in batch.items()}


class ReadsHint(ConnectorV2):
    """A learner connector that makes one column of another one."""

    columns_from_acting = (HINT,)

    def apply(self, state, batch, ctx):
        return state, {mid: {**own, CONFIDENCE: 1.0 * own[HINT]} for mid, own in batch.items()}


class HintPPO(_Reads, PPOLearner):
    columns_from_acting = (HINT,)


class HintDQN(_Reads, DQNLearner):
    columns_from_acting = (HINT,)


def confident_dqn(env=ENVS[0], **model):
    """DQN whose loss reads an output of its module; one program per environment and model."""
    config = programs.dqn(env, **model).learners(learner_class=ReadingDQN).training(n_step=2)
    return config.rl_module(rl_module_spec=RLModuleSpec(module_class=ConfidentDQN))


def with_hints(config):
    return config.env_runners(env_to_module_connector=lambda *args, **kwargs: AddsHint())


def results_of(config):
    algo = config.build_algo()
    result = algo.train()["learners"]
    algo.stop()
    return {mid: own for mid, own in result.items() if mid in algo.learner.template}


def assert_arrived(config, name=CONFIDENCE):
    for own in results_of(config).values():
        assert own[f"{name}_size"] > 0.1
        assert own[f"{name}_error"] == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("env", ENVS)
def test_an_output_of_the_module_arrives_in_the_loss_of_ppo(env):
    config = programs.ppo(env).learners(learner_class=ReadingPPO)
    assert_arrived(config.rl_module(rl_module_spec=RLModuleSpec(module_class=ConfidentPPO)))


@pytest.mark.parametrize("model", [{}, {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 3}])
@pytest.mark.parametrize("env", ENVS)
def test_an_output_of_the_module_arrives_in_the_loss_of_dqn(env, model):
    assert_arrived(confident_dqn(env, **model))


@pytest.mark.parametrize("env", [Pair, Numbered])
def test_it_arrives_with_several_agents_and_priorities(env):
    config = config_of(env=env, replay=PRIORITIZED).learners(learner_class=ReadingDQN)
    assert_arrived(config.rl_module(rl_module_spec=RLModuleSpec(module_class=ConfidentDQN)))


@pytest.mark.usefixtures("fake_ray")
def test_it_arrives_from_and_in_actors():
    algo = confident_dqn(ENVS[1]).learners(num_learners=1).env_runners(num_env_runners=2).build_algo()
    result = algo.train()["learners"][DEFAULT_MODULE_ID]
    algo.stop()
    assert result["confidence_error"] == pytest.approx(0.0, abs=1e-5) and result["confidence_size"] > 0.1


@pytest.mark.parametrize("env", ENVS)
@pytest.mark.parametrize(("program", "learner"), [(programs.ppo, HintPPO), (programs.dqn, HintDQN)])
def test_a_column_of_a_connector_arrives_in_the_loss(env, program, learner):
    assert_arrived(with_hints(program(env)).learners(learner_class=learner), HINT)


class TellsConfidence(CounterEnv):
    """Returns the column itself: that of the observation before the step, which is t."""

    def step_env(self, key, state, action, params):
        *step, _ = super().step_env(key, state, action, params)
        return *step, {CONFIDENCE: 1.0 + state, "other": state}


@pytest.mark.parametrize(("program", "learner"), [(programs.ppo, ReadingPPO), (programs.dqn, ReadingDQN)])
def test_info_of_a_jax_environment_arrives_in_the_loss(program, learner):
    assert_arrived(program(TellsConfidence).learners(learner_class=learner))


def test_a_learner_connector_declares_what_it_reads():
    class Learner(ReadingDQN):
        columns_from_acting = property(lambda self: ())

        def compute_loss_for_module(self, *, batch, **kwargs):
            self.metrics.log_value((kwargs["module_id"], "arrived"), self.masked_mean(batch[CONFIDENCE], batch))
            return DQNLearner.compute_loss_for_module(self, batch=batch, **kwargs)

    config = with_hints(programs.dqn()).learners(learner_class=Learner, learner_connector=lambda *args: ReadsHint())
    assert results_of(config)[DEFAULT_MODULE_ID]["arrived"] > 0.1


def test_a_module_declares_and_reads_a_column_of_a_connector():
    class Hinted(DefaultDQNRLModule):
        columns_from_acting = (HINT,)

        def _forward_train(self, batch, **kwargs):
            return {**super()._forward_train(batch, **kwargs), "seen": batch[HINT]}

    class Learner(DQNLearner):
        def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
            error = self.masked_mean(jnp.abs(fwd_out["seen"] - confidence_of(batch[Columns.OBS])), batch)
            self.metrics.log_value((module_id, "error"), error)
            return super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)

    config = with_hints(programs.dqn()).rl_module(rl_module_spec=RLModuleSpec(module_class=Hinted))
    result = results_of(config.learners(learner_class=Learner))[DEFAULT_MODULE_ID]
    assert result["error"] == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("env", ENVS)
@pytest.mark.parametrize(("program", "learner"), [(programs.ppo, ReadingPPO), (programs.dqn, ReadingDQN)])
def test_an_error_names_who_should_have_recorded_a_declared_column(env, program, learner):
    with pytest.raises(ValueError, match=r"the columns \['confidence'\].*RLModule\.forward_exploration\(\).*connector"):
        program(env).learners(learner_class=learner).build_algo()


def test_an_error_says_how_to_declare_a_column_that_the_loss_looks_up():
    class Undeclared(ReadingDQN):
        columns_from_acting = property(lambda self: ())

        def compute_loss_for_module(self, *, batch, **kwargs):
            return super().compute_loss_for_module(batch=batch, **kwargs) + 0.0 * batch[CONFIDENCE].sum()

    config = programs.dqn().learners(learner_class=Undeclared)
    algo = config.rl_module(rl_module_spec=RLModuleSpec(module_class=ConfidentDQN)).build_algo()
    with pytest.raises(ValueError, match=r"columns_from_acting = \('confidence',\) in Undeclared"):
        algo.train()
    algo.stop()


def test_names_of_base_classes_are_added_and_a_string_is_refused():
    class More(ReadingPPO):
        columns_from_acting = (HINT, CONFIDENCE)

    class Wrong(ReadingPPO):
        columns_from_acting = CONFIDENCE

    config = programs.ppo()
    assert set(declared_columns(More(config=config))) >= {HINT, CONFIDENCE, Columns.ACTION_LOGP}
    with pytest.raises(ValueError, match=r"Wrong\.columns_from_acting = 'confidence' must be a tuple"):
        declared_columns(Wrong(config=config))


@pytest.mark.parametrize("env", ENVS)
def test_memory_counts_declared_columns(env):
    algo = confident_dqn(env).build_algo()
    estimate = algo.memory_estimate()
    algo.stop()
    assert estimate["replay"]["columns"][CONFIDENCE] == 4 * 200
    assert estimate["train_batch"]["columns"][CONFIDENCE] == 4 * 8


def test_a_checkpoint_with_the_column_continues(tmp_path):
    config = confident_dqn().training(store_buffer_in_checkpoints=True)
    algo = config.build_algo()
    algo.train()
    path = algo.save_to_path(tmp_path / "checkpoint")
    expected = algo.train()["learners"][DEFAULT_MODULE_ID]
    other = config.build_algo()
    other.restore_from_path(path)
    result = other.train()["learners"][DEFAULT_MODULE_ID]
    assert result["confidence_size"] == expected["confidence_size"]
    jax.tree.map(np.testing.assert_array_equal, other.get_weights(), algo.get_weights())
    algo.stop()
    other.stop()
