"""JAX's default random numbers with an unrolled generator: a tenth of the cost if a program draws few numbers on a CPU.

On CPUs, JAX compiles the rounds of its Threefry-2x32 generator (Salmon et al., 2011, "Parallel random numbers: as easy
as 1, 2, 3") as a loop, for fast compilation. A policy that acts for one environment derives and draws a handful of
numbers one after the other, and spends half of its time on starting these loops. Here the rounds are unrolled; the
numbers are the same.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def wrap_key_data(bits: jax.Array) -> jax.Array:
    """Creates a PRNG key from uint32 ``[2]``, as ``jax.random.wrap_key_data`` does for JAX's default kind of key, but
    with an unrolled generator.

    Any function of ``jax.random`` takes the key and returns what it would return for a default one.
    """
    return jax.random.wrap_key_data(bits, impl=_implementation())


def unrolled(key: jax.Array) -> jax.Array:
    """Converts a PRNG key to a key with an unrolled generator, which gives the same random numbers.

    Only keys of JAX's default kind, "threefry2x32", are converted. Returns keys of other kinds unchanged.
    """
    return wrap_key_data(jax.random.key_data(key)) if jax.random.key_impl(key) == "threefry2x32" else key


@functools.cache
def _implementation() -> Any:
    # Late: it brings along a compiler for kernels.
    from jax.extend.random import define_prng_impl

    return define_prng_impl(
        key_shape=(2,),
        seed=_seed,
        split=_split,
        random_bits=_random_bits,
        fold_in=_fold_in,
        name="unrolled_threefry2x32",
        tag="utf",
    )


def _rounds(key: jax.Array, high: jax.Array, low: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Applies the twenty rounds of the Threefry hash to 64-bit counters, given as two uint32 ``[...]``."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(_PARITY))
    high, low = high + keys[0], low + keys[1]
    for group in range(5):
        for distance in _ROTATIONS[group % 2]:
            high = high + low
            low = (low << jnp.uint32(distance)) | (low >> jnp.uint32(32 - distance))
            low = low ^ high
        high = high + keys[(group + 1) % 3]
        low = low + keys[(group + 2) % 3] + jnp.uint32(group + 1)
    return high, low


def _seed(seed: jax.Array) -> jax.Array:
    return jnp.stack([jnp.uint32(0), seed.astype(jnp.uint32)])


def _fold_in(key: jax.Array, data: Any) -> jax.Array:
    return jnp.stack(_rounds(key, jnp.uint32(0), jnp.asarray(data).astype(jnp.uint32)))


def _counters(shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    size = math.prod(shape)
    # An exported program has sizes that are known only when it runs.
    if isinstance(size, int) and size >= 1 << 32:
        raise ValueError(
            f"Cannot draw random numbers of shape {shape}: one call draws fewer than 2**32 numbers. Draw them in "
            "several calls."
        )
    low = jnp.arange(size, dtype=jnp.uint32).reshape(shape)
    return jnp.zeros_like(low), low


def _split(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return jnp.stack(_rounds(key, *_counters(shape)), axis=-1)


def _random_bits(key: jax.Array, bit_width: int, shape: tuple[int, ...]) -> jax.Array:
    high, low = _rounds(key, *_counters(shape))
    if bit_width == 64:
        return (high.astype(jnp.uint64) << jnp.uint64(32)) | low.astype(jnp.uint64)
    bits = high ^ low
    return bits if bit_width == 32 else bits.astype({8: jnp.uint8, 16: jnp.uint16}[bit_width])
