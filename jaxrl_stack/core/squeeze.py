"""Removal of gaps from rollouts. Gaps are masked steps between an agent's valid steps: env steps in which the agent
does not act.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.frames import FRAMES_BEFORE
from jaxrl_stack.ops import masks, packing


def squeezed(columns: dict[str, Any]) -> dict[str, Any]:
    """Moves the valid steps (``LOSS_MASK`` True) to the front of axis T, separately for each index of axis B and in
    temporal order; masked steps follow.

    Readers of the block then find contiguous steps of one agent: connectors that read the next row, chunks, recurrent
    states. So a block is squeezed before these, while it still has the states of all rows: the states at the starts of
    chunks are then states of squeezed rows.

    Args:
        columns: ``{column: pytree [T, B, ...]}`` of one module, with ``LOSS_MASK`` bool ``[T, B]``, and ``STATE_IN``
            with the state of every row. ``FRAMES_BEFORE`` ``[1, B, ...]`` precedes the first row and is unchanged,
            since the frame of a valid row follows the frame of the valid row before it.

    Returns:
        JAX columns of the same shapes and dtypes. Each masked row repeats some row with the same index of axis B, so
        that its values are finite if the values of that row are.
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
