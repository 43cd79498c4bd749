"""Re-exports the class `GroupAgentsWrapper` under its RLlib import path."""

from jaxrl_stack.env.multi_agent_env import GROUP_INFO, GROUP_REWARDS, GroupAgentsWrapper

__all__ = ["GROUP_INFO", "GROUP_REWARDS", "GroupAgentsWrapper"]
