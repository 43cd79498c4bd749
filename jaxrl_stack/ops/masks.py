"""Flags per row against arrays with further axes."""

from __future__ import annotations

import jax


def expand(mask: jax.Array, like: jax.Array) -> jax.Array:
    """`mask` ``[B]`` (or ``[T, B]``) with trailing axes added, so that it broadcasts against `like` ``[B, ...]``."""
    return mask.reshape(mask.shape + (1,) * (like.ndim - mask.ndim))
