"""Termination flags of several agents and of the whole episode."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import Any

ALL = "__all__"
"""Key of the flag that is set for everybody."""


def agent_flags(agents: Collection[Hashable], flags: Mapping[Any, Any]) -> set[Hashable]:
    """Ids of the agents that are terminated (or truncated) according to `flags`. The flag ``"__all__"`` applies to
    every agent.

    Args:
        agents: Ids of agents that have not ended.
        flags: Terminated by agent, or truncated by agent; agents that are missing have not ended.
    """
    return set(agents) if flags.get(ALL) else {agent for agent in agents if flags.get(agent)}


def episode_flags(
    agents: Collection[Hashable],
    terminated: Collection[Hashable],
    truncated: Collection[Hashable],
    terminateds: Mapping[Any, Any],
    truncateds: Mapping[Any, Any],
) -> tuple[bool, bool]:
    """Computes the flags ``(terminated, truncated)`` of a multi-agent episode from the flags of its agents and of
    ``"__all__"``.

    ``"__all__"`` decides where one of the two has it: an explicit False continues the episode, although no agent may
    be present. Without it the episode ends with the last of its agents: terminated if all of them are, truncated if one
    was cut off.

    Args:
        agents: Ids of all agents of the episode so far.
        terminated: Terminated agents.
        truncated: Truncated agents; an agent in both counts as terminated.
        terminateds: Flags of the newest step.
        truncateds: Likewise.
    """
    if ALL in terminateds or ALL in truncateds:
        return bool(terminateds.get(ALL)), bool(truncateds.get(ALL))
    cut_off = set(truncated) - set(terminated)
    if not agents or set(agents) - set(terminated) - cut_off:
        return False, False
    return not cut_off, bool(cut_off)
