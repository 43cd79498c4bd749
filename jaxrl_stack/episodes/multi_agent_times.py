"""Mapping of env steps to agent steps in multi-agent episodes. The numbers of both steps differ, because an agent may
have no observation at some env steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxrl_stack.episodes.infinite_lookback_buffer import InfiniteLookbackBuffer

SKIPPED = "S"
"""Mark in an agent's map of times for environment steps without an observation of the agent."""


class TimesByAgent(dict[Any, InfiniteLookbackBuffer]):
    """Dict with one map from env steps to agent steps per agent; unknown agents have an empty map."""

    def __missing__(self, agent: Any) -> InfiniteLookbackBuffer:
        return InfiniteLookbackBuffer()


@dataclasses.dataclass(frozen=True, slots=True)
class AgentRange:
    """Range of one agent's steps in a chunk of a multi-agent episode.

    The range contains the indices of the agent's first and last observation, and the number of lookback steps before
    the first observation.

    Attributes:
        start: Index of the agent's first observation in the chunk: the last one at or before the chunk's first
            environment step, or else the first one after it.
        stop: Index of its last observation; steps that complete in the chunk are between the two.
        lookback: Number of steps of look-back.
        began_at: Position of `start` in the map of times.
        ended_at: Position of `stop` in the map of times.
    """

    start: int
    stop: int
    lookback: int
    began_at: int
    ended_at: int


def agent_range(times: InfiniteLookbackBuffer, start: int, stop: int, lookback: int) -> AgentRange | None:
    """Returns the range of an agent's steps in the env steps ``[start, stop)`` of an episode.

    Returns None if the agent's first observation comes after env step `stop`.

    Args:
        times: The agent's map of times.
        start: First environment step of the chunk, counted from the first one after the episode's look-back.
        stop: End of the chunk's environment steps.
        lookback: Maximum number of environment steps of look-back.
    """
    begins, ends = times.lookback + start, times.lookback + stop
    seen = [(moment, t) for moment, t in enumerate(times.data[: ends + 1]) if t != SKIPPED]
    if not seen:
        return None
    before = [(moment, t) for moment, t in seen if moment <= begins]
    began_at, first = before[-1] if before else seen[0]
    kept = [t for moment, t in before if moment >= begins - lookback] or [first]
    return AgentRange(first, seen[-1][1], first - kept[0], began_at, seen[-1][0])


def first_moment(times: InfiniteLookbackBuffer) -> int:
    """Returns the env step of an agent's first observation, counted from the start of the chunk; negative in the
    lookback.
    """
    return next(moment for moment, t in enumerate(times.data) if t != SKIPPED) - times.lookback


def joined_times(
    left: Mapping[Any, InfiniteLookbackBuffer],
    right: Mapping[Any, InfiniteLookbackBuffer],
    left_steps: int,
    right_steps: int,
    lookback: int,
) -> TimesByAgent:
    """Joins two successive chunks' maps from env steps to agent steps, agent by agent. The joined maps have the
    lookback of the first chunk's maps.

    Args:
        left: Maps of the first chunk, by agent.
        right: Maps of the second chunk, by agent; its agents may differ.
        left_steps: Number of the first chunk's environment steps, look-back included.
        right_steps: Number of the second chunk's own environment steps.
        lookback: Number of the first chunk's environment steps that are look-back.
    """
    joined = TimesByAgent()
    for agent in [*left, *(agent for agent in right if agent not in left)]:
        first = left[agent].data if agent in left else [SKIPPED] * (left_steps + 1)
        later = right[agent].get()[1:] if agent in right else [SKIPPED] * right_steps
        joined[agent] = InfiniteLookbackBuffer([*first, *later], lookback)
    return joined
