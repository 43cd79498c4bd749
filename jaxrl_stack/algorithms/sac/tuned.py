"""Tuned settings of SAC for individual environments. ``jaxrl train`` uses these settings by default."""

from __future__ import annotations

from typing import Any

from jaxrl_stack.algorithms.tuned_records import FromLiterature, Measured, Scored, Tuned
from jaxrl_stack.connectors.module_to_env import OrnsteinUhlenbeckNoise
from jaxrl_stack.utils.class_paths import register_class


@register_class
def ornstein_uhlenbeck_noise(env: Any, spaces: Any) -> OrnsteinUhlenbeckNoise:
    """Module-to-env connector function that adds Ornstein-Uhlenbeck noise. Noise that is correlated over time moves the
    car of MountainCarContinuous far enough to drive up the hill.
    """
    return OrnsteinUhlenbeckNoise(theta=0.15, sigma=0.3)


# RLlib's own example settings. The mean return is over few episodes: 20,000 steps are a hundred of them.
PENDULUM: dict[str, Any] = {
    "metrics_num_episodes_for_smoothing": 5,
    "min_sample_timesteps_per_iteration": 1000,
    "num_steps_sampled_before_learning_starts": 256,
    "train_batch_size_per_learner": 256,
    "initial_alpha": 1.001,
    "actor_lr": 2e-4,
    "critic_lr": 8e-4,
    "alpha_lr": 9e-4,
    "n_step": (2, 5),
    "tau": 0.005,
    "target_network_update_freq": 1,
    "replay_buffer_config": {"type": "PrioritizedEpisodeReplayBuffer", "capacity": 100_000, "alpha": 1.0, "beta": 0.0},
    "model_config": {
        "fcnet_hiddens": [256, 256],
        "fcnet_activation": "relu",
        "fcnet_kernel_initializer": "xavier_uniform",
        "head_fcnet_hiddens": [],
        "head_fcnet_kernel_initializer": "orthogonal_",
        "head_fcnet_kernel_initializer_kwargs": {"gain": 0.01},
        "fusionnet_hiddens": [256, 256, 256],
        "fusionnet_activation": "relu",
    },
}
# An update from 16 sequences for every step.
_STATELESS: dict[str, Any] = PENDULUM | {
    "num_steps_sampled_before_learning_starts": 1000,
    "train_batch_size_per_learner": 320,
    "burn_in_len": 4,
    "initial_alpha": 1.0,
    "actor_lr": 3e-4,
    "n_step": 1,
    "replay_buffer_config": {"type": "EpisodeReplayBuffer", "capacity": 100_000},
    "model_config": {
        "fcnet_hiddens": [64],
        "fcnet_activation": "relu",
        "use_lstm": True,
        "lstm_cell_size": 64,
        "max_seq_len": 20,
        "head_fcnet_hiddens": [64],
        "fusionnet_hiddens": [64, 64],
        "fusionnet_activation": "relu",
    },
}
# White noise never reaches the goal, and standing still is the best of what is left.
MOUNTAIN_CAR: dict[str, Any] = {
    "metrics_num_episodes_for_smoothing": 5,
    "min_sample_timesteps_per_iteration": 1000,
    "num_steps_sampled_before_learning_starts": 1000,
    "actor_lr": 3e-4,
    "replay_buffer_config": {"type": "EpisodeReplayBuffer", "capacity": 50_000},
    "module_to_env_connector": ornstein_uhlenbeck_noise,
    "model_config": {"fcnet_hiddens": [64, 64], "fcnet_activation": "relu", "fusionnet_hiddens": None},
}
_HAARNOJA = "Haarnoja et al. 2018, arXiv:1812.05905, table 1, {} steps"
_MUJOCO: dict[str, Any] = {
    "min_sample_timesteps_per_iteration": 1000,
    "num_steps_sampled_before_learning_starts": 10_000,
    "train_batch_size_per_learner": 256,
    "training_intensity": 256,
    "actor_lr": 3e-4,
    "critic_lr": 3e-4,
    "alpha_lr": 3e-4,
    "gamma": 0.99,
    "tau": 0.005,
    "replay_buffer_config": {"type": "EpisodeReplayBuffer", "capacity": 1_000_000},
    "model_config": {"fcnet_hiddens": [256, 256], "fcnet_activation": "relu", "fusionnet_hiddens": None},
}
# The paper's squared errors: where episodes end rarely, the Huber loss hardly learns that they end.
_SQUARED_ERRORS = {"td_error_loss_fn": "mse"}
ZOO = "DLR-RM/rl-baselines3-zoo, hyperparams/{}.yml, 500k steps{}"
LUNAR_LANDER = _MUJOCO | {"tau": 0.01}
LUNAR_LANDER |= {name: [[0, 7.3e-4], [500_000, 0.0]] for name in ("actor_lr", "critic_lr", "alpha_lr")}
LUNAR_LANDER |= {"model_config": {**_MUJOCO["model_config"], "fcnet_hiddens": [400, 300]}}
BIPEDAL = LUNAR_LANDER | {"actor_lr": 7.3e-4, "critic_lr": 7.3e-4, "alpha_lr": 7.3e-4, "gamma": 0.98, "tau": 0.02}
BIPEDAL |= {"replay_buffer_config": {"type": "EpisodeReplayBuffer", "capacity": 300_000}}

RECORDS: dict[str, Tuned] = {
    "gymnax/Pendulum-v1": Tuned(Measured(-250.0, 20_000, (9_000, 14_000, 15_000, 17_000, 11_000)), PENDULUM),
    "jaxrl_stack.examples.envs.memory:StatelessPendulum": Tuned(
        Measured(-250.0, 20_000, (7_000, 8_000, 10_000, 8_000, 7_000)), _STATELESS
    ),
    "Pendulum-v1": Tuned(Scored(20_000, (-150.25, -180.1, -146.9, -238.19, -167.6)), PENDULUM),
    "gymnax/MountainCarContinuous-v0": Tuned(
        Measured(90.0, 50_000, (28_000, 24_000, 28_000, 19_000, 26_000)), MOUNTAIN_CAR
    ),
    "MountainCarContinuous-v0": Tuned(Measured(90.0, 50_000, (21_000, 28_000, 21_000, 18_000, 19_000)), MOUNTAIN_CAR),
    "HalfCheetah-v5": Tuned(Scored(300_000, (7173.38, 7644.81, 7594.51)), _MUJOCO | _SQUARED_ERRORS),
    "Hopper-v5": Tuned(Scored(300_000, (1816.66, 2500.28, 3414.59)), _MUJOCO | _SQUARED_ERRORS),
    "Walker2d-v5": Tuned(FromLiterature(_HAARNOJA.format("3M")), _MUJOCO | _SQUARED_ERRORS),
    "Ant-v5": Tuned(FromLiterature(_HAARNOJA.format("3M")), _MUJOCO | _SQUARED_ERRORS),
    "Humanoid-v5": Tuned(FromLiterature(_HAARNOJA.format("10M")), _MUJOCO | _SQUARED_ERRORS),
    "LunarLanderContinuous-v3": Tuned(Scored(200_000, (262.04, 234.01)), LUNAR_LANDER | _SQUARED_ERRORS),
    "BipedalWalker-v3": Tuned(
        FromLiterature(ZOO.format("sac", "; without its state-dependent noise")), BIPEDAL | _SQUARED_ERRORS
    ),
}
"""Environment → settings, and how it is known that they learn."""
TUNED: dict[str, dict[str, Any]] = {env: record.settings for env, record in RECORDS.items()}
"""Environment → settings for ``config.update_from_dict``."""
