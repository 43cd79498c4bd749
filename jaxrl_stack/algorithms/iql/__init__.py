"""Implicit Q-learning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxrl_stack.compat.unsupported_names import name_elsewhere
from jaxrl_stack.utils.lazy_names import lazy_names

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.iql.iql import IQL, IQLConfig
    from jaxrl_stack.algorithms.iql.iql_learner import IQLLearner

__all__ = ["IQL", "IQLConfig", "IQLLearner"]

# Imported when asked for: a policy that serves needs the module of this folder and nothing that trains.
__getattr__, __dir__ = lazy_names(
    __name__, {"iql": ("IQL", "IQLConfig"), "iql_learner": ("IQLLearner",)}, name_elsewhere
)
