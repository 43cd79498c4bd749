"""IMPALA: importance-weighted actor-learner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxrl_stack.compat.unsupported_names import name_elsewhere
from jaxrl_stack.utils.lazy_names import lazy_names

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.impala.impala import IMPALA, IMPALAConfig
    from jaxrl_stack.algorithms.impala.impala_learner import IMPALALearner

__all__ = ["IMPALA", "IMPALAConfig", "IMPALALearner"]

# Imported when asked for: a policy that serves needs nothing of this folder.
_MODULES = {"impala": ("IMPALA", "IMPALAConfig", "Impala", "ImpalaConfig"), "impala_learner": ("IMPALALearner",)}

__getattr__, __dir__ = lazy_names(__name__, _MODULES, name_elsewhere)
