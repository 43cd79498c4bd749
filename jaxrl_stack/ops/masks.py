"""Flags per row against arrays with further axes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def expand(mask: Any, like: Any) -> Any:
    """`mask` ``[B]`` (or ``[T, B]``) with trailing axes added, so that it broadcasts against `like` ``[B, ...]``.

    Both are arrays of JAX or of NumPy, and so is what comes back: of the kind of `mask`.
    """
    return mask.reshape(mask.shape + (1,) * (like.ndim - mask.ndim))


def zero_where(mask: jax.Array, tree: Any) -> Any:
    """`tree`, ``[B, ...]``, with zeros in the rows of a `mask` ``[B]``."""
    return jax.tree.map(lambda x: jnp.where(expand(mask, x), jnp.zeros_like(x), x), tree)
