"""Conservative Q-learning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxrl_stack.compat.unsupported_names import name_elsewhere
from jaxrl_stack.utils.lazy_names import lazy_names

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.cql.cql import CQL, CQLConfig
    from jaxrl_stack.algorithms.cql.cql_learner import CQLLearner

__all__ = ["CQL", "CQLConfig", "CQLLearner"]

# Imported when asked for: a policy that serves needs the module of this folder and nothing that trains.
__getattr__, __dir__ = lazy_names(
    __name__, {"cql": ("CQL", "CQLConfig"), "cql_learner": ("CQLLearner",)}, name_elsewhere
)
