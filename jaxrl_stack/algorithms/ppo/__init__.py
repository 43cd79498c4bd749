"""Proximal policy optimisation."""

from jaxrl_stack.algorithms.ppo.ppo import PPO, PPOConfig
from jaxrl_stack.algorithms.ppo.ppo_learner import PPOLearner

__all__ = ["PPO", "PPOConfig", "PPOLearner"]
