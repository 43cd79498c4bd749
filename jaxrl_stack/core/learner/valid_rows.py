"""Minibatches of the valid rows of masked blocks, whose number is only known when the program runs.

Each shard has its valid rows, or chunks with a valid step, in the order in which they lie; minibatches count these
alone. A shard with fewer of them than another, or a module with fewer than another, begins anew until the one with the
most has made its epochs: all devices make the same number of gradient steps. A shard without any contributes masked
rows.
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
    """The rows or chunks of one module that count, in every shard of this device.

    Attributes:
        order: int32 ``[S, N]``, their numbers in order; after the last one that of some other row.
        domains: uint32 ``[S, 3]``, `permutation.domain` of how many there are, at least 1.
        num_items: uint32 ``[S]``, how many there are.
        num_rows: uint32 ``[S]``, valid steps in them.
    """

    order: jax.Array
    domains: jax.Array
    num_items: jax.Array
    num_rows: jax.Array

    @classmethod
    def of(cls, mask: jax.Array) -> ValidItems:
        """Of ``LOSS_MASK``, bool ``[S, N]`` of rows, ``[S, N, L]`` of chunks."""
        num_rows = jnp.sum(mask, axis=range(1, mask.ndim), dtype=jnp.uint32)
        is_valid = jnp.any(mask, axis=-1) if mask.ndim == 3 else mask
        num_items = jnp.sum(is_valid, axis=1, dtype=jnp.uint32)
        order = masks.valid_first(is_valid.T)[0].T
        domains = jax.vmap(permutation.domain_of)(jnp.maximum(num_items, 1))
        return cls(order, domains, num_items, num_rows)

    def minibatch(self, step: jax.Array, size: int, seed: jax.Array | None, shards: jax.Array) -> jax.Array:
        """Row numbers of one minibatch in every shard of this device; see `minibatch_index_within`.

        Args:
            step: uint32 scalar, number of the minibatch in the update.
            size: Valid rows per minibatch and shard, ``m``; a shard that has fewer takes some of them again.
            seed: uint32 ``[NUM_ROUNDS]``, the round keys of this update; None keeps the order of the rows.
            shards: uint32 ``[S]``, global numbers of the shards.

        Returns:
            int32 ``[S, m]``.
        """

        def of_shard(order: jax.Array, domain: jax.Array, shard: jax.Array) -> jax.Array:
            (index,) = minibatch_index_within(step, size, domain, seed, shard[None])
            return order.at[index].get(mode="promise_in_bounds")

        return jax.vmap(of_shard)(self.order, self.domains, shards)

    def num_trained(self, num_steps: Any, size: int | None) -> jax.Array:
        """Valid steps in so many minibatches of this device: uint32.

        Args:
            num_steps: Minibatches, a number or an array.
            size: Rows or chunks per minibatch and shard; None: all of them are in each minibatch.
        """
        if size is None:
            return jnp.sum(self.num_rows) * jnp.uint32(num_steps)
        number = self.domains[:, 0]
        taken = jnp.uint32(num_steps) * jnp.uint32(size)
        rounds, rest = taken // number, taken % number
        # Of chunks that were begun anew, as large a share of the valid steps as of the chunks.
        share = jnp.round(rest.astype(jnp.float32) * (self.num_rows / number)).astype(jnp.uint32)
        return jnp.sum(rounds * self.num_rows + jnp.where(self.num_rows == number, rest, share))

    def num_minibatches(self, size: int, num_epochs: int) -> jax.Array:
        """How many minibatches the largest shard of this device takes for its epochs: uint32."""
        return (jnp.uint32(num_epochs) * jnp.max(self.num_items) + jnp.uint32(size - 1)) // jnp.uint32(size)


class CountedRows(NamedTuple):
    """Valid rows of one module in an update.

    Attributes:
        has_rows: bool scalar, whether there is one on any device; True of a module without masks.
        batch_size: float32 scalar, those of a gradient step, the mean over learners and gradient steps.
        num_trained: uint32 scalar, those that gradient steps use, the mean over learners, rounded down.
    """

    has_rows: Any
    batch_size: jax.Array
    num_trained: jax.Array


def num_minibatches(
    valid: Mapping[Any, ValidItems], sizes: Mapping[Any, int], num_epochs: int, at_least: int, axis_name: str | None
) -> jax.Array:
    """How many minibatches modules with masks make, until every shard of every device has seen its rows.

    Args:
        valid: By module.
        sizes: Rows or chunks per minibatch and shard, by module.
        num_epochs: Passes over the rows.
        at_least: How many the modules without masks take, at least 1.
        axis_name: Device axis, or None.

    Returns:
        uint32 scalar, the same on all devices.
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
    """The valid rows of modules in a batch and in the minibatches of an update.

    Args:
        valid: By module.
        sizes: Rows or chunks per minibatch and shard; None: all of them are in each minibatch.
        num_steps: Minibatches, a number or an array.
        num_learners: Learners that the devices belong to.
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
