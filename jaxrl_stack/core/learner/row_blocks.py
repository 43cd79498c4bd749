"""Rows on the host as the blocks that a compiled update takes: padded, so that few shapes are ever compiled.

An update's number of rows enters its program as an array. The shapes around it grow in steps of at most a quarter, and
what fills them up is never read, or masked where a loss sees all rows at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.frames import FRAMES_BEFORE
from jaxrl_stack.core.layouts import ROWS, Layout, Layouts, layout_of
from jaxrl_stack.utils.spaces import validate_batch

if TYPE_CHECKING:
    from jaxrl_stack.core.learner.update_plan import RowCounts, UpdatePlan
    from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModule
    from jaxrl_stack.core.rl_module.rl_module import RLModule

_EIGHTHS = (8, 10, 12, 15)
"""Sizes are these eighths of a power of two: steps of 25, 20, 25 and 7 percent."""


class PaddedRows(NamedTuple):
    """Rows as a compiled update takes them.

    Attributes:
        blocks: ``{module_id: {column: [D, 1, S / D * size, ...]}}``, see `lay_out_rows`.
        row_counts: One `RowCounts` ``[D, ...]`` where they are taken in minibatches; else none.
        plan: Of the update, with the layouts of the blocks.
    """

    blocks: dict[str, dict[str, Any]]
    row_counts: tuple[RowCounts, ...]
    plan: UpdatePlan


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


def check_block(
    block: Mapping[str, dict[str, Any]], modules: MultiRLModule, plan: UpdatePlan, planned: Layouts
) -> dict[str, tuple[int, int]]:
    """``(T, B)`` of each module's columns ``[T, B, ...]``.

    Args:
        block: ``{module_id: {column: pytree [T, B, ...]}}``.
        modules: Those of the learner, by id.
        plan: Of the update; its layouts are not looked at.
        planned: What was sampled with a layout; of other columns names say what they are.

    Raises:
        ValueError: If they cannot be dealt out to devices and shards.
    """
    return {mid: _check_columns_of_block(mid, columns, modules, plan, planned) for mid, columns in block.items()}


def _check_columns_of_block(
    module_id: str, columns: dict[str, Any], modules: MultiRLModule, plan: UpdatePlan, planned: Layouts
) -> tuple[int, int]:
    if module_id not in modules:
        raise ValueError(f"The block has a module {module_id!r}; this learner has {list(modules)}.")
    is_planned, others = module_id in planned, (Columns.STATE_IN, FRAMES_BEFORE)
    if is_planned:
        steps = planned[module_id].steps(columns)
    else:
        steps = {name: column for name, column in columns.items() if name not in others}
    shapes = {np.shape(leaf)[:2] for leaf in jax.tree.leaves(steps)}
    if len(shapes) != 1 or len(next(iter(shapes))) != 2 or 0 in next(iter(shapes)):
        found = {name: [np.shape(leaf) for leaf in jax.tree.leaves(column)] for name, column in columns.items()}
        raise ValueError(
            f"All columns of a block must be [T, B, ...] with the same T and B above 0; module {module_id!r} has "
            f"{found}."
        )
    num_steps, num_columns = next(iter(shapes))
    module = modules[module_id]
    layout, states = layout_of(module, num_steps), []
    if layout.is_recurrent or not is_planned:
        states = jax.tree.leaves(columns.get(Columns.STATE_IN, {}))
    expected = (layout.num_chunks(num_steps), num_columns)
    if bool(states) != layout.is_recurrent or any(np.shape(leaf)[:2] != expected for leaf in states):
        needed = f"state_in {[*expected, '...']}" if layout.is_recurrent else "no state_in"
        raise ValueError(
            f"A block of [T={num_steps}, B={num_columns}] needs {needed} for module {module_id!r}, a "
            f"{type(module).__name__}, and has {[np.shape(leaf) for leaf in states] or 'none'}: use the experience "
            f"of sample_block()."
        )
    if num_columns % plan.local_shards:
        more = -(-num_columns // plan.local_shards) * plan.local_shards
        if plan.num_shards == plan.num_devices:
            what = f"{plan.local_shards} devices of a learner (num_cpus_per_learner or num_gpus_per_learner)"
        else:
            what = f"{plan.local_shards} shuffle shards of a learner (num_shuffle_shards={plan.num_shards})"
        raise ValueError(
            f"A block of B={num_columns} columns, one per environment, cannot be dealt out to the {what}: their "
            f"number must divide B. Use {more} environments, or as many as divide {num_columns} of the other."
        )
    return num_steps, num_columns


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
