"""Parallelised Q-network (PQN)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxrl_stack.compat.unsupported_names import name_elsewhere
from jaxrl_stack.utils.lazy_names import lazy_names

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.pqn.pqn import PQN, PQNConfig
    from jaxrl_stack.algorithms.pqn.pqn_learner import PQNLearner

__all__ = ["PQN", "PQNConfig", "PQNLearner"]

# Imported when asked for: a policy that serves needs the module of this folder and nothing that trains.
__getattr__, __dir__ = lazy_names(
    __name__, {"pqn": ("PQN", "PQNConfig"), "pqn_learner": ("PQNLearner",)}, name_elsewhere
)
