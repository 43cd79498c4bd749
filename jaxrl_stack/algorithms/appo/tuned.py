"""Tuned settings of APPO for individual environments. ``jaxrl train`` uses these settings by default."""

from __future__ import annotations

from typing import Any

from jaxrl_stack.algorithms.tuned_records import Measured, Tuned

_CARTPOLE: dict[str, Any] = {
    "num_env_runners": 0,
    "num_envs_per_env_runner": 32,
    "rollout_fragment_length": 20,
    "train_batch_size_per_learner": 640,
    "lr": [[0, 2e-3], [500_000, 5e-4]],
    "grad_clip": 0.5,
    "entropy_coeff": 0.01,
    "clip_param": 0.2,
    "circular_buffer_num_batches": 1,
    "circular_buffer_iterations_per_batch": 4,
    "target_network_update_freq": 1,
    "min_time_s_per_iteration": 0,
    "min_sample_timesteps_per_iteration": 6_400,
    "model_config": {"fcnet_hiddens": [64, 64], "vf_share_layers": False},
}

RECORDS: dict[str, Tuned] = {
    "gymnax/CartPole-v1": Tuned(Measured(450.0, 1_000_000, (147_200, 166_400, 166_400, 134_400, 172_800)), _CARTPOLE),
    "CartPole-v1": Tuned(Measured(450.0, 1_000_000, (96_000, 166_400, 172_800, 147_200, 160_000)), _CARTPOLE),
    "gymnax/Acrobot-v1": Tuned(Measured(-100.0, 400_000, (83_200, 89_600, 96_000, 64_000, 96_000)), _CARTPOLE),
}
"""Environment → settings, and how it is known that they learn."""
TUNED: dict[str, dict[str, Any]] = {env: record.settings for env, record in RECORDS.items()}
"""Environment → settings for ``config.update_from_dict``."""
