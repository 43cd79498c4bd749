"""Boolean masks over the rows of a batch: positions of True values, broadcasting, and selection by rows."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

_COMPARED_AT_ONCE = 1 << 15
_COUNTED_AT_ONCE = 1 << 15


class TrueRows(NamedTuple):
    """Index of a boolean mask that finds the row of the k-th True value quickly.

    A running count of many rows is slow on every backend. Therefore True values are counted per block, about
    ``sqrt(N)`` blocks, and per row only in the blocks that contain a wanted row.

    Attributes:
        blocks: bool ``[n, rows per block]``, the mask; rows after its end are False.
        running: int32 ``[n]``, number of True values up to the end of each block.
        num_rows: ``N``, the length of the mask.
    """

    blocks: jax.Array
    running: jax.Array
    num_rows: int

    @classmethod
    def of(cls, mask: jax.Array) -> TrueRows:
        """Builds the search index of a boolean mask ``[N]``: counts of True values, with which `rows` finds the row of
        the k-th True value.
        """
        size = 1 if mask.size <= _COUNTED_AT_ONCE else 1 << math.isqrt(mask.size).bit_length()
        blocks = jnp.pad(mask, (0, -mask.size % size)).reshape(-1, size)
        return cls(blocks, jnp.cumsum(jnp.sum(blocks, axis=1, dtype=jnp.int32)), mask.size)

    @property
    def total(self) -> jax.Array:
        """Number of True values in the mask, int32 scalar."""
        return self.running[-1]

    def rows(self, wanted: jax.Array) -> jax.Array:
        """Finds the row of the k-th True value in the mask for each k in `wanted`, int32 ``[W]``; k counts from 1.

        Args:
            wanted: int32 ``[W]``, the numbers k; numbers below 1 stand for row 0.

        Returns:
            int32 ``[W]``; N if the mask has fewer than k True values.
        """
        if self.blocks.shape[1] == 1:
            # A search is a loop of its own, which takes longer than comparing few numbers with each other.
            few = self.running.size * wanted.size <= _COMPARED_AT_ONCE
            return jnp.searchsorted(self.running, wanted, method="compare_all" if few else "scan").astype(jnp.int32)
        # Not as a loop: on a GPU each step of it would wait for the host.
        block = jnp.sum(self.running < wanted[:, None], axis=1, dtype=jnp.int32)
        before = jnp.where(block > 0, self.running[block - 1], 0)
        own = self.blocks[jnp.minimum(block, len(self.blocks) - 1)]
        running = before[:, None] + jnp.cumsum(own, axis=1, dtype=jnp.int32)
        row = block * self.blocks.shape[1] + jnp.sum(running < wanted[:, None], axis=1, dtype=jnp.int32)
        return jnp.minimum(row, self.num_rows)


def valid_first(mask: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Finds the rows of the True values in each column of a mask ``[T, ...]``, in ascending order.

    Args:
        mask: bool ``[T, ...]``.

    Returns:
        ``(rows, is_valid)``, int32 and bool ``[T, ...]``: entry ``[k, b]`` is the row of the k-th True value of column
        b; after the last True value it is ``T - 1``, and `is_valid` is False.
    """
    num_rows = mask.shape[0]
    running = jnp.cumsum(mask, axis=0, dtype=jnp.int32)
    numbers = jnp.broadcast_to(expand(jnp.arange(num_rows, dtype=jnp.int32), mask), mask.shape)
    columns = jnp.indices(mask.shape, sparse=True)[1:]
    # Placing every row is one pass; searching for each of them, as `TrueRows` does, takes twice as long here.
    to = jnp.where(mask, running - 1, num_rows)
    rows = jnp.full(mask.shape, num_rows - 1, jnp.int32).at[(to, *columns)].set(numbers, mode="drop")
    return rows, numbers < running[-1]


def last_rows(mask: jax.Array) -> jax.Array:
    """Index of the last True row in each column of a mask ``[T, B]``, int32 ``[B]``; 0 if the column has none."""
    rows = jnp.arange(mask.shape[0], dtype=jnp.int32)[:, None]
    return jnp.max(jnp.where(mask, rows, 0), axis=0)


def expand(mask: Any, like: Any) -> Any:
    """Adds trailing axes to `mask` ``[B]`` (or ``[T, B]``), so that it broadcasts against `like` ``[B, ...]``.

    Both are arrays of JAX or of NumPy, and so is what comes back: of the kind of `mask`.
    """
    return mask.reshape(mask.shape + (1,) * (like.ndim - mask.ndim))


def where_rows(mask: jax.Array, yes: Any, no: Any) -> Any:
    """Selects rows of two pytrees ``[B, ...]``: from `yes` where `mask` ``[B]`` is True, otherwise from `no`."""
    return jax.tree.map(lambda a, b: jnp.where(expand(mask, a), a, b), yes, no)


def zero_where(mask: jax.Array, tree: Any) -> Any:
    """Sets the rows of a pytree ``[B, ...]`` to zero where `mask` ``[B]`` is True."""
    return jax.tree.map(lambda x: jnp.where(expand(mask, x), jnp.zeros_like(x), x), tree)
