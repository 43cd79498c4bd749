"""Padding of batches in host memory to a few fixed numbers of rows, so that few programs must be compiled.

The number of rows of an update is an array argument of its program. The padded sizes grow in steps of at most a
quarter. Padding is never read, or is masked if a loss takes all rows in one step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.learner.items import Form, Items
from jaxrl_stack.utils.spaces import validate_batch

if TYPE_CHECKING:
    from jaxrl_stack.core.block import Block
    from jaxrl_stack.core.learner.update_plan import RowCounts, UpdatePlan
    from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModule
    from jaxrl_stack.core.rl_module.rl_module import RLModule

_EIGHTHS = (8, 10, 12, 15)
"""Padded sizes, in eighths of a power of two: steps of 25, 20, 25 and 7 percent."""


class PaddedRows(NamedTuple):
    """Arguments of a compiled update: a padded batch, and the sizes of the batch and of the update.

    The sizes are the numbers of real rows (rows that are not padding) and gradient steps, and an `UpdatePlan` (static
    sizes, such as the minibatch size).

    Attributes:
        items: ``{module_id: Items}``, with the device axis first; see `lay_out_rows`.
        row_counts: One `RowCounts` ``[D, ...]`` for updates in minibatches; else empty.
        plan: Sizes of the update.
    """

    items: dict[str, Items]
    row_counts: tuple[RowCounts, ...]
    plan: UpdatePlan


def padded_size(n: int) -> int:
    """Returns the padded size for a batch of `n` rows: the smallest allowed size that is at least `n`.

    Only a few sizes are allowed. The padded size is at most a quarter larger than `n`.
    """
    if n <= 8:
        return n
    unit = 1 << ((n - 1).bit_length() - 4)
    return next(size for size in (*(eighths * unit for eighths in _EIGHTHS), 16 * unit) if size >= n)


def rows_per_shard(num_rows: int, num_shards: int) -> int:
    """Returns the number of rows in each of `num_shards` shuffle shards, ``ceil(num_rows / num_shards)``; the last
    shards may be padded.
    """
    return -(-num_rows // num_shards)


def lay_out_rows(
    columns: dict[str, Any], form: Form, *, num_devices: int, num_shards: int, size: int, mask: bool
) -> Items:
    """Distributes the rows of a batch over devices and shuffle shards, and pads every shard to `size` rows.

    The rows (or chunks) ``[N, ...]`` become ``[D, S / D, size, ...]``, with D devices and S shuffle shards, which are
    shuffled separately. Shard ``s`` has the rows ``s * n ... (s + 1) * n - 1`` with ``n = rows_per_shard(N, S)``. The
    padding of the last shards up to ``n``, and of every shard up to `size`, repeats real rows, so that it causes no
    invalid gradients.

    Args:
        columns: ``{column: pytree of arrays [N, ...]}``.
        form: Form of the rows.
        num_devices: ``D``.
        num_shards: ``S``, a multiple of D.
        size: Padded number of rows of each shard, at least ``n``.
        mask: Whether to mark padding in the column ``LOSS_MASK``, which is added if it is missing.
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
        return taken.reshape(num_devices, -1, size, *x.shape[1:])

    out = jax.tree.map(lay_out, columns)
    if mask:
        valid = valid.reshape(num_devices, -1, size)
        for length in form.step_axes:  # all steps of a chunk
            valid = np.repeat(valid[..., None], length, axis=-1)
        out[Columns.LOSS_MASK] = valid & np.asarray(out[Columns.LOSS_MASK], bool) if form.is_masked else valid
    form = dataclasses.replace(form, is_masked=Columns.LOSS_MASK in out)
    return Items(out, None, form, size)


def num_rows_of(module_id: str, columns: dict[str, Any]) -> int:
    """Returns the number of rows of a module's batch, the common length of all columns.

    Raises:
        ValueError: If lengths differ, or there is no row.
    """
    lengths = {name: {np.shape(leaf)[:1] for leaf in jax.tree.leaves(column)} for name, column in columns.items()}
    found = set().union(*lengths.values())
    if len(found) != 1 or found & {(), (0,)}:
        raise ValueError(
            f"All columns of a batch must have the same number of rows, at least 1, but the columns of module "
            f"{module_id!r} have {lengths}. Pass arrays [N, ...] with the same N."
        )
    return found.pop()[0]


def checked_block(module_id: str, block: Block, modules: MultiRLModule, plan: UpdatePlan) -> Block:
    """Checks that a module's sampled steps ``[T, B, ...]`` fit the module and the devices; returns them with a `Layout`
    (static description of the columns).

    Args:
        module_id: Id of the module.
        block: A sampled block, or a user's.
        modules: The learner's modules, by id.
        plan: Sizes of the update.

    Raises:
        ValueError: If columns do not match the layout, or cannot be split over devices and shards.
    """
    if module_id not in modules:
        raise ValueError(
            f"update_block(experience) got sampled steps of the unknown module {module_id!r}. Use only the modules of "
            f"this learner, {list(modules)}."
        )
    block.check_shapes(module_id, modules[module_id])
    num_columns = block.size
    if num_columns % plan.local_shards:
        more = -(-num_columns // plan.local_shards) * plan.local_shards
        if plan.num_shards == plan.num_devices:
            what = f"{plan.local_shards} devices of a learner (num_cpus_per_learner or num_gpus_per_learner)"
        else:
            what = f"{plan.local_shards} shuffle shards of a learner (num_shuffle_shards={plan.num_shards})"
        raise ValueError(
            f"A rollout of shape [T, B, ...] with B={num_columns} cannot be split evenly over the {what}. Use more "
            f"environments (B={more}, for example), or a number of devices or shuffle shards that divides "
            f"{num_columns}."
        )
    block = block.of_module(modules[module_id])
    block.check(module_id)
    return block


def check_columns(module_id: str, columns: dict[str, Any], module: RLModule) -> None:
    """Raises a ValueError if the columns of a module's batch do not fit the module.

    Each column must be numeric or bool. The observations and actions in the batch must match the module's spaces.
    Structure, shapes and kinds of dtypes are compared; values are not checked.
    """
    for name, column in columns.items():
        for leaf in jax.tree.leaves(column, is_leaf=lambda leaf: leaf is None):
            dtype = leaf.dtype if isinstance(leaf, jax.Array) else np.asarray(leaf).dtype
            if not (jnp.issubdtype(dtype, jnp.number) or jnp.issubdtype(dtype, jnp.bool_)):
                raise ValueError(
                    f"Column {name!r} of the batch for module {module_id!r} has the dtype {dtype}. Pass arrays of "
                    f"numbers."
                )
    batch_dims = None
    for name, space in ((Columns.OBS, module.observation_space), (Columns.ACTIONS, module.action_space)):
        if name in columns and space is not None:
            where = f"column {name!r} of the batch for module {module_id!r}"
            batch_dims = len(validate_batch(space, columns[name], batch_dims, where))


def concatenate(batches: Sequence[dict[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Concatenates batches ``{module_id: {column: [N, ...]}}``, module by module."""
    if len(batches) == 1:
        return batches[0]
    return {
        mid: jax.tree.map(lambda *leaves: np.concatenate(leaves), *[b[mid] for b in batches if mid in b])
        for mid in dict.fromkeys(m for b in batches for m in b)
    }
