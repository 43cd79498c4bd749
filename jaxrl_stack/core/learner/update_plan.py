"""Sizes of an update: a static plan, which is compiled into the program, and numbers of rows, which are arguments of
the program.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from flax import struct

from jaxrl_stack.core.learner.minibatches import num_minibatches


@dataclasses.dataclass(frozen=True)
class UpdatePlan:
    """Static sizes of an update (number of epochs, minibatch size, shuffle shards); each combination is compiled
    separately.

    Attributes:
        num_epochs: Number of passes over the batch.
        minibatch_size: Rows per gradient step over all devices of a learner, or None for the whole batch.
        shuffle: Whether each of several epochs has its own random order.
        num_total_minibatches: Number of gradient steps; 0 for the number that the epochs need.
        num_shards: Shuffle shards over all devices of all learners.
        num_devices: Number of devices of all learners.
        num_learners: Number of learners that share the update; all have the same number of devices and shards.
    """

    num_epochs: int
    minibatch_size: int | None
    shuffle: bool
    num_total_minibatches: int
    num_shards: int
    num_devices: int
    num_learners: int = 1

    @property
    def local_shards(self) -> int:
        """Number of shuffle shards (groups of rows that are shuffled separately) of one learner."""
        return self.num_shards // self.num_learners

    @property
    def local_devices(self) -> int:
        """Number of devices of one learner."""
        return self.num_devices // self.num_learners

    @property
    def shards_per_device(self) -> int:
        """Number of shuffle shards (groups of rows that are shuffled separately) of one device."""
        return self.num_shards // self.num_devices

    def rows_per_shard_and_step(self, length: int = 1) -> int | None:
        """Returns the number of rows (or chunks) that a minibatch takes from each shuffle shard (group of rows that is
        shuffled separately).

        Returns None if each minibatch is the whole batch.

        Args:
            length: Number of steps of a chunk. If above 1, the result counts chunks: those that fit, but at least one.
        """
        return None if self.minibatch_size is None else max(self.minibatch_size // self.local_shards // length, 1)

    def num_steps(self, num_rows: int, length: int = 1) -> int:
        """Returns the number of gradient steps of an update.

        Args:
            num_rows: Number of rows per shard, or of chunks of ``length`` steps if `length` is above 1.
            length: Number of steps of a chunk.
        """
        size = self.rows_per_shard_and_step(length)
        return self.num_total_minibatches or num_minibatches(num_rows, size, self.num_epochs)


@struct.dataclass
class RowCounts:
    """Numbers of real rows in a padded batch, as arrays, so that one compiled program works for every number of real
    rows.

    Attributes:
        domains: ``{module_id: uint32 [3]}``, `permutation.domain` of the rows per shard.
        num_steps: uint32 scalar, number of gradient steps; equal on all devices.
    """

    domains: dict[str, Any]
    num_steps: Any
