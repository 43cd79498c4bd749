"""Behaviour cloning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxrl_stack.compat.unsupported_names import name_elsewhere
from jaxrl_stack.utils.lazy_names import lazy_names

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.bc.bc import BC, BCConfig
    from jaxrl_stack.algorithms.bc.bc_learner import BCLearner

__all__ = ["BC", "BCConfig", "BCLearner"]

# Imported when asked for: a policy that serves needs the module of this folder and nothing that trains.
_MODULES = {"bc": ("BC", "BCConfig"), "bc_learner": ("BCLearner",)}

__getattr__, __dir__ = lazy_names(__name__, _MODULES, name_elsewhere)
