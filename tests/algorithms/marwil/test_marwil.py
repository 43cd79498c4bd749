"""MARWIL and BC: values worked out by hand, what their settings do, and training on recorded steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.algorithms.bc import BCConfig, BCLearner
from jaxrl_stack.algorithms.bc.bc_catalog import BCCatalog
from jaxrl_stack.algorithms.bc.default_bc_rl_module import DefaultBCRLModule
from jaxrl_stack.algorithms.marwil import MARWILConfig, MARWILLearner
from jaxrl_stack.algorithms.marwil.marwil_step import MARWILStep
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.algorithms.ppo.default_ppo_rl_module import DefaultPPORLModule
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.distribution.jax_distribution import SquashedGaussian
from jaxrl_stack.core.models.base import ENCODER_OUT
from jaxrl_stack.core.models.configs import MLPHeadConfig
from jaxrl_stack.core.rl_module.apis import ValueFunctionAPI
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.execution.offline_step import OfflineStep
from jaxrl_stack.ops import returns
from tests.execution.test_offline_step import Given, InMemory, recorded

FACTS = json.loads((Path(__file__).parents[2] / "reference" / "rllib_api.json").read_text())["algorithms"]
OBS = gym.spaces.Box(-np.inf, np.inf, (4,))
BOTH = pytest.mark.parametrize("config_class", [BCConfig, MARWILConfig], ids=["bc", "marwil"])
LSTM = {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 6}


class Recorded(Given):
    dataset = InMemory([recorded()])


def config_of(config_class, *, action_space=None, model_config=None, **training):
    return (
        config_class()
        .environment(observation_space=OBS, action_space=action_space or gym.spaces.Discrete(2))
        .training(**{"train_batch_size_per_learner": 16, "lr": 0.01, **training})
        .rl_module(model_config={"fcnet_hiddens": [8], **(model_config or {})})
        .offline_data(offline_data_class=Recorded)
        .debugging(seed=3)
    )


# ----------------------------------------------------------------------------------------------------------- settings


@BOTH
def test_settings_and_defaults_are_rllibs(config_class):
    facts = FACTS[config_class.__name__.removesuffix("Config")]
    config = config_class()
    for name, fact in {**facts["training"], **facts["own_attributes"]}.items():
        if not name.startswith("_"):
            assert repr(getattr(config, name)) == (fact["default"] if isinstance(fact, dict) else fact), name
    assert (config.lr, config.train_batch_size, config.is_offline) == (1e-4, 2000, True)
    assert config.model_config["vf_share_layers"] is False
    is_bc = config_class is BCConfig
    assert (config.materialize_data, config.materialize_mapped_data) == (not is_bc, is_bc)


def test_classes_are_rllibs():
    assert BCConfig().get_default_learner_class() is BCLearner and issubclass(BCLearner, MARWILLearner)
    assert MARWILConfig().get_default_learner_class() is MARWILLearner
    spec = BCConfig().get_default_rl_module_spec()
    assert (spec.module_class, spec.catalog_class) == (DefaultBCRLModule, BCCatalog)
    assert MARWILConfig().get_default_rl_module_spec().module_class is DefaultPPORLModule
    assert MARWILStep.for_config(MARWILConfig()) is MARWILStep
    assert MARWILStep.for_config(MARWILConfig().training(beta=0)) is OfflineStep
    assert "vf_loss" not in BCLearner.all_result_names() and "policy_loss" in BCLearner.all_result_names()


@pytest.mark.parametrize(
    ("config", "match"),
    [
        (MARWILConfig().training(beta=0.5, burnin_len=20).rl_module(model_config=LSTM), "burnin_len=20.*max_seq_len"),
        (BCConfig().training(beta=0.5), r"training\(beta=0.5\) weighs advantages.*MARWILConfig"),
    ],
)
def test_what_does_not_fit_is_refused(config, match):
    with pytest.raises(ValueError, match=match):
        config.environment("CartPole-v1").validate()


@pytest.mark.parametrize("setting", [{"beta": 1.5}, {"beta": -0.1}, {"max_advantage_weight": 0.0}, {"lambda_": 2.0}])
def test_values_out_of_range_are_refused(setting):
    with pytest.raises(ValueError, match=next(iter(setting))):
        MARWILConfig().training(**setting)


# --------------------------------------------------------------------------------------------------- worked out by hand


def test_value_targets_by_hand():
    """Two episodes: one of three steps that terminates, one of two that was cut; gamma 0.5."""
    own: Any = {
        "rewards": jnp.array([1, 2, 4, 0, 1, 1, 0], jnp.float32),
        "terminateds": jnp.array([0, 0, 1, 0, 0, 0, 0], bool),
        "values": jnp.array([5, 6, 7, 99, 2, 3, 8], jnp.float32),
        "is_final": jnp.array([0, 0, 0, 1, 0, 0, 1], bool),
        "gamma": 0.5,
    }
    found = returns.value_targets_of_rows(**own, lambda_=1.0)
    np.testing.assert_allclose(found, [1 + 0.5 * 4, 2 + 0.5 * 4, 4, 0, 1 + 0.5 * 5, 1 + 0.5 * 8, 0])
    found = returns.value_targets_of_rows(**own, lambda_=0.0)
    np.testing.assert_allclose(found, [1 + 0.5 * 6, 2 + 0.5 * 7, 4, 0, 1 + 0.5 * 3, 1 + 0.5 * 8, 0])


class ByHand(DefaultBCRLModule):
    """Logits of 0, and a value of 1, whatever it sees."""

    def _forward(self, batch, **kwargs):
        inputs = 0.0 * super()._forward(batch)[Columns.ACTION_DIST_INPUTS]
        if isinstance(self.action_space, gym.spaces.Box):
            inputs += jnp.array([0.0, np.log(2.0)])
        return {Columns.ACTION_DIST_INPUTS: inputs}

    def compute_values(self, batch, embeddings=None):
        return jnp.ones(batch[Columns.OBS].shape[:-1])


class MARWILByHand(MARWILLearner):
    @classmethod
    def rl_module_required_apis(cls):
        return []


def update_by_hand(rows=None, **settings):
    """Result of a loss on two rows with the value targets 1 + 2 and 1 - 2; ``c2`` starts at 4 and stays."""
    settings = {"moving_average_sqd_adv_norm_start": 4.0, "moving_average_sqd_adv_norm_update_rate": 0.0, **settings}
    action_space = settings.pop("action_space", None)
    config = config_of(MARWILConfig, action_space=action_space, **settings).learners(learner_class=MARWILByHand)
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=ByHand, catalog_class=BCCatalog))
    batch = {Columns.OBS: np.zeros((2, 4), np.float32), Columns.VALUE_TARGETS: np.array([3.0, -1.0], np.float32)}
    is_box = action_space is not None
    batch[Columns.ACTIONS] = np.zeros((2, 1), np.float32) if is_box else np.array([0, 1], np.int32)
    result = config.build_learner().update(batch={"default_policy": {**batch, **(rows or {})}})["default_policy"]
    return {name: float(value) for name, value in result.items() if np.ndim(value) == 0}


def test_losses_by_hand():
    """Weights exp(beta * (±2) / sqrt(4)), log-probabilities log(1/2)."""
    found = update_by_hand(vf_coeff=0.5)
    weight = (np.e + 1 / np.e) / 2
    assert found["policy_loss"] == pytest.approx(weight * np.log(2), rel=1e-5)
    assert found["advantage_weight_mean"] == pytest.approx(weight, rel=1e-5)
    assert found["advantage_weight_max"] == pytest.approx(np.e, rel=1e-5)
    assert found["vf_loss"] == 2.0 and found["moving_avg_sqd_adv_norm"] == 4.0
    assert found["total_loss"] == pytest.approx(weight * np.log(2) + 0.5 * 2.0, rel=1e-5)


def test_a_moving_average_moves_by_less_than_a_float():
    """2,000 updates whose mean squared advantage is 4, at the default rate: 100 - 2000 * 96e-8."""
    config = config_of(MARWILConfig).learners(learner_class=MARWILByHand)
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=ByHand, catalog_class=BCCatalog))
    rows = {
        Columns.OBS: np.zeros((2, 4), np.float32),
        Columns.VALUE_TARGETS: np.array([3.0, -1.0], np.float32),
        Columns.ACTIONS: np.array([0, 1], np.int32),
    }
    learner = config.build_learner()
    for _ in range(2000):
        result = learner.update(batch={"default_policy": rows})["default_policy"]
    assert float(result["moving_avg_sqd_adv_norm"]) == pytest.approx(100 - 0.00192, abs=1e-5)
    assert "moving_avg_sqd_adv_norm_error" not in result
    other = config.build_learner()
    state = learner.get_state()
    del state["extra"]["moving_avg_sqd_adv_norm_error"]
    other.set_state(state)
    assert other.moving_avg_sqd_adv_norms_per_module == learner.moving_avg_sqd_adv_norms_per_module


def test_a_bound_of_the_weights_by_hand():
    found = update_by_hand(max_advantage_weight=1.5)
    assert found["advantage_weight_mean"] == pytest.approx((1.5 + 1 / np.e) / 2, rel=1e-5)
    assert found["advantage_weight_max"] == 1.5


def test_a_mask_by_hand():
    found = update_by_hand({Columns.LOSS_MASK: np.array([False, True])})
    assert found["policy_loss"] == pytest.approx(np.log(2) / np.e, rel=1e-5)
    assert found["advantage_weight_max"] == pytest.approx(1 / np.e, rel=1e-5)


def test_the_weight_of_the_spread_by_hand():
    """A standard deviation of 2, and actions that are its mean; without weights."""
    box = gym.spaces.Box(-1.0, 1.0, (1,))
    logp = -np.log(2.0) - 0.5 * np.log(2 * np.pi)
    plain, wide = (update_by_hand(action_space=box, beta=0.0, bc_logstd_coeff=own) for own in (0.0, 0.25))
    assert plain["policy_loss"] == pytest.approx(-logp, rel=1e-5)
    assert wide["policy_loss"] == pytest.approx(-logp - 0.25 * np.log(2.0), rel=1e-5)
    assert "vf_loss" not in plain
    with pytest.raises(ValueError, match=r"bc_logstd_coeff=0.25\).*Gaussian.*Categorical"):
        update_by_hand(bc_logstd_coeff=0.25)


def test_actions_at_the_bounds_of_a_squashed_policy_count_as_some_inside():
    distribution = SquashedGaussian(jnp.zeros(2), jnp.ones(2))
    inside = jnp.array([1.0 - 1e-6, -1.0 + 1e-6])
    at_bounds = distribution.logp(jnp.array([1.0, -1.0]))
    assert np.isfinite(at_bounds) and float(at_bounds) == pytest.approx(float(distribution.logp(inside)), abs=0.1)


# ------------------------------------------------------------------------------------------------------------ training


def losses_of(algo, number):
    return [float(algo.train()["learners"]["default_policy"]["policy_loss"]) for _ in range(number)]


@BOTH
@pytest.mark.parametrize("model_config", [{}, LSTM], ids=["mlp", "lstm"])
def test_it_learns_what_was_recorded_and_goes_on(config_class, model_config, tmp_path):
    algo = config_of(config_class, model_config=model_config, burnin_len=2 if model_config else 0).build_algo()
    losses = losses_of(algo, 15)
    assert losses[-1] < 0.7 * losses[0]
    path = algo.save_to_path(tmp_path / "saved")
    after = losses_of(algo, 2)
    algo.restore_from_path(path)
    assert losses_of(algo, 2) == after
    algo.stop()


def test_gaussian_actions_at_the_bounds():
    steps = recorded()
    actions = np.sign(steps.columns[Columns.OBS][:, 2:3]).astype(np.float32)

    class AtBounds(Given):
        dataset = InMemory([steps.map_columns(lambda name, own: actions if name == Columns.ACTIONS else own)])

    algo = config_of(BCConfig, action_space=gym.spaces.Box(-1.0, 1.0, (1,)))
    algo = algo.offline_data(offline_data_class=AtBounds).build_algo()
    losses = losses_of(algo, 15)
    assert np.all(np.isfinite(losses)) and losses[-1] < losses[0]
    algo.stop()


def test_value_targets_follow_the_value_function_of_the_start_of_a_pass():
    """With one update a pass, targets of lambda 0 are one step ahead of the values that the update began with."""
    own = {"train_batch_size_per_learner": 40, "lambda_": 0.0, "gamma": 0.5}

    class Seen(MARWILLearner):
        def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
            index = jnp.argmax(batch[Columns.OBS][:, 0] == 1.0)
            self.metrics.log_value((module_id, "target_of_step_1"), batch[Columns.VALUE_TARGETS][index])
            return super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)

    algo = config_of(MARWILConfig, **own).learners(learner_class=Seen).build_algo()
    steps = recorded()
    for _ in range(3):
        module: Any = algo.get_module()
        next_value = float(module.compute_values({Columns.OBS: steps.columns[Columns.OBS][2:3]})[0])
        found = algo.train()["learners"]["default_policy"]["target_of_step_1"]
        assert float(found) == pytest.approx(float(steps.columns[Columns.REWARDS][1]) + 0.5 * next_value, rel=1e-4)
    algo.stop()


def test_values_of_a_recurrent_network_start_anew_with_every_piece():
    algo = config_of(MARWILConfig, model_config=LSTM, lambda_=0.0, gamma=1.0).build_algo()
    steps, module = recorded(), algo.get_module()
    columns = {name: jnp.asarray(steps.columns[name]) for name in MARWILStep.prepared_from}
    step = MARWILStep(algo.config)
    values = {"gamma": jnp.float32(1.0), "lambda_": jnp.float32(0.0)}
    prepare = jax.jit(lambda columns, is_final: step.prepare(module, columns, is_final, values)[Columns.VALUE_TARGETS])
    whole = prepare(columns, jnp.asarray(steps.is_final))
    first, second = (int(at) for at in steps.piece_starts()[1:3])
    part = {name: own[first:second] for name, own in columns.items()}
    alone = prepare(part, jnp.asarray(steps.is_final[first:second]))
    np.testing.assert_allclose(whole[first:second], alone, rtol=1e-5, atol=1e-6)
    algo.stop()


# ------------------------------------------------------------------------------------------- from offline to online


class ClonedActorCritic(DefaultBCRLModule, ValueFunctionAPI):
    """BC's module with a value head."""

    def setup(self):
        super().setup()
        head = MLPHeadConfig(input_dims=self.catalog.latent_dims, output_layer_dim=1)
        self.vf = head.build(self.framework, rngs=self.rngs)

    def compute_values(self, batch, embeddings=None):
        return self.vf(self.encoder(batch)[ENCODER_OUT])[..., 0]


@pytest.mark.parametrize("folder", ["rl_module", "rl_module/default_policy"], ids=["of_all_modules", "of_one"])
def test_ppo_goes_on_from_what_bc_has_learned(tmp_path, folder):
    algo = config_of(BCConfig).build_algo()
    losses_of(algo, 3)
    inputs = algo.get_module().forward_inference({Columns.OBS: recorded().columns[Columns.OBS]})
    path = algo.save_to_path(tmp_path / "bc")
    algo.stop()
    spec = RLModuleSpec(
        module_class=ClonedActorCritic, load_state_path=Path(path) / "learner_group" / "learner" / folder
    )
    config = (
        PPOConfig()
        .environment("gymnax/CartPole-v1")
        .env_runners(num_envs_per_env_runner=2)
        .training(train_batch_size_per_learner=16, minibatch_size=16, num_epochs=1)
        .rl_module(rl_module_spec=spec, model_config={"fcnet_hiddens": [8]})
    )
    algo = config.build_algo()
    found = algo.get_module().forward_inference({Columns.OBS: recorded().columns[Columns.OBS]})
    name = Columns.ACTION_DIST_INPUTS
    np.testing.assert_allclose(found[name], inputs[name], rtol=1e-5, atol=1e-6)
    assert np.isfinite(float(algo.train()["learners"]["default_policy"]["total_loss"]))
    algo.stop()
