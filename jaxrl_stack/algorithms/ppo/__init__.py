"""Proximal policy optimisation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxrl_stack.compat.unsupported_names import name_elsewhere
from jaxrl_stack.utils.lazy_names import lazy_names

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.ppo.ppo import PPO, PPOConfig
    from jaxrl_stack.algorithms.ppo.ppo_learner import PPOLearner

__all__ = ["PPO", "PPOConfig", "PPOLearner"]

# Imported when asked for: a policy that serves needs the module of this folder and nothing that trains.
__getattr__, __dir__ = lazy_names(
    __name__, {"ppo": ("PPO", "PPOConfig"), "ppo_learner": ("PPOLearner",)}, name_elsewhere
)
