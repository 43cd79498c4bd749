"""Settings that SAC is known to learn with, by environment: what ``jaxrl train`` uses unless told otherwise."""

from __future__ import annotations

from typing import Any

from jaxrl_stack.connectors.module_to_env import OrnsteinUhlenbeckNoise
from jaxrl_stack.utils.class_paths import register_class


@register_class
def ornstein_uhlenbeck_noise(env: Any, spaces: Any) -> OrnsteinUhlenbeckNoise:
    """Noise that lasts long enough to swing a car up a hill."""
    return OrnsteinUhlenbeckNoise(theta=0.15, sigma=0.3)


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
    # White noise never reaches the goal, and standing still is the best of what is left.
    "MountainCarContinuous-v0": {
        "metrics_num_episodes_for_smoothing": 5,
        "min_sample_timesteps_per_iteration": 1000,
        "num_steps_sampled_before_learning_starts": 1000,
        "actor_lr": 3e-4,
        "replay_buffer_config": {"type": "EpisodeReplayBuffer", "capacity": 50_000},
        "module_to_env_connector": ornstein_uhlenbeck_noise,
        "model_config": {"fcnet_hiddens": [64, 64], "fcnet_activation": "relu", "fusionnet_hiddens": None},
    },
}
"""Environment → settings for ``config.update_from_dict``."""
TUNED |= {f"gymnax/{env}": settings for env, settings in TUNED.items()}
