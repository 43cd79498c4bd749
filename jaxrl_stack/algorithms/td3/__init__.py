"""Twin delayed deep deterministic policy gradients (TD3), and TD3+BC for recorded data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxrl_stack.compat.unsupported_names import name_elsewhere
from jaxrl_stack.utils.lazy_names import lazy_names

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.td3.td3 import TD3, TD3Config
    from jaxrl_stack.algorithms.td3.td3_learner import TD3BCLearner, TD3Learner

__all__ = ["TD3", "TD3BCLearner", "TD3Config", "TD3Learner"]

# Imported when asked for: a policy that serves needs the module of this folder and nothing that trains.
_MODULES = {"td3": ("TD3", "TD3Config"), "td3_learner": ("TD3BCLearner", "TD3Learner")}

__getattr__, __dir__ = lazy_names(__name__, _MODULES, name_elsewhere)
