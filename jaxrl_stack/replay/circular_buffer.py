"""Circular buffer of a few train batches, each drawn at most a fixed number of times."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import numpy as np


class CircularBuffer:
    """Circular buffer of train batches between samplers and learner (Luo et al., 2020, arXiv:1912.00167, section 3).

    It contains the newest `num_batches` batches. Each batch may be drawn `iterations_per_batch` times, and all
    remaining draws are equally likely. In a full buffer, a new batch replaces the oldest one. Several threads may use
    the buffer.

    Args:
        num_batches: At least 1.
        iterations_per_batch: At least 1.
        seed: Seed of the draws; None takes one from the operating system.

    Raises:
        ValueError: If one of the numbers is below 1.
    """

    def __init__(self, num_batches: int, iterations_per_batch: int, *, seed: int | None = None):
        for name, value in (("num_batches", num_batches), ("iterations_per_batch", iterations_per_batch)):
            if value < 1:
                raise ValueError(f"CircularBuffer({name}={value}): give an int of at least 1.")
        self.num_batches = num_batches
        self.iterations_per_batch = iterations_per_batch
        self._batches: deque[tuple[Any, int]] = deque()  # oldest first, with the draws left; 0 once they are over
        self._num_added = 0
        self._random = np.random.default_rng(seed)
        self._changed = threading.Condition()

    def put(self, batch: Any) -> Any:
        """Adds a batch without waiting. A full buffer drops its oldest batch.

        Returns:
            The dropped batch if it was never drawn; None otherwise.
        """
        with self._changed:
            oldest, left = self._batches.popleft() if len(self._batches) == self.num_batches else (None, 0)
            self._batches.append((batch, self.iterations_per_batch))
            self._num_added += 1
            self._changed.notify_all()
            return oldest if left == self.iterations_per_batch else None

    def get(self, timeout: float | None = None) -> Any:
        """Draws a random batch from the buffer; waits for a new batch if all were drawn as often as allowed.

        Args:
            timeout: Longest wait in seconds; 0 does not wait, None waits without a limit.

        Raises:
            TimeoutError: If no batch can be drawn within this time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: len(self) > 0, timeout):
                raise TimeoutError(
                    f"CircularBuffer.get(timeout={timeout}): there is no batch to draw. Add batches first, or raise "
                    "the timeout."
                )
            draws = [left for _, left in self._batches]
            index = int(np.searchsorted(np.cumsum(draws), self._random.integers(sum(draws)), side="right"))
            batch, left = self._batches[index]
            # What cannot be drawn any more keeps its place, and not its memory.
            self._batches[index] = (batch, left - 1) if left > 1 else (None, 0)
            return batch

    def waiting(self) -> list[Any]:
        """Returns the batches in the buffer that can still be drawn, oldest first."""
        with self._changed:
            return [batch for batch, left in self._batches if left]

    def __len__(self) -> int:
        """Number of draws that are still allowed, summed over the batches in the buffer."""
        return sum(left for _, left in self._batches)

    def qsize(self) -> int:
        """Number of draws that are still allowed, summed over the batches in the buffer."""
        return len(self)

    @property
    def filled(self) -> bool:
        """Whether the buffer was ever full: at least `num_batches` batches (the capacity) have been added since it was
        created.
        """
        return self._num_added >= self.num_batches
