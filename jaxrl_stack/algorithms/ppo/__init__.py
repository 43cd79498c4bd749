"""Proximal policy optimisation."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.ppo.ppo import PPO, PPOConfig
    from jaxrl_stack.algorithms.ppo.ppo_learner import PPOLearner

__all__ = ["PPO", "PPOConfig", "PPOLearner"]

# Imported when asked for: a policy that serves needs the module of this folder and nothing that trains.
_HOMES = {
    "PPO": "jaxrl_stack.algorithms.ppo.ppo",
    "PPOConfig": "jaxrl_stack.algorithms.ppo.ppo",
    "PPOLearner": "jaxrl_stack.algorithms.ppo.ppo_learner",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
