"""Chunks of an episode of several agents: which of each agent's steps lie in a range of environment steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl_stack.episodes.infinite_lookback_buffer import InfiniteLookbackBuffer
from jaxrl_stack.episodes.multi_agent_columns import SKIPPED, TimesByAgent


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


def last_steps(
    observations: Sequence[Mapping[Any, Any]],
    actions: Sequence[Mapping[Any, Any]],
    rewards: Sequence[Mapping[Any, Any]],
) -> dict[Any, int]:
    """Index of the last environment step in which agents got anything; without those whose last action hangs.

    Args:
        observations: By agent, one more than there are steps.
        actions: By agent, of each step.
        rewards: By agent, of each step.
    """
    last: dict[Any, int] = {}
    hanging: set[Any] = set()
    for i, (acted, rewarded) in enumerate(zip(actions, rewards, strict=True)):
        last.update(dict.fromkeys([*observations[i + 1], *rewarded], i))
        hanging = (hanging | acted.keys()) - observations[i + 1].keys()
    return {agent: i for agent, i in last.items() if agent not in hanging}
