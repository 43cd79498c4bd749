"""Modules, learners and the algorithm that RLlib's example scripts import."""

from __future__ import annotations

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.examples.algorithms.classes.vpg import VPGConfig
from jaxrl_stack.examples.learners.classes.custom_ppo_loss_fn_learner import PPOLearnerWithWeightRegularizerLoss
from jaxrl_stack.examples.learners.classes.separate_vf_lr_and_optimizer_learner import PPOLearnerWithSeparateVfOptimizer
from jaxrl_stack.examples.rl_modules.classes.action_masking_rlm import ActionMaskingRLModule
from jaxrl_stack.examples.rl_modules.classes.custom_action_distribution_rlm import (
    CustomActionDistributionRLModule,
    categorical_with_temperature,
)
from jaxrl_stack.examples.rl_modules.classes.lstm_containing_rlm import LSTMContainingRLModule
from jaxrl_stack.examples.rl_modules.classes.tiny_atari_cnn_rlm import TinyAtariCNN

BOX, DISCRETE = gym.spaces.Box(-1.0, 1.0, (3,), np.float32), gym.spaces.Discrete(2)
SMALL = (
    PPOConfig()
    .environment("gymnax/CartPole-v1")
    .env_runners(num_envs_per_env_runner=4)
    .training(lr=0.01, train_batch_size_per_learner=64, minibatch_size=64, num_epochs=1)
)


def weights(algo, *path):
    state = algo.get_module().get_state()
    return {name: np.array(value) for name, value in state.items() if name.startswith(path)}


def test_vpg_learns_from_whole_episodes():
    config = VPGConfig().environment("CartPole-v1").env_runners(num_env_runners=0)
    algo = config.training(num_episodes_per_train_batch=3, lr=0.01).build_algo()
    before = weights(algo, "logits")
    result = algo.train()
    assert result["env_runners"]["num_episodes"] == 3
    assert result["episode_timesteps_sampled_mean_win100"] == result["env_runners"]["num_env_steps_sampled"]
    after = weights(algo, "logits")
    algo.stop()
    assert any((before[name] != after[name]).any() for name in before)


def test_vpg_refuses_fewer_episodes_than_env_runners():
    config = VPGConfig().environment("CartPole-v1").env_runners(num_env_runners=4)
    with pytest.raises(ValueError, match="num_episodes_per_train_batch=3 is less than num_env_runners=4"):
        config.training(num_episodes_per_train_batch=3).validate()


def test_the_value_function_has_a_learning_rate_of_its_own():
    config = SMALL.copy().rl_module(model_config={"fcnet_hiddens": [4]})
    config.learners(learner_class=PPOLearnerWithSeparateVfOptimizer, learner_config_dict={"lr_vf": 0.0})
    algo = config.build_algo()
    parts = [("vf", "encoder/critic"), ("pi", "encoder/actor")]
    before = [weights(algo, *part) for part in parts]
    algo.train()
    (vf, pi) = [
        any((old[name] != new).any() for name, new in weights(algo, *part).items())
        for old, part in zip(before, parts, strict=True)
    ]
    algo.stop()
    assert pi and not vf


def test_two_optimizers_need_two_networks():
    config = SMALL.copy().rl_module(model_config={"fcnet_hiddens": [4], "vf_share_layers": True})
    with pytest.raises(ValueError, match="two optimizers need two networks"):
        config.learners(learner_class=PPOLearnerWithSeparateVfOptimizer).build_algo()


def test_the_regularizer_adds_the_mean_weight_to_the_loss():
    spec = RLModuleSpec(module_class=CustomActionDistributionRLModule, model_config={"width": 4})
    config = SMALL.copy().rl_module(rl_module_spec=spec)
    config.learners(learner_class=PPOLearnerWithWeightRegularizerLoss, learner_config_dict={"regularizer_coeff": 3.0})
    algo = config.build_algo()
    learned = algo.train()["learners"]["default_policy"]
    algo.stop()
    parts = learned["policy_loss"] + learned["vf_loss"] + learned["curr_kl_coeff"] * learned["mean_kl_loss"]
    np.testing.assert_allclose(learned["total_loss"], parts + 3.0 * learned["mean_weight"], rtol=1e-4, atol=1e-5)


def test_a_temperature_divides_logits():
    logits = jnp.array([2.0, 4.0])
    cooled = categorical_with_temperature(2.0).from_logits(logits)
    np.testing.assert_allclose(cooled.logp(jnp.array(1)), jax.nn.log_softmax(logits / 2)[1], rtol=1e-6)
    with pytest.raises(ValueError, match="temperature=0"):
        categorical_with_temperature(0)


def test_the_lstm_carries_its_state_over_a_sequence():
    config = {"lstm_cell_size": 5, "dense_layers": [4]}
    module = LSTMContainingRLModule(observation_space=BOX, action_space=DISCRETE, model_config=config)
    start = {name: jnp.zeros((2, 5)) for name in module.get_initial_state()}
    obs = jax.random.normal(jax.random.key(0), (2, 6, 3))

    graph, parameters = nnx.split(module)

    @jax.jit
    def forward(parameters, obs, state):
        out = nnx.merge(graph, parameters)._forward({Columns.OBS: obs, Columns.STATE_IN: state})
        return out[Columns.ACTION_DIST_INPUTS], out[Columns.STATE_OUT]

    whole, end = forward(parameters, obs, start)
    first, between = forward(parameters, obs[:, :3], start)
    second, end_of_second = forward(parameters, obs[:, 3:], between)
    assert whole.shape == (2, 6, 2)
    np.testing.assert_allclose(whole, jnp.concatenate([first, second], axis=1), atol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), end, end_of_second)


def test_a_module_for_masks_refuses_observations_without():
    with pytest.raises(ValueError, match="without masks use DefaultPPORLModule"):
        ActionMaskingRLModule(observation_space=BOX, action_space=DISCRETE, model_config={})


def test_convolutions_end_in_one_pixel():
    space, small = gym.spaces.Box(-1.0, 1.0, (42, 42, 4), np.float32), {"conv_filters": [[2, 4, 2], [2, 5, 1, "valid"]]}
    module = TinyAtariCNN(observation_space=space, action_space=DISCRETE, model_config={})
    batch = {Columns.OBS: jnp.zeros((3, 42, 42, 4))}
    logits, values = jax.eval_shape(
        lambda: (module._forward(batch)[Columns.ACTION_DIST_INPUTS], module.compute_values(batch))
    )
    assert logits.shape == (3, 2) and values.shape == (3,)
    with pytest.raises(ValueError, match="leave 17 x 17 pixels"):
        TinyAtariCNN(observation_space=space, action_space=DISCRETE, model_config=small)
