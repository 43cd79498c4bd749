"""Configs, the Algorithm, the registry, and one folder per algorithm."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm import Algorithm
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.algorithms.ppo.ppo import PPO, PPOConfig

__all__ = ["PPO", "Algorithm", "AlgorithmConfig", "PPOConfig"]

# Imported when asked for: no algorithm pays for the others.
_HOMES = {
    "Algorithm": "jaxrl_stack.algorithms.algorithm",
    "AlgorithmConfig": "jaxrl_stack.algorithms.algorithm_config",
    "PPO": "jaxrl_stack.algorithms.ppo.ppo",
    "PPOConfig": "jaxrl_stack.algorithms.ppo.ppo",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
