"""Monotonic advantage re-weighted imitation learning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxrl_stack.compat.unsupported_names import name_elsewhere
from jaxrl_stack.utils.lazy_names import lazy_names

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.marwil.marwil import MARWIL, MARWILConfig
    from jaxrl_stack.algorithms.marwil.marwil_learner import MARWILLearner

__all__ = ["MARWIL", "MARWILConfig", "MARWILLearner"]

# Imported when asked for: a policy that serves needs nothing of this folder.
_MODULES = {"marwil": ("MARWIL", "MARWILConfig"), "marwil_learner": ("MARWILLearner",)}

__getattr__, __dir__ = lazy_names(__name__, _MODULES, name_elsewhere)
