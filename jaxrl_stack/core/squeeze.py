"""Blocks in which agents skip steps, as blocks without gaps."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.frames import FRAMES_BEFORE
from jaxrl_stack.ops import masks, packing


def squeezed(columns: dict[str, Any]) -> dict[str, Any]:
    """A block with the valid rows of each of its columns first, in their order, and all others masked after them.

    Whatever reads the block then sees contiguous steps of one agent: connectors that look at the next row, chunks,
    recurrent states. So a block is squeezed before any of them, and while it has the states of all rows: those at the
    starts of chunks are those of the squeezed rows.

    Args:
        columns: ``{column: pytree [T, B, ...]}`` of one module, ``LOSS_MASK`` bool ``[T, B]`` among them, and
            ``STATE_IN`` with the state of every row. ``FRAMES_BEFORE`` ``[1, B, ...]`` comes before the first row and
            stays: of frames, the one of a valid row follows on that of the valid row before it.

    Returns:
        Columns of the same shapes and dtypes, of JAX. Masked rows repeat some row of their column, so that nothing in
        them is less finite than what there was.
    """
    mask = jnp.asarray(columns[Columns.LOSS_MASK])
    num_steps, num_columns = mask.shape
    rows, is_valid = masks.valid_first(mask)
    index = rows * num_columns + jnp.arange(num_columns, dtype=jnp.int32)
    moved = {name: own for name, own in columns.items() if name not in (FRAMES_BEFORE, Columns.LOSS_MASK)}
    leaves, treedef = jax.tree.flatten(jax.tree.map(jnp.asarray, moved))

    def gather(x: jax.Array) -> jax.Array:
        return x.reshape(num_steps * num_columns, *x.shape[2:]).at[index].get(mode="promise_in_bounds")

    matrix, loose, slots = packing.pack(leaves, lead=2)
    matrix, loose = jax.tree.map(gather, (matrix, loose))
    moved = jax.tree.unflatten(treedef, [slot.read(matrix, loose) for slot in slots])
    return {**columns, **moved, Columns.LOSS_MASK: is_valid}
