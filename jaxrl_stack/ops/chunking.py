"""Applying a function to many rows in chunks that fit a CPU core's cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

ROWS_PER_CHUNK = 8192
"""Measured on 2 cores: a forward pass of a 64x64 network takes 150 ns a row up to here, 390 ns at 65,536 rows."""


def map_rows(function: Callable[[Any], jax.Array], rows: Any, *, size: int = 1) -> jax.Array:
    """``function(rows)``, on CPU in chunks one after the other; elsewhere all at once.

    Args:
        function: Maps a pytree of arrays ``[n, ...]`` to an array ``[n, ...]``, row by row.
        rows: Pytree of arrays ``[N, ...]``.
        size: How many rows of a dense layer each of them is.

    Returns:
        Array ``[N, ...]``.
    """
    num_rows = jax.tree.leaves(rows)[0].shape[0]
    chunks = num_rows * size // ROWS_PER_CHUNK
    if chunks < 2 or num_rows % chunks:
        return function(rows)

    def in_chunks(rows):
        split = jax.tree.map(lambda x: x.reshape(chunks, num_rows // chunks, *x.shape[1:]), rows)
        out = jax.lax.map(function, split)
        return out.reshape(num_rows, *out.shape[2:])

    return jax.lax.platform_dependent(rows, cpu=in_chunks, default=function)
