"""Minibatches over the valid rows (not masked) of sampled steps; the number of valid rows is known only inside the
running program.

Each shard has a list of its valid rows, or of its chunks with a valid step, in their order; minibatches draw only from
these. All devices make the same number of gradient steps. So shards and modules with fewer valid rows start over until
the shard with the most rows has finished its epochs. A shard without valid rows contributes masked rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_stack.core.learner.minibatches import minibatch_index_within
from jaxrl_stack.ops import masks, permutation, reductions


@struct.dataclass
class ValidItems:
    """Indices of one module's valid rows (not masked), or of its chunks with a valid step, in every shuffle shard on
    this device.

    Attributes:
        order: int32 ``[S, N]``, indices of the valid items in order, then ``N - 1``.
        domains: uint32 ``[S, 3]``, `permutation.domain` of ``max(num_items, 1)``.
        num_items: uint32 ``[S]``, number of valid items.
        num_rows: uint32 ``[S]``, number of valid steps.
    """

    order: jax.Array
    domains: jax.Array
    num_items: jax.Array
    num_rows: jax.Array

    @classmethod
    def of(cls, mask: jax.Array) -> ValidItems:
        """Finds the valid rows, or the chunks with at least one valid step, in a ``LOSS_MASK``.

        The mask is bool ``[S, N]`` for N rows in each of S shuffle shards, or ``[S, N, L]`` for N chunks of L steps.
        """
        num_rows = jnp.sum(mask, axis=range(1, mask.ndim), dtype=jnp.uint32)
        is_valid = jnp.any(mask, axis=-1) if mask.ndim == 3 else mask
        num_items = jnp.sum(is_valid, axis=1, dtype=jnp.uint32)
        order = masks.valid_first(is_valid.T)[0].T
        domains = jax.vmap(permutation.domain_of)(jnp.maximum(num_items, 1))
        return cls(order, domains, num_items, num_rows)

    def minibatch(self, step: jax.Array, size: int, seed: jax.Array | None, shards: jax.Array) -> jax.Array:
        """Returns the indices of the valid rows (or chunks) in one minibatch, for every shuffle shard (group of rows
        that is shuffled separately) on this device.

        Args:
            step: uint32 scalar, index of the minibatch in the update.
            size: Valid items per minibatch and shard, ``m``; a shard with fewer items repeats some of them.
            seed: uint32 ``[NUM_ROUNDS]``, the round keys of this update; None keeps the order of the items.
            shards: uint32 ``[S]``, global indices of the shards.

        Returns:
            int32 ``[S, m]``.
        """

        def of_shard(order: jax.Array, domain: jax.Array, shard: jax.Array) -> jax.Array:
            (index,) = minibatch_index_within(step, size, domain, seed, shard[None])
            return order.at[index].get(mode="promise_in_bounds")

        return jax.vmap(of_shard)(self.order, self.domains, shards)

    def num_trained(self, num_steps: Any, size: int | None) -> jax.Array:
        """Returns the number of valid steps (not masked) in the first `num_steps` minibatches on this device, uint32.

        Args:
            num_steps: Number of minibatches, an int or an array.
            size: Rows or chunks per minibatch and shard; None: each minibatch contains all of them.
        """
        if size is None:
            return jnp.sum(self.num_rows) * jnp.uint32(num_steps)
        number = self.domains[:, 0]
        taken = jnp.uint32(num_steps) * jnp.uint32(size)
        rounds, rest = taken // number, taken % number
        # In an unfinished pass over chunks, the share of valid steps is assumed to be the share of chunks.
        share = jnp.round(rest.astype(jnp.float32) * (self.num_rows / number)).astype(jnp.uint32)
        return jnp.sum(rounds * self.num_rows + jnp.where(self.num_rows == number, rest, share))

    def num_minibatches(self, size: int, num_epochs: int) -> jax.Array:
        """Returns the number of minibatches, uint32, for `num_epochs` passes over this device's largest shuffle shard.

        A shuffle shard is a group of rows that is shuffled separately. The largest one has the most valid rows (not
        masked) or chunks.
        """
        return (jnp.uint32(num_epochs) * jnp.max(self.num_items) + jnp.uint32(size - 1)) // jnp.uint32(size)


class CountedRows(NamedTuple):
    """Statistics of one module's valid rows (not masked) in an update.

    The statistics are: whether the batch has any valid row, the mean number of valid rows per gradient step, and their
    total number over all gradient steps.

    Attributes:
        has_rows: bool scalar, whether any device has a valid row; True for a module without masks.
        batch_size: float32 scalar, valid rows per gradient step, mean over learners and gradient steps.
        num_trained: uint32 scalar, valid rows that all gradient steps use, mean over learners, rounded down.
    """

    has_rows: Any
    batch_size: jax.Array
    num_trained: jax.Array


def num_minibatches(
    valid: Mapping[Any, ValidItems], sizes: Mapping[Any, int], num_epochs: int, at_least: int, axis_name: str | None
) -> jax.Array:
    """Returns the number of minibatches in an update: the smallest number with at least `num_epochs` passes over all
    valid rows.

    Valid rows are not masked. Every shuffle shard (group of rows that is shuffled separately) of every module, on every
    device, gets at least `num_epochs` passes over its valid rows.

    Args:
        valid: Valid items of modules with masks, by module.
        sizes: Rows or chunks per minibatch and shard, by module.
        num_epochs: Number of passes over the rows.
        at_least: Number of minibatches of the modules without masks, at least 1.
        axis_name: Device axis, or None.

    Returns:
        uint32 scalar, equal on all devices.
    """
    needed = jnp.stack([own.num_minibatches(sizes[mid], num_epochs) for mid, own in valid.items()])
    largest = jnp.maximum(jnp.max(needed), jnp.uint32(at_least))
    return largest if axis_name is None else jax.lax.pmax(largest, axis_name)


def counted_rows(
    valid: Mapping[Any, ValidItems],
    sizes: Mapping[Any, int | None],
    num_steps: Any,
    *,
    num_learners: int,
    axis_name: str | None,
) -> dict[Any, CountedRows]:
    """Returns statistics of each module's valid rows (not masked) in an update, ``{module_id: CountedRows}``.

    The statistics are: whether the batch has any valid row, the mean number of valid rows per gradient step, and their
    total number over all gradient steps.

    Args:
        valid: Valid items, by module.
        sizes: Rows or chunks per minibatch and shard, by module; None: each minibatch contains all of them.
        num_steps: Number of minibatches, an int or an array.
        num_learners: Number of learners to which the devices belong.
        axis_name: Device axis, or None.
    """
    own = {mid: (jnp.sum(of.num_rows), of.num_trained(num_steps, sizes[mid])) for mid, of in valid.items()}
    numbers = reductions.psum(own, axis_name) if own else {}
    return {
        mid: CountedRows(
            num_rows > 0,
            num_trained.astype(jnp.float32) / (jnp.float32(num_steps) * num_learners),
            num_trained // num_learners,
        )
        for mid, (num_rows, num_trained) in numbers.items()
    }
