"""Settings that PPO is known to learn with, by environment: what ``jaxrl train`` uses unless told otherwise."""

from __future__ import annotations

from typing import Any

from jaxrl_stack.connectors.env_to_module import MeanStdFilter


def mean_std_filter(env: Any, spaces: Any, device: Any) -> MeanStdFilter:
    """Normalises observations by running statistics."""
    return MeanStdFilter()


TUNED: dict[str, dict[str, Any]] = {
    "gymnax/CartPole-v1": {
        "num_envs_per_env_runner": 64,
        "train_batch_size_per_learner": 8192,
        "minibatch_size": 2048,
        "num_epochs": 4,
        "lr": [[0, 2.5e-3], [500_000, 0.0]],
        "gamma": 0.99,
        "lambda_": 0.95,
        "clip_param": 0.2,
        "entropy_coeff": 0.01,
        "grad_clip": 0.5,
        "model_config": {"fcnet_hiddens": [64, 64], "fcnet_activation": "tanh"},
    },
    "gymnax/Pendulum-v1": {
        "num_envs_per_env_runner": 64,
        "train_batch_size_per_learner": 8192,
        "minibatch_size": 512,
        "num_epochs": 10,
        "lr": 1e-3,
        "gamma": 0.9,
        "lambda_": 0.95,
        "clip_param": 0.2,
        "vf_clip_param": 1000.0,
        "grad_clip": 0.5,
        "env_to_module_connector": mean_std_filter,
        "model_config": {"fcnet_hiddens": [64, 64], "fcnet_activation": "tanh"},
    },
}


def tuned_settings(env: str) -> dict[str, Any] | None:
    """A copy of the settings for an environment; None if there are none."""
    return dict(TUNED[env]) if env in TUNED else None
