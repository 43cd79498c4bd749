"""Queues of train batches for a learner.

One queue returns each batch once, in the order of arrival; the other, a ring buffer, can return each batch several
times.
"""

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
    """Counts sampled env steps as trained, dropped or lost, each once.

    Attributes:
        num_env_steps: Lifetime env steps by fate. The other sampled steps are on their way.
    """

    def __init__(self) -> None:
        self.num_env_steps: dict[Fate, int] = {"trained": 0, "dropped": 0, "lost": 0}

    def settle(self, batch: Batch, fate: Fate) -> None:
        """Adds the batch's env steps to the counter of `fate`: trained, dropped or lost. Later calls for the same
        batch change nothing.
        """
        if batch.fate is None:
            batch.fate = fate
            self.num_env_steps[fate] += batch.num_env_steps


@dataclasses.dataclass(eq=False)
class Batch:
    """Train batch of one update. `Ledger` counts the env steps of each batch once, by the batch's fate (trained,
    dropped or lost).

    Attributes:
        experience: Steps of the batch.
        num_env_steps: Number of env steps.
        fate: Fate of the batch; None while it is on its way.
    """

    experience: Experience
    num_env_steps: int
    fate: Fate | None = None


class LearnerQueue(abc.ABC):
    """Queue of train batches between samplers and a learner. Not thread-safe: threads that share it need a lock."""

    @property
    @abc.abstractmethod
    def has_room(self) -> bool:
        """Whether `put` can add a batch without dropping one that no update has read."""

    @abc.abstractmethod
    def put(self, batch: Batch) -> Batch | None:
        """Adds a batch to the queue. Returns the unread batch that was dropped to make room, or None."""

    @abc.abstractmethod
    def take(self) -> Batch | None:
        """Returns the next update's batch; None if the queue is empty."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """Number of batches that `take` can still return, repetitions included."""

    @abc.abstractmethod
    def waiting(self) -> Iterable[Batch]:
        """Batches that `take` can still return. A batch that `take` can return several times appears only once."""

    @abc.abstractmethod
    def clear(self) -> None:
        """Removes all batches from the queue."""


class FirstInFirstOut(LearnerQueue):
    """Queue that returns each batch once, in the order of arrival. Callers must check `has_room` before `put`.

    Args:
        size: Maximum number of waiting batches.
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
    """Queue that stores the newest train batches in a `CircularBuffer`, and can return each batch several times.

    `put` never blocks: if the queue is full, `put` drops the oldest batch.

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
