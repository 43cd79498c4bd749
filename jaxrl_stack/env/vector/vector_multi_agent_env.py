"""RLlib's path to vectors of environments of several agents, which are not here yet."""

from __future__ import annotations

from typing import Any

from jaxrl_stack.env.multi_agent_env import ONE_AGENT
from jaxrl_stack.utils.coming import coming_class

VectorMultiAgentEnv: Any = coming_class("VectorMultiAgentEnv", __name__, ONE_AGENT)

__all__ = ["VectorMultiAgentEnv"]
