"""Ring of transitions on the device with the functions of flashbax's item buffer, for machines without flashbax."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class RingState(NamedTuple):
    """State of an `ItemRing`.

    Attributes:
        experience: Columns ``[capacity, ...]``.
        place: int32, next row to write.
        size: int32, number of rows written so far, at most the capacity.
    """

    experience: Any
    place: jax.Array
    size: jax.Array


class Sample(NamedTuple):
    """Drawn rows, ``[sample_batch_size, ...]``."""

    experience: Any


class ItemRing(NamedTuple):
    """Ring of single transitions, drawn uniformly with replacement.

    Attributes:
        max_length: Capacity, a multiple of the number of rows that `add` gets.
        min_length: Least number of rows for `can_sample`.
        sample_batch_size: Rows of a sample.
    """

    max_length: int
    min_length: int
    sample_batch_size: int

    def init(self, example: Any) -> RingState:
        """Empty ring of rows such as `example`."""
        columns = jax.tree.map(lambda x: jnp.zeros((self.max_length, *jnp.shape(x)), jnp.asarray(x).dtype), example)
        return RingState(columns, jnp.int32(0), jnp.int32(0))

    def add(self, state: RingState, rows: Any) -> RingState:
        """Writes rows ``[n, ...]`` over the oldest ones."""
        number = jax.tree.leaves(rows)[0].shape[0]
        if self.max_length % number:
            raise ValueError(f"max_length={self.max_length} must be a multiple of the {number} rows of a step.")

        def written(column: jax.Array, new: jax.Array) -> jax.Array:
            return jax.lax.dynamic_update_slice_in_dim(column, new.astype(column.dtype), state.place, axis=0)

        columns = jax.tree.map(written, state.experience, rows)
        size = jnp.minimum(state.size + number, self.max_length)
        return RingState(columns, (state.place + number) % self.max_length, size)

    def can_sample(self, state: RingState) -> jax.Array:
        """True as soon as the ring contains `min_length` rows."""
        return state.size >= self.min_length

    def sample(self, state: RingState, key: jax.Array) -> Sample:
        """Draws `sample_batch_size` of the written rows."""
        index = jax.random.randint(key, (self.sample_batch_size,), 0, state.size)
        return Sample(jax.tree.map(lambda column: column[index], state.experience))


def make_item_ring(*, max_length: int, min_length: int, sample_batch_size: int, add_batches: bool = True) -> ItemRing:
    """Ring with the arguments of ``flashbax.make_item_buffer``; `add_batches` must be True.

    Raises:
        ValueError: `add_batches` is False.
    """
    if not add_batches:
        raise ValueError("add_batches=False: the ring adds batches only. Use add_batches=True.")
    return ItemRing(max_length, min_length, sample_batch_size)
