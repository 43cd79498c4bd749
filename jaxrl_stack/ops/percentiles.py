"""Percentiles of many numbers without sorting them."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

_BITS = 32


def percentiles_of(values: jax.Array, percentiles: Sequence[float]) -> jax.Array:
    """``jnp.percentile(values, percentiles)`` with linear interpolation; on CPU in a seventh of the time.

    There a sort of 15,360 numbers takes 3.2 ms of one core, and the search below 0.5 ms. Elsewhere they are sorted.

    Args:
        values: float32, any shape, at least one.
        percentiles: In ``[0, 100]``.

    Returns:
        float32 ``[len(percentiles)]``; NaN if any of the values is.
    """
    return jax.lax.platform_dependent(
        values.reshape(-1),
        cpu=lambda x: _by_search(x, percentiles),
        default=lambda x: jnp.percentile(x, jnp.asarray(percentiles)),
    )


def _by_search(values: jax.Array, percentiles: Sequence[float]) -> jax.Array:
    """The ranks on both sides of each percentile, by bisection on the bits of numbers: one count of those below each.

    Read as integers, floats of one sign are in their order; of negative ones it is turned around.
    """
    places = np.asarray(percentiles, np.float64) / 100.0 * (len(values) - 1)
    below = np.floor(places).astype(np.int32)
    ranks = np.stack([below, np.minimum(below + 1, len(values) - 1)])
    ordered = _bits_in_order(jax.lax.bitcast_convert_type(values, jnp.int32))

    def halve(_: int, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        are_enough = jnp.sum(ordered <= middle[..., None], axis=-1) > ranks
        return jnp.where(are_enough, low, middle + 1), jnp.where(are_enough, middle, high)

    limits = np.iinfo(np.int32)
    start = (jnp.full(ranks.shape, limits.min, jnp.int32), jnp.full(ranks.shape, limits.max, jnp.int32))
    found, _ = jax.lax.fori_loop(0, _BITS, halve, start)
    lower, upper = jax.lax.bitcast_convert_type(_bits_in_order(found), jnp.float32)
    share = jnp.asarray(places - below, jnp.float32)
    between = jnp.where(share > 0.0, lower * (1.0 - share) + upper * share, lower)
    return jnp.where(jnp.any(jnp.isnan(values)), jnp.nan, between)


def _bits_in_order(bits: jax.Array) -> jax.Array:
    """Bits of floats as integers that are in the order of the floats; and back, as it is its own inverse."""
    return jnp.where(bits < 0, bits ^ jnp.int32(0x7FFFFFFF), bits)
