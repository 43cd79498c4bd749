"""Tuned settings of DQN for individual environments. ``jaxrl train`` uses these settings by default."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from jaxrl_stack.algorithms.ppo.tuned import ATARI_NETWORK
from jaxrl_stack.algorithms.tuned_records import FromLiterature, Held, Measured, Scored, Tuned
from jaxrl_stack.connectors.env_to_module import FrameStacking, SingleAgentObservationPreprocessor
from jaxrl_stack.utils.class_paths import register_class


@register_class
def four_frames(env: Any, spaces: Any, device: Any) -> FrameStacking:
    """Env-to-module connector function that returns `FrameStacking` of the last four frames; the replay buffer stores
    one frame per step.
    """
    return FrameStacking(num_frames=4)


@register_class
class ScaledCartPole(SingleAgentObservationPreprocessor):
    """Scales observations ``[position, angle]`` of a cart-pole, float32 ``[2]``, to similar units: metres, and tenths
    of a radian.

    A filter by running statistics would map the same state to other values as the policy improves and angles get
    smaller, which would invalidate stored steps.
    """

    _SCALE = np.array([1.0, 10.0], np.float32)

    def preprocess(self, observation: Any) -> Any:
        return observation * self._SCALE

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        space = input_observation_space
        return gym.spaces.Box(space.low * self._SCALE, space.high * self._SCALE, dtype=np.float32)


@register_class
def scaled_cart_pole(env: Any, spaces: Any, device: Any) -> ScaledCartPole:
    """Env-to-module connector function that returns `ScaledCartPole`."""
    return ScaledCartPole()


# With a learning rate that stays at 5e-4, what was learned is lost again after the peak.
_DEVICE: dict[str, Any] = {
    "num_envs_per_env_runner": 16,
    "lr": [(0, 5e-4), (200_000, 1e-5)],
    "grad_clip": 10.0,
    "train_batch_size_per_learner": 128,
    "replay_buffer_config": {"type": "EpisodeReplayBuffer", "capacity": 32_768},
    # A round of sampling is 16 * 3 steps: 6 updates after each.
    "n_step": 3,
    "training_intensity": 16,
    "double_q": True,
    "dueling": True,
    "epsilon": [(0, 1.0), (25_000, 0.02)],
    "model_config": {"fcnet_hiddens": [120, 84], "fcnet_activation": "relu"},
}
_CARTPOLE = _DEVICE | {
    "num_envs_per_env_runner": 1,
    "lr": [(0, 1e-3), (60_000, 1e-5)],
    "replay_buffer_config": {"type": "EpisodeReplayBuffer", "capacity": 60_000},
    # An update after every 2 steps, four at a time.
    "rollout_fragment_length": 8,
    "training_intensity": 64,
    "epsilon": [(0, 1.0), (10_000, 0.02)],
}
# Velocities are differences of angles below 0.2: in these units an LSTM tells them. All steps of a run are kept: of the
# last 50,000, which are those of a good policy, it would forget how poles fall. What is learned until 150,000 steps is
# what it stays with: with a rate of 1e-5 on, returns fall from 500 to 400 again.
_STATELESS: dict[str, Any] = {
    "num_envs_per_env_runner": 16,
    "env_to_module_connector": scaled_cart_pole,
    "lr": [(0, 5e-4), (100_000, 1e-4), (140_000, 1e-5), (150_000, 1e-8)],
    "grad_clip": 10.0,
    # 32 sequences.
    "train_batch_size_per_learner": 640,
    "burn_in_len": 4,
    "replay_buffer_config": {"type": "EpisodeReplayBuffer", "capacity": 400_000},
    # A round of sampling is 16 * 3 steps: 12 updates after each.
    "n_step": 3,
    "training_intensity": 160,
    "num_steps_sampled_before_learning_starts": 2_000,
    "target_network_update_freq": 1_000,
    "td_error_loss_fn": "mse",
    "epsilon": [(0, 1.0), (30_000, 0.02), (120_000, 0.005)],
    "model_config": {"fcnet_hiddens": [64], "use_lstm": True, "lstm_cell_size": 64, "max_seq_len": 20},
}
# An episode has 6 steps, and a sequence holds it whole.
_MEMORY_CHAIN: dict[str, Any] = _STATELESS | {
    "env_to_module_connector": None,
    "lr": 1e-3,
    "grad_clip": 40.0,
    "replay_buffer_config": {"type": "EpisodeReplayBuffer", "capacity": 50_000},
    "burn_in_len": 0,
    "training_intensity": 40,
    "num_steps_sampled_before_learning_starts": 1_000,
    "target_network_update_freq": 500,
    "epsilon": [(0, 1.0), (10_000, 0.02)],
    "model_config": {"fcnet_hiddens": [32], "use_lstm": True, "lstm_cell_size": 32, "max_seq_len": 10},
}
_ZOO = "DLR-RM/rl-baselines3-zoo, hyperparams/dqn.yml, {}"
_LUNAR_LANDER: dict[str, Any] = {
    "lr": 6.3e-4,
    "train_batch_size_per_learner": 128,
    # 4 updates after 4 steps.
    "rollout_fragment_length": 4,
    "training_intensity": 128,
    "replay_buffer_config": {"type": "EpisodeReplayBuffer", "capacity": 50_000},
    "double_q": False,
    "dueling": False,
    "gamma": 0.99,
    "target_network_update_freq": 250,
    "epsilon": [(0, 1.0), (18_000, 0.1)],
    "model_config": {"fcnet_hiddens": [256, 256], "fcnet_activation": "relu", "head_fcnet_hiddens": []},
}
_MOUNTAIN_CAR = _LUNAR_LANDER | {
    "lr": 4e-3,
    "train_batch_size_per_learner": 128,
    # 8 updates after 16 steps. All rewards are -1, so that all Q-values are nearly equal until the first success: the
    # greedy action is arbitrary, but the same one for 16 steps, and so explores further than one of each single step.
    "rollout_fragment_length": 16,
    "training_intensity": 64,
    "replay_buffer_config": {"type": "EpisodeReplayBuffer", "capacity": 10_000},
    "gamma": 0.98,
    "target_network_update_freq": 600,
    "epsilon": [(0, 1.0), (24_000, 0.07)],
}
_ATARI: dict[str, Any] = {
    "env_config": {"repeat_action_probability": 0.0, "episodic_life": True, "stack_num": 1},
    "env_to_module_connector": four_frames,
    "clip_rewards": True,
    "num_env_runners": 0,
    "num_envs_per_env_runner": 4,
    "gym_env_vectorize_mode": "vector_entry_point",
    "lr": 1e-4,
    "train_batch_size_per_learner": 32,
    # An update every 4 steps.
    "training_intensity": 8,
    "num_steps_sampled_before_learning_starts": 100_000,
    "replay_buffer_config": {"type": "EpisodeReplayBuffer", "capacity": 100_000},
    "n_step": 1,
    "double_q": False,
    "dueling": False,
    "gamma": 0.99,
    "target_network_update_freq": 1_000,
    "epsilon": [(0, 1.0), (1_000_000, 0.01)],
    "model_config": ATARI_NETWORK,
}
_ATARI_SOURCE = FromLiterature(_ZOO.format("atari, 10M steps; four environments instead of one"))

RECORDS: dict[str, Tuned] = {
    "gymnax/CartPole-v1": Tuned(
        Measured(
            450.0,
            200_000,
            (83_664, 108_864, 112_896, 100_800, 103_824),
            held=Held(400.0, 150_000, 400_000, (True, True, True, True, True)),
        ),
        _DEVICE,
    ),
    "CartPole-v1": Tuned(Scored(60_000, (500.0, 500.0, 500.0, 444.75, 500.0)), _CARTPOLE),
    "jaxrl_stack.examples.envs.memory:StatelessCartPole": Tuned(
        Measured(
            300.0,
            300_000,
            (48_384, 126_000, 49_392, 48_384, 51_408),
            held=Held(400.0, 150_000, 400_000, (True, True, True, True, True)),
        ),
        _STATELESS,
    ),
    "gymnax/MemoryChain-bsuite": Tuned(Measured(0.9, 50_000, (10_080, 9_072, 10_080, 9_072, 9_072)), _MEMORY_CHAIN),
    "gymnax/Acrobot-v1": Tuned(Measured(-100.0, 200_000, (47_376, 46_368, 35_280, 39_312, 30_240)), _DEVICE),
    "LunarLander-v3": Tuned(Scored(150_000, (161.27, 246.69, 271.14, 185.56, 172.55)), _LUNAR_LANDER),
    "MountainCar-v0": Tuned(Scored(120_000, (-112.64, -196.89, -200.0, -145.14, -99.68)), _MOUNTAIN_CAR),
    "ALE/Breakout-v5": Tuned(_ATARI_SOURCE, _ATARI),
    "ALE/Pong-v5": Tuned(_ATARI_SOURCE, _ATARI),
}
"""Environment → settings, and how it is known that they learn."""
TUNED: dict[str, dict[str, Any]] = {env: record.settings for env, record in RECORDS.items()}
"""Environment → settings for ``config.update_from_dict``."""
