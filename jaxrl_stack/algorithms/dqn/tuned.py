"""Settings that DQN is known to learn with, by environment: what ``jaxrl train`` uses unless told otherwise."""

from __future__ import annotations

from typing import Any

TUNED: dict[str, dict[str, Any]] = {
    # RLlib's own example.
    "CartPole-v1": {
        "lr": 5e-4,
        "train_batch_size_per_learner": 32,
        "replay_buffer_config": {
            "type": "PrioritizedEpisodeReplayBuffer",
            "capacity": 50_000,
            "alpha": 0.6,
            "beta": 0.4,
        },
        "n_step": (2, 5),
        "double_q": True,
        "dueling": True,
        "epsilon": [(0, 1.0), (10_000, 0.02)],
        "model_config": {
            "fcnet_hiddens": [256],
            "fcnet_activation": "tanh",
            "fcnet_bias_initializer": "zeros",
            "head_fcnet_hiddens": [256],
            "head_fcnet_bias_initializer": "zeros",
        },
    },
    "gymnax/CartPole-v1": {
        "num_envs_per_env_runner": 16,
        "lr": 5e-4,
        "train_batch_size_per_learner": 128,
        "replay_buffer_config": {"type": "EpisodeReplayBuffer", "capacity": 32_768},
        # A round of sampling is 16 * 3 steps: 6 updates after each.
        "n_step": 3,
        "training_intensity": 16,
        "double_q": True,
        "dueling": True,
        "epsilon": [(0, 1.0), (25_000, 0.02)],
        "model_config": {"fcnet_hiddens": [120, 84], "fcnet_activation": "relu"},
    },
}
"""Environment → settings for ``config.update_from_dict``."""
