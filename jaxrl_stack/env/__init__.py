"""Environments and their sampling: interfaces, adapters, registry, env runners, and groups of env runners."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxrl_stack.compat.unsupported_names import name_elsewhere
from jaxrl_stack.env.env_context import EnvContext
from jaxrl_stack.env.multi_agent_env import MultiAgentEnv
from jaxrl_stack.utils.lazy_names import lazy_names

if TYPE_CHECKING:
    from jaxrl_stack.env.wrappers.dm_control_wrapper import DMCEnv
    from jaxrl_stack.env.wrappers.dm_env_wrapper import DMEnv
    from jaxrl_stack.env.wrappers.group_agents_wrapper import GroupAgentsWrapper
    from jaxrl_stack.env.wrappers.pettingzoo_env import ParallelPettingZooEnv, PettingZooEnv

INPUT_ENV_SPACES = "__env__"
INPUT_ENV_SINGLE_SPACES = "__env_single__"
"""Keys of `EnvRunner.get_spaces` for the spaces of the vector environment and of one environment."""

__all__ = [
    "INPUT_ENV_SINGLE_SPACES",
    "INPUT_ENV_SPACES",
    "DMCEnv",
    "DMEnv",
    "EnvContext",
    "GroupAgentsWrapper",
    "MultiAgentEnv",
    "ParallelPettingZooEnv",
    "PettingZooEnv",
]

_MODULES = {
    "wrappers.dm_control_wrapper": ("DMCEnv",),
    "wrappers.dm_env_wrapper": ("DMEnv",),
    "wrappers.group_agents_wrapper": ("GroupAgentsWrapper",),
    "wrappers.pettingzoo_env": ("ParallelPettingZooEnv", "PettingZooEnv"),
}

__getattr__, __dir__ = lazy_names(__name__, _MODULES, name_elsewhere)
