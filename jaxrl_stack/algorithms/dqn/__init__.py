"""Deep Q-learning and its extensions in Rainbow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxrl_stack.compat.unsupported_names import name_elsewhere
from jaxrl_stack.utils.lazy_names import lazy_names

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.dqn.dqn import DQN, DQNConfig
    from jaxrl_stack.algorithms.dqn.dqn_learner import DQNLearner

__all__ = ["DQN", "DQNConfig", "DQNLearner"]

# Imported when asked for: a policy that serves needs the module of this folder and nothing that trains.
__getattr__, __dir__ = lazy_names(
    __name__, {"dqn": ("DQN", "DQNConfig"), "dqn_learner": ("DQNLearner",)}, name_elsewhere
)
