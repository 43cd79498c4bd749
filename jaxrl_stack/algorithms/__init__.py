"""Configs, the Algorithm, the registry, and one folder per algorithm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxrl_stack.utils.lazy_names import lazy_names

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

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
