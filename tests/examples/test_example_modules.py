"""Modules that RLlib's example scripts import, trained and served."""

from __future__ import annotations

from types import SimpleNamespace

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from gymnasium.spaces import Box, Discrete, Tuple

from envs.gymnasium_versions import GymnasiumCounterEnv
from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.connectors.context import ConnectorContext, StandaloneModule
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.rl_module.rl_module import MultiRLModule, MultiRLModuleSpec, RLModuleSpec
from jaxrl_stack.examples.connectors.classes.intrinsic_rewards import AddIntrinsicRewards
from jaxrl_stack.examples.envs.settings import ConfiguredEnv
from jaxrl_stack.examples.learners.classes.intrinsic_curiosity_learners import (
    ICM_MODULE_ID,
    DQNLearnerWithCuriosity,
    PPOLearnerWithCuriosity,
)
from jaxrl_stack.examples.rl_modules.classes.autoregressive_actions_rlm import AutoregressiveActionsRLM
from jaxrl_stack.examples.rl_modules.classes.intrinsic_curiosity_model_rlm import IntrinsicCuriosityModel
from jaxrl_stack.examples.rl_modules.classes.random_network_distillation_rlm import RandomNetworkDistillation
from jaxrl_stack.policy import load_exported
from jaxrl_stack.utils.compile_clock import CompileClock

OBS, ACTIONS, LOGP, INPUTS = Columns.OBS, Columns.ACTIONS, Columns.ACTION_LOGP, Columns.ACTION_DIST_INPUTS

# ------------------------------------------------------------------------------------------ actions drawn part by part


class Tied(ConfiguredEnv):
    """One step: sees ``[x]``, takes ``(first, [second])``, pays ``-|second - x (first - 1)|``."""

    @property
    def observation_space(self):
        return Box(-1.0, 1.0, (1,), np.float32)

    @property
    def action_space(self):
        return Tuple((Discrete(3), Box(-1.0, 1.0, (1,), np.float32)))

    def reset_env(self, key, params):
        x = jax.random.uniform(key, (1,), jnp.float32, -1.0, 1.0)
        return x, x

    def step_env(self, key, state, action, params):
        first, second = action
        error = jnp.abs(second - state * (first - 1).astype(jnp.float32))
        return state, state, -error[0], True, False, {}


def tied():
    return (
        PPOConfig()
        .environment(Tied)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=4)
        .training(train_batch_size_per_learner=64, minibatch_size=64, num_epochs=1, lr=0.01)
        .rl_module(rl_module_spec=RLModuleSpec(module_class=AutoregressiveActionsRLM, model_config={"width": 8}))
        .learners(num_cpus_per_learner=1)
    )


def test_training_sees_the_actions_that_were_taken_one_after_the_other():
    """On the device; the example of the page runs on the host."""
    algo = tied().build_algo()
    before = algo.get_weights()["default_policy"]
    results = [algo.train()["learners"]["default_policy"] for _ in range(2)]
    clock = CompileClock()
    results.append(algo.train()["learners"]["default_policy"])
    assert clock.compiles == 0
    # One gradient step on all rows: before it, the policy of the loss is the one that acted.
    for result in results:
        assert abs(result["mean_kl_loss"]) < 1e-6 and abs(result["policy_loss"]) < 1e-5
    after = algo.get_weights()["default_policy"]
    assert {ref for ref in after if np.abs(after[ref] - before[ref]).max() > 1e-4} == set(after)
    assert not any("stream" in ref for ref in after)
    algo.stop()


@pytest.fixture(scope="module")
def policy():
    algo = tied().build_algo()
    yield algo.get_policy()
    algo.stop()


NUM_ROWS = 4096


def conditionals(policy, obs, first):
    """By hand: log-probabilities of first actions ``[N, 3]``; mean and log std of the second ones given these."""
    weights = policy.get_weights()

    def network(name, x):
        hidden = np.tanh(x @ weights[f"{name}/dense_0/kernel"] + weights[f"{name}/dense_0/bias"])
        return hidden @ weights[f"{name}/dense_1/kernel"] + weights[f"{name}/dense_1/bias"]

    logits = network("first", obs)
    second = network("second", np.concatenate([obs, np.eye(3, dtype=np.float32)[first]], axis=-1))
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True), second[:, 0], second[:, 1]


def test_the_second_part_is_drawn_given_the_first(policy):
    obs = np.full((NUM_ROWS, 1), 0.7, np.float32)
    _, _, outputs = policy.compute_actions(obs, explore=True, key=jax.random.key(0))
    first, second = (np.asarray(part) for part in outputs[ACTIONS])
    log_p, mean, log_std = conditionals(policy, obs, first)
    assert len(set(mean.tolist())) == 3

    # Shares and normalised draws within five standard errors; the second part's noise knows nothing of the first's.
    p = np.exp(log_p[0])
    assert (np.abs(np.bincount(first, minlength=3) / NUM_ROWS - p) < 5 * np.sqrt(p * (1 - p) / NUM_ROWS)).all()
    noise = (second[:, 0] - mean) / np.exp(log_std)
    for choice in range(3):
        own = noise[first == choice]
        assert abs(own.mean()) < 5 / np.sqrt(len(own)) and abs(own.std() - 1) < 5 / np.sqrt(len(own))

    logp = log_p[np.arange(NUM_ROWS), first] - 0.5 * noise**2 - log_std - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(outputs[LOGP], logp, atol=1e-4)


def test_greedy_actions_are_greedy_part_by_part_wherever_they_are_served(policy, tmp_path):
    obs = np.linspace(-1.0, 1.0, NUM_ROWS, dtype=np.float32)[:, None]
    first, second = policy.compute_actions(obs)[0]
    log_p, _, _ = conditionals(policy, obs, np.zeros(NUM_ROWS, int))
    np.testing.assert_array_equal(first, log_p.argmax(-1))
    _, mean, _ = conditionals(policy, obs, np.asarray(first))
    np.testing.assert_allclose(np.asarray(second)[:, 0], np.clip(mean, -1.0, 1.0), atol=1e-5)

    exported = load_exported(policy.export(tmp_path / "policy", explore=True, platforms=["cpu"]))
    key = jax.random.key(1)
    served, own = exported.compute_actions(obs, key=key)[0], policy.compute_actions(obs, explore=True, key=key)[0]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), served, own)


def test_another_space_of_actions_is_named():
    spec = RLModuleSpec(AutoregressiveActionsRLM, Box(-1.0, 1.0, (1,)), gym.spaces.Discrete(2))
    with pytest.raises(ValueError, match=r"AutoregressiveActionsRLM supports only.*Tuple\(Discrete.*not Discrete\(2\)"):
        spec.build(seed=0)


# ----------------------------------------------------------------------------------------------- intrinsic rewards


def small(module_class, **model_config):
    return RLModuleSpec(module_class, Box(-1.0, 1.0, (3,)), Discrete(2), learner_only=True, model_config=model_config)


def test_what_the_world_model_gets_wrong_is_the_reward():
    module = small(
        IntrinsicCuriosityModel,
        feature_dim=4,
        feature_net_hiddens=(5,),
        feature_net_activation="tanh",
        inverse_net_hiddens=(),
        forward_net_hiddens=(),
    ).build(seed=0)
    weights = module.get_state()
    rng = np.random.default_rng(0)
    obs, next_obs = rng.normal(size=(2, 6, 3)).astype(np.float32)
    actions = np.array([0, 1, 1, 0, 1, 0], np.int32)
    batch = {OBS: obs, Columns.NEXT_OBS: next_obs, ACTIONS: actions}
    outputs = module.forward_train(batch)

    def dense(name, x):
        return x @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]

    features, after = (dense("feature_net/dense_1", np.tanh(dense("feature_net/dense_0", x))) for x in (obs, next_obs))
    predicted = dense("forward_net/dense_0", np.concatenate([features, np.eye(2)[actions]], axis=-1))
    rewards = 0.5 * np.square(predicted - after).sum(-1)
    np.testing.assert_allclose(outputs[Columns.INTRINSIC_REWARDS], rewards, rtol=1e-5)

    logits = dense("inverse_net/dense_0", np.concatenate([features, after], axis=-1))
    logp = logits[np.arange(6), actions] - np.logaddexp(logits[:, 0], logits[:, 1])
    logged = {}
    learner = SimpleNamespace(
        masked_mean=lambda values, batch: values.mean(),
        metrics=SimpleNamespace(log_dict=lambda values, **kwargs: logged.update(values)),
    )
    config = SimpleNamespace(learner_config_dict={"forward_loss_weight": 0.25})
    loss = module.compute_self_supervised_loss(
        learner=learner, module_id=ICM_MODULE_ID, config=config, batch=batch, fwd_out=outputs
    )
    np.testing.assert_allclose(loss, 0.25 * rewards.mean() - 0.75 * logp.mean(), rtol=1e-5)
    np.testing.assert_allclose(logged["inverse_loss"], -logp.mean(), rtol=1e-5)


def test_intrinsic_rewards_are_scaled_by_all_that_counted_so_far():
    multi = MultiRLModule()
    multi.add_module("rnd", small(RandomNetworkDistillation, feature_dim=2, hiddens=(4,)).build(seed=0))
    assert not nnx.to_flat_state(nnx.state(multi["rnd"].target, nnx.Param))
    connector = AddIntrinsicRewards(module_id="rnd", intrinsic_reward_coeff=2.0, normalize=True)
    context = ConnectorContext(pure=StandaloneModule(multi, ()))
    apply, state, known = jax.jit(connector.apply), connector.init(2), []
    rng = np.random.default_rng(1)
    for _ in range(2):
        next_obs, counts = rng.normal(size=(5, 2, 3)).astype(np.float32), np.ones((5, 2), bool)
        next_obs[3, 1], counts[3, 1] = 1e3, False
        policy = {Columns.NEXT_OBS: next_obs, Columns.REWARDS: np.ones((5, 2), np.float32), Columns.LOSS_MASK: counts}
        state, batch = apply(state, {DEFAULT_MODULE_ID: policy}, context)
        state = connector.merge(state, None)
        raw = np.asarray(multi["rnd"].forward_train(policy)[Columns.INTRINSIC_REWARDS])
        known = [*known, *raw[counts]]
        expected = 1.0 + 2.0 * raw / np.std(known, ddof=1)
        np.testing.assert_allclose(batch[DEFAULT_MODULE_ID][Columns.REWARDS], expected, rtol=1e-4)
        assert set(batch["rnd"]) == {Columns.NEXT_OBS, Columns.LOSS_MASK}
    with pytest.raises(ValueError, match=r"needs a module 'world', but the modules are \['rnd'\]"):
        AddIntrinsicRewards(module_id="world", intrinsic_reward_coeff=1.0).apply({}, batch, context)


@pytest.mark.parametrize(
    ("config", "learner_class", "names"),
    [
        (PPOConfig(), PPOLearnerWithCuriosity, ["GeneralAdvantageEstimation"]),
        (DQNConfig(), DQNLearnerWithCuriosity, []),
    ],
)
def test_learners_with_curiosity_have_its_connectors_first(config, learner_class, names):
    model = small(IntrinsicCuriosityModel, feature_dim=4, feature_net_hiddens=(4,))
    config = config.environment(GymnasiumCounterEnv).learners(learner_class=learner_class)
    config.rl_module(
        rl_module_spec=MultiRLModuleSpec(rl_module_specs={DEFAULT_MODULE_ID: RLModuleSpec(), ICM_MODULE_ID: model})
    )
    spaces = {DEFAULT_MODULE_ID: (model.observation_space, model.action_space)}
    with pytest.raises(KeyError, match=r"lacks \['forward_loss_weight', 'intrinsic_reward_coeff'\]"):
        config.build_learner(spaces=spaces)
    config.learners(learner_config_dict={"intrinsic_reward_coeff": 0.5, "forward_loss_weight": 0.2})
    learner = config.build_learner(spaces=spaces)
    added = ["AddNextObservationsFromEpisodesToTrainBatch", "IntrinsicCuriosityModelConnector"]
    assert learner._learner_connector.names == [*added, *names]
