"""Tuned settings of PQN for individual environments. ``jaxrl train`` uses these settings by default."""

from __future__ import annotations

from typing import Any

from jaxrl_stack.algorithms.tuned_records import FromLiterature, Measured, Tuned

_AUTHORS = FromLiterature("mttga/purejaxql, purejaxql/config/alg/pqn_minatar.yaml, at 5M in place of 10M steps")

_CARTPOLE: dict[str, Any] = {
    "num_envs_per_env_runner": 32,
    "train_batch_size_per_learner": 2048,
    "minibatch_size": 128,
    "num_epochs": 4,
    "lr": [[0, 1e-3], [500_000, 0.0]],
    "lambda_": 0.95,
    "epsilon": [[0, 1.0], [50_000, 0.05]],
    "model_config": {"fcnet_hiddens": [64, 64], "fcnet_activation": "relu"},
}


def _minatar_settings(num_steps: int) -> dict[str, Any]:
    """Settings for MinAtar by the authors of PQN (Gallici et al., 2024), with schedules over `num_steps` env steps."""
    return {
        "num_envs_per_env_runner": 128,
        "train_batch_size_per_learner": 4096,
        "minibatch_size": 128,
        "num_epochs": 2,
        "lr": [[0, 5e-4], [num_steps, 0.0]],
        "lambda_": 0.65,
        "epsilon": [[0, 1.0], [num_steps // 10, 0.05]],
        "grad_clip": 10.0,
        "model_config": {
            "conv_filters": [[16, 3, 1, "valid"]],
            "conv_kernel_initializer": "he_normal",
            "head_fcnet_hiddens": [128],
            "head_fcnet_kernel_initializer": "he_normal",
        },
    }


RECORDS: dict[str, Tuned] = {
    "gymnax/CartPole-v1": Tuned(Measured(475.0, 500_000, (139_264, 137_216, 106_496, 122_880, 145_408)), _CARTPOLE),
    "gymnax/Acrobot-v1": Tuned(Measured(-100.0, 400_000, (172_032, 178_176, 151_552, 137_216, 233_472)), _CARTPOLE),
    "gymnax/Catch-bsuite": Tuned(Measured(0.9, 200_000, (51_200, 49_152, 55_296, 51_200, 49_152)), _CARTPOLE),
    "gymnax/Breakout-MinAtar": Tuned(_AUTHORS, _minatar_settings(5_000_000)),
    "gymnax/Asterix-MinAtar": Tuned(_AUTHORS, _minatar_settings(5_000_000)),
    "gymnax/Freeway-MinAtar": Tuned(_AUTHORS, _minatar_settings(5_000_000)),
    "gymnax/SpaceInvaders-MinAtar": Tuned(_AUTHORS, _minatar_settings(5_000_000)),
}
"""Environment → settings, and the evidence that they learn."""
TUNED: dict[str, dict[str, Any]] = {env: record.settings for env, record in RECORDS.items()}
"""Environment → settings for ``config.update_from_dict``."""
