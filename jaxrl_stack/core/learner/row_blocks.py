"""Rows on the host as the blocks that a compiled update takes: padded, so that few shapes are ever compiled.

An update's number of rows enters its program as an array. The shapes around it grow in steps of at most a quarter, and
what fills them up is never read, or masked where a loss sees all rows at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.layouts import ROWS, Layout
from jaxrl_stack.utils.spaces import validate_batch

if TYPE_CHECKING:
    from jaxrl_stack.core.rl_module.rl_module import RLModule

_EIGHTHS = (8, 10, 12, 15)
"""Sizes are these eighths of a power of two: steps of 25, 20, 25 and 7 percent."""


def padded_size(n: int) -> int:
    """The smallest size in use that holds `n` rows; at most a quarter above `n`."""
    if n <= 8:
        return n
    unit = 1 << ((n - 1).bit_length() - 4)
    return next(size for size in (*(eighths * unit for eighths in _EIGHTHS), 16 * unit) if size >= n)


def rows_per_shard(num_rows: int, num_shards: int) -> int:
    """Rows of each shard: all shards hold as many as the largest one."""
    return -(-num_rows // num_shards)


def lay_out_rows(
    columns: dict[str, Any], layout: Layout = ROWS, *, num_devices: int, num_shards: int, size: int, mask: bool
) -> dict[str, Any]:
    """Rows ``[N, ...]``, or chunks, as blocks ``[D, 1, S / D * size, ...]`` for D devices, shard after shard.

    Shard ``s`` has the rows ``s * n ... (s + 1) * n - 1`` with ``n = rows_per_shard(N, S)``. What fills the last
    shards up to ``n``, and every shard up to `size`, repeats real rows, so that it harms no gradient.

    Args:
        columns: ``{column: pytree of arrays [N, ...]}``.
        layout: Of the columns.
        num_devices: ``D``.
        num_shards: ``S``, a multiple of D.
        size: Rows to make room for in each shard, at least ``n``.
        mask: Whether to add or extend the column ``LOSS_MASK`` by what fills up.
    """
    num_rows = jax.tree.leaves(columns)[0].shape[0]
    own = rows_per_shard(num_rows, num_shards)
    at = np.arange(num_shards)[:, None] * own + np.minimum(np.arange(size), own - 1)[None]
    if mask:
        valid = np.broadcast_to(np.arange(size) < own, at.shape) & (at < num_rows)
    index = np.minimum(at, num_rows - 1).reshape(-1)
    is_whole = len(index) == num_rows

    def lay_out(x: Any) -> np.ndarray:
        x = np.asarray(x)
        taken = x if is_whole else np.take(x, index, axis=0)
        return taken.reshape(num_devices, 1, -1, *x.shape[1:])

    out = jax.tree.map(lay_out, columns)
    if mask:
        valid = valid.reshape(num_devices, 1, -1)
        if layout.has_chunks:  # all steps of a chunk
            valid = np.repeat(valid[..., None], layout.length, axis=-1)
        out[Columns.LOSS_MASK] = valid & np.asarray(out[Columns.LOSS_MASK], bool) if layout.is_masked else valid
    return out


def deal_out_columns(block: dict[str, Any], num_devices: int) -> dict[str, Any]:
    """A block ``[T, B, ...]`` as ``[D, T, B / D, ...]``: device ``d`` owns the columns ``d * B/D ... (d+1) * B/D - 1``.

    Views, as far as NumPy has one.
    """

    def one(x: Any) -> np.ndarray:
        x = np.asarray(x)
        return np.moveaxis(x.reshape(x.shape[0], num_devices, -1, *x.shape[2:]), 1, 0)

    return jax.tree.map(one, block)


def num_rows_of(module_id: str, columns: dict[str, Any]) -> int:
    """Length of all columns.

    Raises:
        ValueError: If they differ, or there is no row.
    """
    lengths = {name: {np.shape(leaf)[:1] for leaf in jax.tree.leaves(column)} for name, column in columns.items()}
    found = set().union(*lengths.values())
    if len(found) != 1 or found & {(), (0,)}:
        raise ValueError(
            f"All columns of a batch must have the same number of rows, above 0; module {module_id!r} has {lengths}."
        )
    return found.pop()[0]


def check_columns(module_id: str, columns: dict[str, Any], module: RLModule) -> None:
    """Raises a ValueError for columns that are no numbers, or observations and actions that do not fit the module."""
    for name, column in columns.items():
        for leaf in jax.tree.leaves(column, is_leaf=lambda leaf: leaf is None):
            dtype = leaf.dtype if isinstance(leaf, jax.Array) else np.asarray(leaf).dtype
            if not (jnp.issubdtype(dtype, jnp.number) or jnp.issubdtype(dtype, jnp.bool_)):
                raise ValueError(
                    f"Column {name!r} of the batch for module {module_id!r} has the dtype {dtype}: give arrays "
                    f"of numbers."
                )
    batch_dims = None
    for name, space in ((Columns.OBS, module.observation_space), (Columns.ACTIONS, module.action_space)):
        if name in columns and space is not None:
            where = f"column {name!r} of the batch for module {module_id!r}"
            batch_dims = len(validate_batch(space, columns[name], batch_dims, where))


def concatenate(batches: Sequence[dict[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Batches ``{module_id: {column: [N, ...]}}`` laid end to end, module by module."""
    if len(batches) == 1:
        return batches[0]
    return {
        mid: jax.tree.map(lambda *leaves: np.concatenate(leaves), *[b[mid] for b in batches if mid in b])
        for mid in dict.fromkeys(m for b in batches for m in b)
    }
