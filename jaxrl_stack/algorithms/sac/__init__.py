"""Soft actor-critic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxrl_stack.compat.unsupported_names import name_elsewhere
from jaxrl_stack.utils.lazy_names import lazy_names

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.sac.sac import SAC, SACConfig
    from jaxrl_stack.algorithms.sac.sac_learner import SACLearner

__all__ = ["SAC", "SACConfig", "SACLearner"]

# Imported when asked for: a policy that serves needs the module of this folder and nothing that trains.
__getattr__, __dir__ = lazy_names(
    __name__, {"sac": ("SAC", "SACConfig"), "sac_learner": ("SACLearner",)}, name_elsewhere
)
