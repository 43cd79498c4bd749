"""Applying a function to many rows in chunks that fit a CPU core's cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

ROWS_PER_CHUNK = 8192
"""Measured on 2 cores: a forward pass of a 64x64 network takes 150 ns a row up to here, 390 ns at 65,536 rows."""


def map_rows(function: Callable[[Any], Any], rows: Any, *, size: int = 1) -> Any:
    """``function(rows)``, on CPU in chunks one after the other; elsewhere all at once.

    A gradient computes a chunk again and keeps nothing of what lies between its rows and its results, which would leave
    the cache.

    Args:
        function: Maps a pytree of arrays ``[n, ...]`` to another one, row by row.
        rows: Pytree of arrays ``[N, ...]``.
        size: How many rows of a dense layer each of them is.

    Returns:
        Pytree of arrays ``[N, ...]``.
    """
    num_rows = jax.tree.leaves(rows)[0].shape[0]
    chunks = num_rows * size // ROWS_PER_CHUNK
    if chunks < 2 or num_rows % chunks:
        return function(rows)
    of_chunk = jax.checkpoint(function, prevent_cse=False)

    def in_chunks(rows: Any) -> Any:
        split = jax.tree.map(lambda x: x.reshape(chunks, num_rows // chunks, *x.shape[1:]), rows)
        return jax.tree.map(lambda x: x.reshape(num_rows, *x.shape[2:]), jax.lax.map(of_chunk, split))

    return jax.lax.platform_dependent(rows, cpu=in_chunks, default=function)
