"""Indices of the rows in each minibatch, computed inside the compiled update; `items.py` gathers the rows.

The update is one flat scan. Row ``p`` of the stream of all rows of all epochs is ``perm_{p // N}(p mod N)``, where
``perm_e`` is the permutation of epoch ``e``; a minibatch is the next ``m`` rows of that stream. So each epoch covers
every row once, minibatches may straddle two epochs, and only the last one may re-use rows to be full.

Shards: the rows are split into ``S`` shards, each shuffled within itself, and every minibatch takes the same number of
rows from each shard. With one shard per device no row moves between devices; one device with ``S`` shards makes the
same update as ``S`` devices.

The stream of a block with masked rows contains only the valid rows: see `valid_rows`. If items are chunks, or
environment steps of several agents, read "item" for "row".
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_stack.ops import permutation
from jaxrl_stack.utils.typing import ModuleID

Batch = dict[ModuleID, dict[str, Any]]
"""Columns of every module."""


def num_minibatches(num_rows: int, minibatch_size: int | None, num_epochs: int) -> int:
    """Returns the number of minibatches in `num_epochs` passes over `num_rows` rows.

    It is ``ceil(num_epochs * num_rows / minibatch_size)``; `num_epochs` if ``minibatch_size`` is None.
    """
    return num_epochs if minibatch_size is None else -(-num_epochs * num_rows // minibatch_size)


def epoch_keys(seed: jax.Array, num_epochs: int, shards: jax.Array) -> jax.Array:
    """Returns the keys of the pseudo-random permutations that shuffle the rows, one for every epoch and shuffle shard
    (group of rows that is shuffled separately).

    Args:
        seed: uint32 ``[NUM_ROUNDS]``, the round keys of this update.
        num_epochs: Number of epochs from which the minibatches take rows.
        shards: uint32 ``[S_local]``, global indices of the shards of this device.

    Returns:
        uint32 ``[num_epochs, S_local, NUM_ROUNDS]``.
    """
    epochs = jnp.arange(num_epochs, dtype=jnp.uint32)
    return permutation.derive_keys(seed, epochs[:, None, None], shards[None, :, None])


def minibatch_index(step: jax.Array, size: int, num_rows: int, keys: jax.Array | None) -> jax.Array:
    """Returns the row indices of one minibatch, for every shuffle shard (group of rows that is shuffled separately) on
    this device.

    Args:
        step: uint32 scalar, index of the minibatch in the update.
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
    """Returns the row indices of one minibatch, for every shuffle shard on this device.

    A shuffle shard is a group of rows that is shuffled separately. The number of rows per shard is a traced value in
    `domain`; if it is an int, use `minibatch_index`.

    Args:
        step: uint32 scalar, index of the minibatch in the update.
        size: Rows per minibatch and shard, ``m``.
        domain: uint32 ``[3]``, `permutation.domain` of the number of rows per shard.
        seed: uint32 ``[NUM_ROUNDS]``, the round keys of this update; None keeps the order of the rows.
        shards: uint32 ``[S_local]``, global indices of the shards of this device.

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
    """Splits the row indices of a minibatch, ``[S, m]`` for S shuffle shards, into equal microbatches, ``[num_parts, S,
    m / num_parts]``.
    """
    return jnp.moveaxis(index.reshape(len(index), num_parts, -1), 1, 0)
