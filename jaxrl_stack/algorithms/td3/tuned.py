"""Tuned settings of TD3 for individual environments. ``jaxrl train`` uses these settings by default."""

from __future__ import annotations

from typing import Any

from jaxrl_stack.algorithms.tuned_records import FromLiterature, Measured, Tuned

# One update per env step. The mean return is over few episodes: 20,000 steps are a hundred of them.
PENDULUM: dict[str, Any] = {
    "metrics_num_episodes_for_smoothing": 5,
    "min_sample_timesteps_per_iteration": 1000,
    "num_steps_sampled_before_learning_starts": 1000,
    "random_timesteps": 1000,
    "train_batch_size_per_learner": 128,
    "training_intensity": 128,
    "actor_lr": 1e-3,
    "critic_lr": 1e-3,
    "gamma": 0.98,
    "replay_buffer_config": {"type": "EpisodeReplayBuffer", "capacity": 100_000},
    "model_config": {"fcnet_hiddens": [64, 64], "fcnet_activation": "relu", "fusionnet_hiddens": None},
}
# The authors' code, which has batches of 256 rows and networks of 256 x 256 in place of the paper's 100 and 400 x 300.
_AUTHORS = "sfujim/TD3, Fujimoto et al. 2018, arXiv:1802.09477, 1M steps"
_MUJOCO: dict[str, Any] = {
    "min_sample_timesteps_per_iteration": 1000,
    "num_steps_sampled_before_learning_starts": 25_000,
    "random_timesteps": 25_000,
    "train_batch_size_per_learner": 256,
    "training_intensity": 256,
    "actor_lr": 3e-4,
    "critic_lr": 3e-4,
    "gamma": 0.99,
    "tau": 0.005,
    "replay_buffer_config": {"type": "EpisodeReplayBuffer", "capacity": 1_000_000},
    "model_config": {"fcnet_hiddens": [256, 256], "fcnet_activation": "relu", "fusionnet_hiddens": None},
}

RECORDS: dict[str, Tuned] = {
    "gymnax/Pendulum-v1": Tuned(Measured(-250.0, 20_000, (8_000, 7_000, 10_000, 10_000, 7_000)), PENDULUM),
    "Pendulum-v1": Tuned(Measured(-250.0, 20_000, (7_000, 11_000, 7_000, 7_000, 7_000)), PENDULUM),
    "HalfCheetah-v5": Tuned(FromLiterature(_AUTHORS), _MUJOCO),
    "Hopper-v5": Tuned(FromLiterature(_AUTHORS), _MUJOCO),
    "Walker2d-v5": Tuned(FromLiterature(_AUTHORS), _MUJOCO),
    "Ant-v5": Tuned(FromLiterature(_AUTHORS), _MUJOCO),
}
"""Environment → settings, and the evidence that they learn."""
TUNED: dict[str, dict[str, Any]] = {env: record.settings for env, record in RECORDS.items()}
"""Environment → settings for ``config.update_from_dict``."""
