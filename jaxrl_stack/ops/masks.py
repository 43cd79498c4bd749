"""Flags per row: which rows they are of, and against arrays with further axes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

_COMPARED_AT_ONCE = 1 << 15


def rows_of(running: jax.Array, wanted: jax.Array) -> jax.Array:
    """Rows of the wanted True values of a mask.

    Args:
        running: int32 ``[N]``, ``cumsum`` of the mask.
        wanted: int32 ``[W]``, their numbers, from 1 on; lower ones stand for row 0.

    Returns:
        ``[W]``; N where there are not as many.
    """
    # A search is a loop of its own, which takes longer than comparing few numbers with each other.
    few = running.size * wanted.size <= _COMPARED_AT_ONCE
    return jnp.searchsorted(running, wanted, method="compare_all" if few else "scan")


def expand(mask: Any, like: Any) -> Any:
    """`mask` ``[B]`` (or ``[T, B]``) with trailing axes added, so that it broadcasts against `like` ``[B, ...]``.

    Both are arrays of JAX or of NumPy, and so is what comes back: of the kind of `mask`.
    """
    return mask.reshape(mask.shape + (1,) * (like.ndim - mask.ndim))


def zero_where(mask: jax.Array, tree: Any) -> Any:
    """`tree`, ``[B, ...]``, with zeros in the rows of a `mask` ``[B]``."""
    return jax.tree.map(lambda x: jnp.where(expand(mask, x), jnp.zeros_like(x), x), tree)
