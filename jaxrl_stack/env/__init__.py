"""Environments and how they are sampled: interfaces, adapters, registry, runners, groups of them."""

from jaxrl_stack.env.env_context import EnvContext
from jaxrl_stack.env.multi_agent_env import MultiAgentEnv

INPUT_ENV_SPACES = "__env__"
INPUT_ENV_SINGLE_SPACES = "__env_single__"
"""Keys of `EnvRunner.get_spaces` for the spaces of the vector environment and of one environment."""

__all__ = ["INPUT_ENV_SINGLE_SPACES", "INPUT_ENV_SPACES", "EnvContext", "MultiAgentEnv"]
