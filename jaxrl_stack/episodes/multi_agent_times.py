"""Maps from environment time to each agent's own time in an episode of several agents, and ranges of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxrl_stack.episodes.infinite_lookback_buffer import InfiniteLookbackBuffer

SKIPPED = "S"
"""Marks the environment steps in an agent's map of times in which it has no observation."""


class TimesByAgent(dict[Any, InfiniteLookbackBuffer]):
    """Maps of times by agent; that of an agent that has not been seen is empty."""

    def __missing__(self, agent: Any) -> InfiniteLookbackBuffer:
        return InfiniteLookbackBuffer()


@dataclasses.dataclass(frozen=True, slots=True)
class AgentRange:
    """An agent's part of a chunk, in its own time.

    Attributes:
        start: Its first observation that is the chunk's own: the last one at or before the chunk's first moment, or
            the first one after it.
        stop: Its last observation; steps that complete in the chunk lie between the two.
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
    """An agent's part of the own environment steps ``[start, stop)``; None if it has no observation by then.

    Args:
        times: The agent's map of times.
        start: First own environment step of the chunk.
        stop: End of its environment steps.
        lookback: Number of environment steps of look-back, as far as there are any.
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
    """Own environment step at which an agent is first seen, as far as its map of times goes; negative in look-back."""
    return next(moment for moment, t in enumerate(times.data) if t != SKIPPED) - times.lookback


def joined_times(
    left: Mapping[Any, InfiniteLookbackBuffer],
    right: Mapping[Any, InfiniteLookbackBuffer],
    left_steps: int,
    right_steps: int,
    lookback: int,
) -> TimesByAgent:
    """The maps of times of two chunks that follow each other, with the look-back of the first.

    Args:
        left: Of the first chunk, by agent.
        right: Of the second chunk; its agents may be others.
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
