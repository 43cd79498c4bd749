"""Batches that wait for a learner: in order, or in a ring from which each is read several times."""

from __future__ import annotations

import abc
import collections
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

import numpy as np

from jaxrl_stack.core.experience import Experience

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
        reads_left: How often it may still be read.
        was_read: Whether some update had it.
        fate: None while it is on its way.
    """

    experience: Experience
    num_env_steps: int
    reads_left: int = 1
    was_read: bool = False
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
        """Number of reads that are left."""

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
        if not self._batches:
            return None
        batch = self._batches.popleft()
        batch.was_read, batch.reads_left = True, 0
        return batch

    def __len__(self) -> int:
        return len(self._batches)

    def waiting(self) -> Iterable[Batch]:
        return self._batches

    def clear(self) -> None:
        self._batches.clear()


class Ring(LearnerQueue):
    """The newest batches, each read a number of times, in random order; the oldest one falls out where it is full.

    APPO's circular buffer: there is always room, and what the learner does not come to read is dropped.

    Args:
        num_batches: How many it holds.
        iterations_per_batch: Reads of each at most.
        seed: Of the order.
    """

    def __init__(self, num_batches: int, iterations_per_batch: int, seed: Sequence[int]):
        self.num_batches, self.iterations_per_batch = num_batches, iterations_per_batch
        self._batches: collections.deque[Batch] = collections.deque()
        self._generator = np.random.default_rng(seed)

    @property
    def has_room(self) -> bool:
        return True

    def put(self, batch: Batch) -> Batch | None:
        batch.reads_left = self.iterations_per_batch
        self._batches.append(batch)
        oldest = self._batches.popleft() if len(self._batches) > self.num_batches else None
        return None if oldest is None or oldest.was_read else oldest

    def take(self) -> Batch | None:
        # Uniform among the reads that are left, and so in proportion to those of each batch.
        reads_left = np.cumsum([batch.reads_left for batch in self._batches])
        if not len(reads_left) or not reads_left[-1]:
            return None
        chosen = np.searchsorted(reads_left, self._generator.integers(reads_left[-1]), side="right")
        batch = self._batches[int(chosen)]
        batch.was_read = True
        batch.reads_left -= 1
        if not batch.reads_left and batch is self._batches[0]:
            self._let_go()
        return batch

    def _let_go(self) -> None:
        """Forget the oldest batches as far as they are read up: their columns take memory."""
        while self._batches and not self._batches[0].reads_left:
            self._batches.popleft()

    def __len__(self) -> int:
        return sum(batch.reads_left for batch in self._batches)

    def waiting(self) -> Iterable[Batch]:
        return self._batches

    def clear(self) -> None:
        self._batches.clear()
