"""From a train batch to the rows of one minibatch, inside the compiled update.

The update is one flat scan. Row ``p`` of the stream of all rows of all epochs is ``perm_{p // N}(p mod N)``, where
``perm_e`` is the permutation of epoch ``e``; a minibatch is the next ``m`` rows of that stream. So each epoch covers
every row once, minibatches may straddle two epochs, and only the last one may re-use rows to be full.

Shards: the rows are dealt out to ``S`` shards, each shuffled within itself, and every minibatch takes the same number
of rows from each. With one shard per device no row ever moves between devices; one device with ``S`` shards makes the
same update as ``S`` devices.

Blocks with masked rows have streams of the others: see `valid_rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_stack.core import frames
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.layouts import ROWS, Layout
from jaxrl_stack.ops import packing, permutation
from jaxrl_stack.utils.typing import ModuleID

Batch = dict[ModuleID, dict[str, Any]]
"""Columns of every module."""


def num_minibatches(num_rows: int, minibatch_size: int | None, num_epochs: int) -> int:
    """Number of minibatches in ``num_epochs`` passes over ``num_rows`` rows: ``ceil(epochs * rows / size)``.

    Where a layout has chunks, these take the place of rows, here and below.
    """
    return num_epochs if minibatch_size is None else -(-num_epochs * num_rows // minibatch_size)


def shard_rows(block: Any, num_shards: int) -> Any:
    """Lay a time-major block out as rows per shard.

    Args:
        block: Pytree of arrays ``[T, B, ...]``; shard ``s`` owns the columns ``s * B/S ... (s+1) * B/S - 1``.
        num_shards: ``S``, a divisor of ``B``.

    Returns:
        The same pytree with leaves ``[S, T * B/S, ...]``.
    """

    def one(x: jax.Array) -> jax.Array:
        t, b = x.shape[:2]
        if num_shards == 1:
            return x.reshape(1, t * b, *x.shape[2:])
        x = x.reshape(t, num_shards, b // num_shards, *x.shape[2:])
        return jnp.moveaxis(x, 1, 0).reshape(num_shards, t * (b // num_shards), *x.shape[3:])

    return jax.tree.map(one, block)


class PackedRows:
    """Columns of one module packed side by side, so that a minibatch is one gather of short contiguous rows.

    32-bit columns and flags are bit-cast into one uint32 matrix ``[S, N, width]``; everything else (uint8 frames,
    64-bit numbers) stays a column of its own and is gathered by itself.

    Args:
        columns: ``{column: pytree of arrays [S, N, ...]}``.
        carried: Names of the columns that matter; the others are zeros in every minibatch. None for all.
        layout: Of the columns; in minibatches there are whole observations, whatever it says of frames.
    """

    def __init__(self, columns: dict[str, Any], carried: Collection[str] | None = None, layout: Layout = ROWS):
        self._stacks = None
        if layout.num_frames > 1:
            self._stacks = jax.vmap(frames.FrameRows.of)({name: columns[name] for name in frames.OF_ROWS})
            columns = {name: own for name, own in columns.items() if name not in frames.OF_ROWS}
        self.num_shards, self.num_rows = jax.tree.leaves(columns)[0].shape[:2]
        self.layout = layout
        self._left_out = {c: v for c, v in columns.items() if carried is not None and c not in carried}
        self.columns = columns = {c: v for c, v in columns.items() if c not in self._left_out}
        leaves, self._treedef = jax.tree.flatten(columns)
        self._matrix, self._loose, self._slots = packing.pack(leaves, lead=2)

    def take_column(self, name: str, index: jax.Array) -> jax.Array:
        """One column at the rows ``index`` ``[S, m]``, shards laid end to end."""
        return jax.vmap(lambda shard, i: shard.at[i].get(mode="promise_in_bounds"))(self.columns[name], index).reshape(
            -1, *self.columns[name].shape[2:]
        )

    def take(self, index: jax.Array) -> Any:
        """The rows ``index[s]`` of every shard ``s``, shards laid end to end.

        Args:
            index: uint32 ``[S, m]``.

        Returns:
            ``{column: pytree of arrays [S * m, ...]}``.
        """

        def of_shards(take: Callable[[Any, jax.Array], jax.Array], x: Any) -> jax.Array:
            if self.num_shards == 1:
                return take(jax.tree.map(lambda x: x[0], x), index[0])
            rows = jax.vmap(take)(x, index)
            return rows.reshape(-1, *rows.shape[2:])

        def gather(x: jax.Array) -> jax.Array:
            return of_shards(lambda shard, i: shard.at[i].get(mode="promise_in_bounds"), x)

        stacks = {} if self._stacks is None else {Columns.OBS: of_shards(frames.FrameRows.take, self._stacks)}
        matrix = None if self._matrix is None else gather(self._matrix)
        loose = [gather(leaf) for leaf in self._loose]
        out = [slot.read(matrix, loose) for slot in self._slots]
        num_rows = index.size
        return (
            stacks
            | jax.tree.unflatten(self._treedef, out)
            | jax.tree.map(lambda x: jnp.zeros((num_rows, *x.shape[2:]), x.dtype), self._left_out)
        )


class WholeRows:
    """Stands for `PackedRows` where a step takes all rows: each column stays by itself.

    Args:
        columns: ``{column: pytree of arrays [N, ...]}``.
        layout: Of the columns.
    """

    def __init__(self, columns: dict[str, Any], layout: Layout = ROWS):
        self.columns = columns
        self.layout = layout

    def take(self, index: Any) -> dict[str, Any]:
        """All rows, whatever the index."""
        return dict(self.columns)

    def take_column(self, name: str, index: Any) -> jax.Array:
        """All rows of one column that is an array, whatever the index."""
        return self.columns[name]


def epoch_keys(seed: jax.Array, num_epochs: int, shards: jax.Array) -> jax.Array:
    """Round keys of the permutation of every epoch and shard.

    Args:
        seed: uint32 ``[NUM_ROUNDS]``, the round keys of this update.
        num_epochs: Number of epochs that the minibatches reach into.
        shards: uint32 ``[S_local]``, global numbers of the shards that live here.

    Returns:
        uint32 ``[num_epochs, S_local, NUM_ROUNDS]``.
    """
    epochs = jnp.arange(num_epochs, dtype=jnp.uint32)
    return permutation.derive_keys(seed, epochs[:, None, None], shards[None, :, None])


def minibatch_index(step: jax.Array, size: int, num_rows: int, keys: jax.Array | None) -> jax.Array:
    """Row numbers of one minibatch in every local shard.

    Args:
        step: uint32 scalar, number of the minibatch in the update.
        size: Rows per minibatch and shard, ``m``.
        num_rows: Rows per shard, ``N``.
        keys: uint32 ``[num_epochs, S_local, NUM_ROUNDS]`` from `epoch_keys`; None keeps the order of the rows.

    Returns:
        uint32 ``[S_local, m]`` (``[1, m]`` without keys; broadcast it).
    """
    position = step * jnp.uint32(size) + jnp.arange(size, dtype=jnp.uint32)
    row = position % jnp.uint32(num_rows)
    if keys is None:
        return row[None]
    if num_rows % size == 0:
        # A minibatch never straddles epochs: one set of round keys per shard.
        epoch_key = keys[(step * jnp.uint32(size)) // jnp.uint32(num_rows)]
        return jax.vmap(lambda k: permutation.permute(row, num_rows, k))(epoch_key)
    epoch_key = keys[position // jnp.uint32(num_rows)]  # [m, S, NUM_ROUNDS]
    return jax.vmap(lambda k: permutation.permute(row, num_rows, k), in_axes=1)(epoch_key)


def minibatch_index_within(
    step: jax.Array, size: int, domain: jax.Array, seed: jax.Array | None, shards: jax.Array
) -> jax.Array:
    """`minibatch_index` where the number of rows is only known when the program runs: the same row numbers.

    Args:
        step: uint32 scalar, number of the minibatch in the update.
        size: Rows per minibatch and shard, ``m``.
        domain: uint32 ``[3]``, `permutation.domain` of the rows per shard.
        seed: uint32 ``[NUM_ROUNDS]``, the round keys of this update; None keeps the order of the rows.
        shards: uint32 ``[S_local]``, global numbers of the shards that live here.

    Returns:
        uint32 ``[S_local, m]`` (``[1, m]`` without a seed; broadcast it).
    """
    position = step * jnp.uint32(size) + jnp.arange(size, dtype=jnp.uint32)
    epoch, row = position // domain[0], position % domain[0]
    if seed is None:
        return row[None]
    keys = permutation.derive_keys(seed, epoch[:, None, None], shards[None, :, None])  # [m, S, NUM_ROUNDS]
    return jax.vmap(lambda k: permutation.permute_within(row, domain, k), in_axes=1)(keys)


def in_parts(index: jax.Array, num_parts: int) -> jax.Array:
    """The rows of a minibatch ``[S, m]`` as those of its equal parts, ``[num_parts, S, m / num_parts]``."""
    return jnp.moveaxis(index.reshape(len(index), num_parts, -1), 1, 0)
