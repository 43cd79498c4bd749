"""DreamerV3: reinforcement learning from imagined rollouts of a world model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxrl_stack.compat.unsupported_names import name_elsewhere
from jaxrl_stack.utils.lazy_names import lazy_names

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.dreamerv3.dreamerv3 import DreamerV3, DreamerV3Config
    from jaxrl_stack.algorithms.dreamerv3.dreamerv3_learner import DreamerV3Learner
    from jaxrl_stack.algorithms.dreamerv3.dreamerv3_rl_module import DreamerV3RLModule

__all__ = ["DreamerV3", "DreamerV3Config", "DreamerV3Learner", "DreamerV3RLModule"]

# Imported when asked for: a policy that serves needs nothing of this folder.
_MODULES = {
    "dreamerv3": ("DreamerV3", "DreamerV3Config"),
    "dreamerv3_learner": ("DreamerV3Learner",),
    "dreamerv3_rl_module": ("DreamerV3RLModule",),
}

__getattr__, __dir__ = lazy_names(__name__, _MODULES, name_elsewhere)
