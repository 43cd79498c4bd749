"""Segments of episodes in time-major arrays ``[T, B]``. A segment contains successive steps of one episode, all at the
same index of axis B.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np


class Segment(NamedTuple):
    """Successive steps of one episode in a time-major block ``[T, B]``, all at the same index of axis B.

    Attributes:
        env: Index on axis B: an environment. If S agents share a module, axis B has ``S * E`` entries for E
            environments, and index ``s * E + i`` is agent s in environment i.
        start: Index of the first step on axis T.
        stop: Index of the last step on axis T, plus 1.
        begins: Whether the episode begins with the first step. If not, the segment continues the last segment of the
            block before.
        terminated: Whether the last step terminated the episode.
        truncated: Whether the last step truncated the episode.
    """

    env: int
    start: int
    stop: int
    begins: bool
    terminated: bool
    truncated: bool

    @property
    def has_ended(self) -> bool:
        """Whether the episode ended with the last step of this segment."""
        return self.terminated or self.truncated


class Segments(NamedTuple):
    """All K episode segments (successive steps of one episode) in a time-major block ``[T, B]``, ordered by index of
    axis B and then by time.

    Attributes:
        env: int64 ``[K]``, see `Segment`, like the other arrays.
        start: int64 ``[K]``.
        stop: int64 ``[K]``.
        begins: bool ``[K]``.
        terminated: bool ``[K]``.
        truncated: bool ``[K]``.
        shape: ``(T, B)`` of the block.
    """

    env: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    begins: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    shape: tuple[int, int]

    def each(self) -> Iterator[Segment]:
        """Returns an iterator over the segments."""
        return map(Segment._make, zip(*(own.tolist() for own in self[:-1]), strict=True))

    @property
    def has_ended(self) -> np.ndarray:
        """True for segments whose last step ended the episode: bool ``[K]`` for K segments."""
        return self.terminated | self.truncated

    @property
    def length(self) -> np.ndarray:
        """Number of steps of each segment: int64 ``[K]`` for K segments."""
        return self.stop - self.start

    @property
    def last(self) -> tuple[np.ndarray, np.ndarray]:
        """Indices of the last step of each segment, ``(on axis T, on axis B)``: two arrays ``[K]`` for K segments."""
        return self.stop - 1, self.env

    @property
    def is_running(self) -> np.ndarray:
        """True for segments whose episode continues after the block ``[T, B]``.

        Such a segment contains the last time step of the block, but not the end of its episode. The result is bool
        ``[K]`` for K segments.
        """
        return (self.stop == self.shape[0]) & ~self.has_ended

    def steps(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns three arrays of indices for the N steps of all segments, segment by segment.

        The arrays ``[N]`` contain the step's index on axis T, its index on axis B, and the index of its segment.
        """
        segment = np.repeat(np.arange(len(self.env)), self.length)
        before = np.cumsum(self.length) - self.length
        rows = np.arange(len(segment)) + (self.start - before)[segment]
        return rows, self.env[segment], segment

    def numbers(self) -> np.ndarray:
        """Returns the index of the segment that contains each step of the block, int64 ``[T, B]``; -1 at positions
        without a step.
        """
        rows, columns, segment = self.steps()
        numbers = np.full(self.shape, -1)
        numbers[rows, columns] = segment
        return numbers


def segments(
    terminateds: np.ndarray, truncateds: np.ndarray, *, mask: np.ndarray | None = None, starts: np.ndarray | None = None
) -> Segments:
    """Splits the steps of a time-major block ``[T, B]`` into segments, each of which contains successive steps of one
    episode.

    A segment stops after a step that ended its episode, before an entry that is not a step, and at the block's end.

    Args:
        terminateds: bool ``[T, B]``, whether a step terminated its episode.
        truncateds: bool ``[T, B]``, whether a step truncated its episode.
        mask: bool ``[T, B]``, False for entries that are not steps, such as resets; None: all entries are steps.
        starts: bool ``[B]``, whether step 0 of the block is the first step of an episode; None: step 0 continues the
            block before.
    """
    terminateds, truncateds = np.asarray(terminateds, bool), np.asarray(truncateds, bool)
    ended = terminateds | truncateds
    num_steps, num_envs = ended.shape
    if mask is None and not np.count_nonzero(ended[:-1]):
        env, start, stop = np.arange(num_envs), np.zeros(num_envs, np.int64), np.full(num_envs, num_steps)
        begins = np.zeros(num_envs, bool) if starts is None else np.array(starts, bool)
        return Segments(env, start, stop, begins, terminateds[-1], truncateds[-1], ended.shape)
    is_last = ended.T.copy()
    is_last[:, -1] = True
    if mask is None:
        env, last = np.nonzero(is_last)
        start = np.zeros_like(last)
        start[1:] = np.where(env[1:] == env[:-1], last[:-1] + 1, 0)
    else:
        is_step = np.asarray(mask, bool).T
        is_first = is_step.copy()
        is_first[:, 1:] &= is_last[:, :-1] | ~is_step[:, :-1]
        is_last[:, :-1] |= ~is_step[:, 1:]
        env, last = np.nonzero(is_last & is_step)
        start = np.nonzero(is_first)[1]
    begins = start > 0
    if starts is not None:
        begins |= np.asarray(starts, bool)[env]
    return Segments(env, start, last + 1, begins, terminateds[last, env], truncateds[last, env], ended.shape)
