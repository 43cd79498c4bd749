"""64-bit unsigned integers as two words, ``uint32[..., 2]`` (high, low), because JAX has no 64-bit integers by default.
Sums and differences wrap at 2**64; leading axes broadcast.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def add(a: jax.Array, b: jax.Array) -> jax.Array:
    """Adds two 64-bit integers, ``a + b``."""
    low = a[..., 1] + b[..., 1]
    carry = (low < b[..., 1]).astype(jnp.uint32)
    return jnp.stack([a[..., 0] + b[..., 0] + carry, low], axis=-1)


def subtract(a: jax.Array, b: jax.Array) -> jax.Array:
    """Subtracts two 64-bit integers, ``a - b``."""
    borrow = (a[..., 1] < b[..., 1]).astype(jnp.uint32)
    return jnp.stack([a[..., 0] - b[..., 0] - borrow, a[..., 1] - b[..., 1]], axis=-1)


def as_float(a: jax.Array) -> jax.Array:
    """Converts a 64-bit integer to float32 ``[...]``: the nearest float32, or a neighbour of the nearest one."""
    return a[..., 0].astype(jnp.float32) * jnp.float32(2**32) + a[..., 1].astype(jnp.float32)
