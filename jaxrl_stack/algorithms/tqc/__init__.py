"""Truncated quantile critics (TQC)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxrl_stack.compat.unsupported_names import name_elsewhere
from jaxrl_stack.utils.lazy_names import lazy_names

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.tqc.tqc import TQC, TQCConfig
    from jaxrl_stack.algorithms.tqc.tqc_catalog import TQCCatalog
    from jaxrl_stack.algorithms.tqc.tqc_learner import TQCLearner

__all__ = ["TQC", "TQCCatalog", "TQCConfig", "TQCLearner"]

# Imported when asked for: a policy that serves needs the module of this folder and nothing that trains.
_MODULES = {"tqc": ("TQC", "TQCConfig"), "tqc_catalog": ("TQCCatalog",), "tqc_learner": ("TQCLearner",)}

__getattr__, __dir__ = lazy_names(__name__, _MODULES, name_elsewhere)
