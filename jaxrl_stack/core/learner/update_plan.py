"""The sizes of an update: those that its program is made for, and those that are its arguments."""

from __future__ import annotations

import dataclasses
from typing import Any

from flax import struct

from jaxrl_stack.core.learner.minibatches import num_minibatches


@dataclasses.dataclass(frozen=True)
class UpdatePlan:
    """The static numbers of an update: each combination is a program of its own.

    Attributes:
        num_epochs: Passes over the batch.
        minibatch_size: Rows per gradient step over all devices of a learner, or None for the whole batch.
        shuffle: Whether each of several epochs has its own random order.
        num_total_minibatches: Number of gradient steps; 0 for as many as the epochs make.
        num_shards: Shuffle shards over all devices of all learners.
        num_devices: Devices of all learners.
        num_learners: Learners that share the update, each with as many devices and shards.
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
        """Shuffle shards of one learner."""
        return self.num_shards // self.num_learners

    @property
    def local_devices(self) -> int:
        """Devices of one learner."""
        return self.num_devices // self.num_learners

    @property
    def shards_per_device(self) -> int:
        """Shuffle shards of one device."""
        return self.num_shards // self.num_devices

    def rows_per_shard_and_step(self, length: int = 1) -> int | None:
        """Rows of a minibatch that come from each shard; None for all of them.

        Args:
            length: Steps of a chunk: then chunks, as many as there is room for, or one.
        """
        return None if self.minibatch_size is None else max(self.minibatch_size // self.local_shards // length, 1)

    def num_steps(self, num_rows: int, length: int = 1) -> int:
        """Gradient steps of an update.

        Args:
            num_rows: Rows per shard; chunks of ``length`` steps, if that is above 1.
            length: Steps of a chunk.
        """
        size = self.rows_per_shard_and_step(length)
        return self.num_total_minibatches or num_minibatches(num_rows, size, self.num_epochs)


@struct.dataclass
class RowCounts:
    """How many rows a padded batch really has: arrays, so that another number is the same program.

    Attributes:
        domains: ``{module_id: uint32 [3]}``, `permutation.domain` of the rows per shard.
        num_steps: uint32 scalar, gradient steps to make; the same on all devices.
    """

    domains: dict[str, Any]
    num_steps: Any
