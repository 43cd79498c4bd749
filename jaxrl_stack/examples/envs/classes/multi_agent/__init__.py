"""Environments of several agents: they can be imported, and are not here yet."""

from jaxrl_stack.env.multi_agent_env import make_multi_agent
from jaxrl_stack.utils.coming import coming_names

__all__ = ["make_multi_agent"]

__getattr__ = coming_names(__name__)
