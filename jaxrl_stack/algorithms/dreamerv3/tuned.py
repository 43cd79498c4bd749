"""Tuned settings of DreamerV3 for individual environments. ``jaxrl train`` uses these settings by default."""

from __future__ import annotations

from typing import Any

from jaxrl_stack.algorithms.tuned_records import Evaluated, FromLiterature, Tuned

_RLLIB = "RLlib's tuned_examples/dreamerv3/{}.py; one environment"
_SMALL: dict[str, Any] = {"model_size": "micro", "training_ratio": 512}
# With the default steps 2 of 4 seeds are at the target.
_PENDULUM: dict[str, Any] = {**_SMALL, "world_model_lr": 5e-4, "actor_lr": 1e-4, "critic_lr": 3e-4}
RECORDS: dict[str, Tuned] = {
    "gymnax/CartPole-v1": Tuned(Evaluated(400.0, 40_000, (21_000, 23_000, None, 19_000)), _SMALL),
    "CartPole-v1": Tuned(Evaluated(400.0, 40_000, (12_000, 17_000, 40_000)), _SMALL),
    "gymnax/Pendulum-v1": Tuned(Evaluated(-250.0, 30_000, (5_000, 6_000, 8_000, 6_000)), _PENDULUM),
    "Pendulum-v1": Tuned(
        FromLiterature(_RLLIB.format("pendulum_dreamerv3")), {"model_size": "S", "training_ratio": 1024}
    ),
}
"""Environment → settings, and how it is known that they learn."""
TUNED: dict[str, dict[str, Any]] = {env: record.settings for env, record in RECORDS.items()}
"""Environment → settings for ``config.update_from_dict``."""
