"""Algorithms solve the probe environments: every link of the chain from reward to policy, one at a time."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from envs.probes import PROBES, ActionRewardProbe, ContinuousActionProbe, DiscountingProbe, TruncationBootstrapProbe
from jaxrl_stack.algorithms.appo import APPOConfig
from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.algorithms.impala import IMPALAConfig
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.algorithms.pqn import PQNConfig
from jaxrl_stack.algorithms.sac import SACConfig
from jaxrl_stack.algorithms.td3 import TD3Config
from jaxrl_stack.algorithms.tqc import TQCConfig

GAMMA = 0.9
BATCH = 256
LAST_STEP = 8 * 750
"""Env steps of an off-policy run."""


@pytest.mark.parametrize("probe", PROBES)
def test_ppo_learns_the_known_values(probe):
    # The value after a truncation is the network's own: the values approach their fixed point step by step.
    num_iterations = 45 if probe is TruncationBootstrapProbe else 30
    total = num_iterations * BATCH
    config = (
        PPOConfig()
        .environment(probe)
        .env_runners(num_envs_per_env_runner=16)
        .training(
            train_batch_size_per_learner=BATCH,
            minibatch_size=64,
            num_epochs=4,
            lr=[[0, 0.02], [total // 2, 0.005], [total, 0.0]],
            gamma=GAMMA,
            lambda_=0.95,
            vf_clip_param=1000.0,
        )
        .rl_module(model_config={"fcnet_hiddens": [16]})
        .debugging(seed=0)
    )
    algo = config.build_algo()
    for _ in range(num_iterations):
        algo.train()
    module = algo.get_module()
    observations, expected = probe().expected_values(GAMMA)
    values = np.asarray(jax.jit(lambda obs: module.compute_values({"obs": obs}))(observations))
    # The policy of a finite run still takes the wrong action now and then; everything else is exact.
    np.testing.assert_allclose(values, expected, rtol=0.0, atol=0.02 if probe is ActionRewardProbe else 1e-3)
    optimal = probe().optimal_actions()
    assert (optimal is not None) == (probe is ActionRewardProbe)
    if optimal is not None:
        logits = module.forward_inference({"obs": observations})["action_dist_inputs"]
        probabilities = np.asarray(jax.nn.softmax(logits))
        assert (probabilities[np.arange(len(optimal)), optimal] > 0.98).all()
        assert [algo.compute_single_action(obs, explore=False) for obs in observations] == optimal.tolist()
    algo.stop()


@pytest.mark.parametrize(
    ("config_class", "probe"),
    [
        (IMPALAConfig, ActionRewardProbe),
        (IMPALAConfig, DiscountingProbe),
        (APPOConfig, ActionRewardProbe),
        (APPOConfig, TruncationBootstrapProbe),
    ],
)
def test_impala_and_appo_learn_the_known_values(config_class, probe):
    last_step = BATCH * 400
    reused = {"circular_buffer_num_batches": 1, "target_network_update_freq": 1} if config_class is APPOConfig else {}
    algo = (
        config_class()
        .environment(probe)
        .env_runners(num_envs_per_env_runner=16, rollout_fragment_length=16)
        .training(
            train_batch_size_per_learner=BATCH,
            lr=[[0, 0.02], [last_step // 2, 0.005], [last_step, 0.0]],
            gamma=GAMMA,
            entropy_coeff=0.0,
            **reused,
        )
        .reporting(min_sample_timesteps_per_iteration=last_step, min_time_s_per_iteration=0)
        .rl_module(model_config={"fcnet_hiddens": [16]})
        .debugging(seed=0)
        .build_algo()
    )
    algo.train()
    module = algo.get_module()
    observations, expected = probe().expected_values(GAMMA)
    values = np.asarray(jax.jit(lambda obs: module.compute_values({"obs": obs}))(observations))
    np.testing.assert_allclose(values, expected, rtol=0.0, atol=0.02)
    algo.stop()


def off_policy_config(config, probe, last_step=LAST_STEP, **training):
    return (
        config.environment(probe)
        .env_runners(num_envs_per_env_runner=8, rollout_fragment_length=1)
        .training(
            train_batch_size_per_learner=64, num_steps_sampled_before_learning_starts=256, gamma=GAMMA, **training
        )
        # The learning rate falls to 0 over what one call of the compiled program does.
        .reporting(min_sample_timesteps_per_iteration=last_step, min_time_s_per_iteration=0)
        .rl_module(model_config={"fcnet_hiddens": [16], "head_fcnet_hiddens": [], "fusionnet_hiddens": [16]})
        .debugging(seed=0)
    )


@pytest.mark.parametrize("probe", PROBES)
def test_dqn_learns_the_known_values(probe):
    algo = off_policy_config(
        DQNConfig(),
        probe,
        lr=[[0, 0.01], [LAST_STEP // 2, 0.003], [LAST_STEP, 0.0]],
        epsilon=[[0, 1.0], [LAST_STEP // 4, 0.1]],
        target_network_update_freq=64,
        replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": 2000},
    ).build_algo()
    algo.train()
    module = algo.get_module()
    observations, expected = probe().expected_values(GAMMA)
    q_values = np.asarray(module.compute_q_values({"obs": observations})["qf_preds"])
    np.testing.assert_allclose(q_values.max(axis=-1), expected, rtol=0.0, atol=0.02)
    optimal = probe().optimal_actions()
    if optimal is None:
        # Both actions are worth the same.
        np.testing.assert_allclose(q_values.min(axis=-1), expected, rtol=0.0, atol=0.02)
    else:
        assert [algo.compute_single_action(obs, explore=False) for obs in observations] == optimal.tolist()
    algo.stop()


def sac_config(probe, config_class=SACConfig, last_step=LAST_STEP, **training):
    return off_policy_config(
        config_class(),
        probe,
        last_step,
        **{
            "actor_lr": [[0, 0.01], [last_step, 0.0]],
            "critic_lr": [[0, 0.01], [last_step // 2, 0.003], [last_step, 0.0]],
            "tau": 0.05,
            "replay_buffer_config": {"type": "EpisodeReplayBuffer", "capacity": 2000},
            # A temperature that no longer matters: values are those without entropy.
            "initial_alpha": 1e-4,
            "alpha_lr": 1e-8,
        }
        | training,
    )


@pytest.mark.parametrize("probe", [ActionRewardProbe, TruncationBootstrapProbe])
def test_discrete_sac_learns_the_known_values(probe):
    # The value after a truncation is the target network's own, which follows slowly.
    algo = sac_config(probe, last_step=2 * LAST_STEP, initial_alpha=0.01).build_algo()
    algo.train()
    observations, expected = probe().expected_values(GAMMA)
    q_values = np.asarray(algo.get_module().compute_q_values({"obs": observations}))
    np.testing.assert_allclose(q_values.max(axis=-1), expected, rtol=0.0, atol=0.03)
    optimal = probe().optimal_actions()
    if optimal is not None:
        assert [algo.compute_single_action(obs, explore=False) for obs in observations] == optimal.tolist()
    algo.stop()


@pytest.mark.parametrize(
    ("config_class", "settings"), [(SACConfig, {}), (TQCConfig, {"n_quantiles": 5, "top_quantiles_to_drop_per_net": 1})]
)
def test_continuous_actions_in_asymmetric_bounds_are_found(config_class, settings):
    algo = sac_config(ContinuousActionProbe, config_class, initial_alpha=0.05, **settings).build_algo()
    algo.train()
    observations, _ = ContinuousActionProbe().expected_values(GAMMA)
    actions = np.array([algo.compute_single_action(obs, explore=False) for obs in observations])
    np.testing.assert_allclose(actions, ContinuousActionProbe().optimal_actions(), rtol=0.0, atol=0.1)
    # The module acts in [-1, 1]: the critic is right there, too.
    q_values = algo.get_module().compute_q_values({"obs": observations, "actions": (actions - 1.0) / 2.0})
    np.testing.assert_allclose(q_values, 0.0, atol=0.1)
    algo.stop()


def test_td3_finds_actions_in_asymmetric_bounds():
    last_step = 2 * LAST_STEP
    algo = off_policy_config(
        TD3Config(),
        ContinuousActionProbe,
        last_step,
        actor_lr=[[0, 0.003], [last_step, 0.0]],
        critic_lr=[[0, 0.01], [last_step // 2, 0.003], [last_step, 0.0]],
        random_timesteps=512,
        exploration_noise=0.2,
        replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": 1000},
    ).build_algo()
    algo.train()
    observations, _ = ContinuousActionProbe().expected_values(GAMMA)
    actions = np.array([algo.compute_single_action(obs, explore=False) for obs in observations])
    np.testing.assert_allclose(actions, ContinuousActionProbe().optimal_actions(), rtol=0.0, atol=0.1)
    # The module acts in [-1, 1]: the critic is right there, too.
    q_values = algo.get_module().compute_q_values({"obs": observations, "actions": (actions - 1.0) / 2.0})
    np.testing.assert_allclose(q_values, 0.0, atol=0.2)
    algo.stop()


@pytest.mark.parametrize("probe", [ActionRewardProbe, TruncationBootstrapProbe])
def test_pqn_learns_the_known_values(probe):
    last_step = BATCH * 120
    algo = (
        PQNConfig()
        .environment(probe)
        .env_runners(num_envs_per_env_runner=16)
        .training(
            train_batch_size_per_learner=BATCH,
            minibatch_size=64,
            num_epochs=4,
            lr=[[0, 0.02], [last_step // 2, 0.005], [last_step, 0.0]],
            gamma=GAMMA,
            lambda_=0.8,
            epsilon=[[0, 1.0], [last_step // 2, 0.0]],
        )
        .reporting(min_sample_timesteps_per_iteration=last_step, min_time_s_per_iteration=0)
        .rl_module(model_config={"fcnet_hiddens": [16]})
        .debugging(seed=0)
        .build_algo()
    )
    algo.train()
    module = algo.get_module()
    observations, expected = probe().expected_values(GAMMA)
    values = np.asarray(jax.jit(lambda obs: module.compute_values({"obs": obs}))(observations))
    np.testing.assert_allclose(values, expected, rtol=0.0, atol=1e-2)
    optimal = probe().optimal_actions()
    if optimal is not None:
        assert [algo.compute_single_action(obs, explore=False) for obs in observations] == optimal.tolist()
    algo.stop()
