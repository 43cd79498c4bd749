"""RLlib's import path of the class `GroupAgentsWrapper`."""

from jaxrl_stack.env.multi_agent_env import GROUP_INFO, GROUP_REWARDS, GroupAgentsWrapper

__all__ = ["GROUP_INFO", "GROUP_REWARDS", "GroupAgentsWrapper"]
