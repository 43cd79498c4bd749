"""Batches that wait for a learner: in order, or in a ring from which each is read several times."""

from __future__ import annotations

import abc
import collections
import dataclasses
from collections.abc import Iterable
from typing import Literal, TypeAlias

from jaxrl_stack.core.experience import Experience
from jaxrl_stack.replay.circular_buffer import CircularBuffer

Fate: TypeAlias = Literal["trained", "dropped", "lost"]
"""Of the steps of a batch: an update was made from them; they were left out for want of room; they are gone, with an
actor or its answer."""


class Ledger:
    """What has become of env steps that were sampled, each counted once.

    Attributes:
        num_env_steps: Lifetime env steps by fate. What is missing to those that were sampled is on its way.
    """

    def __init__(self) -> None:
        self.num_env_steps: dict[Fate, int] = {"trained": 0, "dropped": 0, "lost": 0}

    def settle(self, batch: Batch, fate: Fate) -> None:
        """Note the fate of a batch; its first one counts."""
        if batch.fate is None:
            batch.fate = fate
            self.num_env_steps[fate] += batch.num_env_steps


@dataclasses.dataclass(eq=False)
class Batch:
    """What one update is made from.

    Attributes:
        experience: The steps.
        num_env_steps: How many env steps those are.
        fate: None while it is on its way.
    """

    experience: Experience
    num_env_steps: int
    fate: Fate | None = None


class LearnerQueue(abc.ABC):
    """Batches between those who sample and a learner. One thread at a time uses it."""

    @property
    @abc.abstractmethod
    def has_room(self) -> bool:
        """Whether a batch can be put in without another one falling out unread for want of room."""

    @abc.abstractmethod
    def put(self, batch: Batch) -> Batch | None:
        """Put a batch in; the one that falls out for it before any update has read it, if there is one."""

    @abc.abstractmethod
    def take(self) -> Batch | None:
        """The batch of the next update; None if none is left to read."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """How often `take` can be called."""

    @abc.abstractmethod
    def waiting(self) -> Iterable[Batch]:
        """The batches that are held."""

    @abc.abstractmethod
    def clear(self) -> None:
        """Hold nothing."""


class FirstInFirstOut(LearnerQueue):
    """Each batch is read once, in order. Who puts one in while there is no room has not looked.

    Args:
        size: Most batches that wait.
    """

    def __init__(self, size: int):
        self.size = size
        self._batches: collections.deque[Batch] = collections.deque()

    @property
    def has_room(self) -> bool:
        return len(self._batches) < self.size

    def put(self, batch: Batch) -> Batch | None:
        self._batches.append(batch)
        return None

    def take(self) -> Batch | None:
        return self._batches.popleft() if self._batches else None

    def __len__(self) -> int:
        return len(self._batches)

    def waiting(self) -> Iterable[Batch]:
        return self._batches

    def clear(self) -> None:
        self._batches.clear()


class Ring(LearnerQueue):
    """The newest batches in a `CircularBuffer`: there is always room, and what no learner comes to read is dropped.

    Args:
        num_batches, iterations_per_batch, seed: See `CircularBuffer`.
    """

    def __init__(self, num_batches: int, iterations_per_batch: int, seed: int | None = None):
        self._buffer = CircularBuffer(num_batches, iterations_per_batch, seed=seed)

    @property
    def has_room(self) -> bool:
        return True

    def put(self, batch: Batch) -> Batch | None:
        return self._buffer.put(batch)

    def take(self) -> Batch | None:
        return self._buffer.get(timeout=0) if len(self._buffer) else None

    def __len__(self) -> int:
        return len(self._buffer)

    def waiting(self) -> Iterable[Batch]:
        return self._buffer.waiting()

    def clear(self) -> None:
        while len(self._buffer):
            self._buffer.get(timeout=0)
