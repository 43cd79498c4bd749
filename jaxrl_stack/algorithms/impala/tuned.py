"""Tuned settings of IMPALA for individual environments. ``jaxrl train`` uses these settings by default."""

from __future__ import annotations

from typing import Any

from jaxrl_stack.algorithms.tuned_records import Measured, Tuned

_COMMON: dict[str, Any] = {
    "num_env_runners": 0,
    "num_envs_per_env_runner": 32,
    "rollout_fragment_length": 20,
    "train_batch_size_per_learner": 640,
    "lr": [[0, 5e-3], [500_000, 1e-3]],
    "grad_clip": 0.5,
    "entropy_coeff": 0.01,
    "min_time_s_per_iteration": 0,
    "min_sample_timesteps_per_iteration": 6_400,
}
_CARTPOLE = _COMMON | {"model_config": {"fcnet_hiddens": [64, 64], "vf_share_layers": False}}
# Velocities are in no observation: an LSTM has to tell them.
_STATELESS = _COMMON | {
    "model_config": {
        "fcnet_hiddens": [64],
        "use_lstm": True,
        "lstm_cell_size": 64,
        "max_seq_len": 20,
        "vf_share_layers": False,
    }
}
# Exploration decides: with an entropy coefficient of 0.01 returns stay at 5.
_BREAKOUT: dict[str, Any] = {
    "num_env_runners": 0,
    "num_envs_per_env_runner": 128,
    "rollout_fragment_length": 16,
    "train_batch_size_per_learner": 2048,
    "num_epochs": 2,
    "minibatch_size": 512,
    "lr": [[0, 2.5e-3], [5_000_000, 1e-4]],
    "entropy_coeff": [[0, 0.1], [5_000_000, 0.0]],
    "grad_clip": 0.5,
    "vf_loss_coeff": 0.5,
    "min_time_s_per_iteration": 0,
    "min_sample_timesteps_per_iteration": 102_400,
    "model_config": {
        "conv_filters": [[16, 3, 1]],
        "conv_activation": "relu",
        "head_fcnet_hiddens": [128],
        "head_fcnet_activation": "relu",
        "vf_share_layers": False,
    },
}

RECORDS: dict[str, Tuned] = {
    "gymnax/CartPole-v1": Tuned(Measured(450.0, 2_000_000, (281_600, 204_800, 172_800, 185_600, 211_200)), _CARTPOLE),
    "CartPole-v1": Tuned(Measured(450.0, 2_000_000, (147_200, 83_200, 684_800, 288_000, 134_400)), _CARTPOLE),
    "gymnax/Acrobot-v1": Tuned(Measured(-100.0, 400_000, (300_800, 38_400, 76_800, None, 396_800)), _CARTPOLE),
    "gymnax/Catch-bsuite": Tuned(Measured(0.9, 200_000, (25_600, 32_000, 25_600, 25_600, 25_600)), _CARTPOLE),
    "gymnax/Breakout-MinAtar": Tuned(Measured(28.0, 5_000_000, (2_764_800, 1_331_200, 1_638_400)), _BREAKOUT),
    "jaxrl_stack.examples.envs.memory:StatelessCartPole": Tuned(
        Measured(350.0, 2_000_000, (448_000, 371_200, 268_800)), _STATELESS
    ),
}
"""Environment → settings, and how it is known that they learn."""
TUNED: dict[str, dict[str, Any]] = {env: record.settings for env, record in RECORDS.items()}
"""Environment → settings for ``config.update_from_dict``."""
