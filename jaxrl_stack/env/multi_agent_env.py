"""RLlib's path to environments of several agents, which are not here yet."""

from __future__ import annotations

from typing import Any

from jaxrl_stack.utils.coming import coming_names, stand_in

ENV_STATE = "state"
"""Key of a global state in observations of several agents."""

__getattr__ = coming_names(__name__)


def make_multi_agent(env_name_or_creator: Any) -> Any:
    """A class of environments in which several agents act, each in a copy of an environment; not here yet.

    Args:
        env_name_or_creator: What to copy.

    Returns:
        A class that raises a NotImplementedError when called, so that files which make such a class can be imported.
    """
    return type("MultiEnv", (stand_in("MultiAgentEnv"),), {"__module__": __name__})


make_multi_agent.comes_later = stand_in("MultiAgentEnv").comes_later  # type: ignore[attr-defined]

__all__ = ["ENV_STATE", "make_multi_agent"]
