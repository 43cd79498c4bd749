"""RLlib's path to the runner of environments of several agents, which is not here yet."""

from __future__ import annotations

from typing import Any

from jaxrl_stack.utils.coming import coming_class

MultiAgentEnvRunner: Any = coming_class(
    "MultiAgentEnvRunner",
    __name__,
    "Until then runners are SingleAgentEnvRunners (jaxrl_stack.env.single_agent_env_runner).",
)

__all__ = ["MultiAgentEnvRunner"]
