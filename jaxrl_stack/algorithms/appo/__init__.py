"""Asynchronous proximal policy optimisation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxrl_stack.compat.unsupported_names import name_elsewhere
from jaxrl_stack.utils.lazy_names import lazy_names

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.appo.appo import APPO, APPOConfig
    from jaxrl_stack.algorithms.appo.appo_learner import APPOLearner

__all__ = ["APPO", "APPOConfig", "APPOLearner"]

# Imported when asked for: a policy that serves needs the module of this folder and nothing that trains.
__getattr__, __dir__ = lazy_names(
    __name__, {"appo": ("APPO", "APPOConfig"), "appo_learner": ("APPOLearner",)}, name_elsewhere
)
