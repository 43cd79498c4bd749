"""Settings that SAC is known to learn with, by environment: what ``jaxrl train`` uses unless told otherwise."""

from __future__ import annotations

import copy
from typing import Any

TUNED: dict[str, dict[str, Any]] = {
    # RLlib's own example settings. The mean return is over few episodes: 20,000 steps are a hundred of them.
    "Pendulum-v1": {
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
        "replay_buffer_config": {
            "type": "PrioritizedEpisodeReplayBuffer",
            "capacity": 100_000,
            "alpha": 1.0,
            "beta": 0.0,
        },
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
    },
}
"""Environment → settings for ``config.update_from_dict``."""
TUNED["gymnax/Pendulum-v1"] = TUNED["Pendulum-v1"]


def tuned_settings(env: str) -> dict[str, Any] | None:
    """A copy of the settings for an environment; None if there are none."""
    return copy.deepcopy(TUNED[env]) if env in TUNED else None
