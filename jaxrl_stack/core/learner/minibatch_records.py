"""Records of single minibatches for debugging: metrics, gradient norms, and the rows with the largest losses in each
minibatch.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.frames import FrameRows
from jaxrl_stack.core.learner.gradient_step import Carry, TakenFrom, row_counts
from jaxrl_stack.core.learner.items import ChunkForm, EnvStepForm, Form, Items, WholeItems
from jaxrl_stack.core.learner.losses import Losses, loss_is_linear
from jaxrl_stack.core.learner.optimizers import ParamDict
from jaxrl_stack.core.learner.traced_metrics import TracedMetrics
from jaxrl_stack.core.learner.tracing import Trace
from jaxrl_stack.utils.named_leaves import is_key
from jaxrl_stack.utils.typing import ModuleID

if TYPE_CHECKING:
    from jaxrl_stack.core.learner.learner import Learner

Record = dict[tuple[str, ...], jax.Array]
"""Numbers of one minibatch by path. The first part of a path is one of the names below."""
METRIC = "metric"
"""``(METRIC, module_id, *name)``: float32 scalar, a metric that the learner logged."""
GRADIENT, APPLIED_GRADIENT, STEP, PARAMETER = "gradient", "applied_gradient", "step", "parameter"
"""``(name, ref)``: float32 scalar, the Euclidean norm of a parameter's gradient before and after
`Learner.postprocess_gradients`, of the change of the parameter, and of the parameter before the change."""
ROW_MEAN = "row_mean"
"""``(ROW_MEAN, module_id)``: float32 scalar, the mean of the losses of rows."""
ROW = "row"
"""``(ROW, module_id, name)``: ``[k, ...]``, the loss, the place and the columns of the rows with the largest losses;
see `MinibatchRecords`. Columns have the name ``"column"`` before theirs."""
COLUMN = "column"
NUM_MINIBATCHES = "num_minibatches"
"""``(NUM_MINIBATCHES,)``: uint32 ``[1]`` for all minibatches of an update, their number."""


@dataclasses.dataclass(frozen=True, eq=False)
class Recorder:
    """Settings of the debugging records of minibatches: the number of rows to record per minibatch, and the size
    (numbers per row) up to which columns are recorded.

    Attributes:
        num_rows: Number of rows with the largest losses that each minibatch records.
        max_numbers: Columns with more numbers per row, such as images, are left out.
        most_minibatches: Number of minibatches, if it is an argument of the program; else None.
    """

    num_rows: int = 20
    max_numbers: int = 256
    most_minibatches: int | None = None


class MinibatchRecords:
    """Function that computes the debugging record of one gradient step while the update is traced.

    The record contains metrics, norms of gradients, parameters and parameter changes, and the rows with the largest
    losses.

    The loss of a row is the row's contribution to the minibatch's loss, times the number of valid rows: the mean over
    the rows is the loss. It is the derivative of the loss with respect to the row's weight in all `masked_means`, which
    is exact if the loss is linear in these means. Without this, no rows are recorded.

    A row has these entries: ``loss``; ``is_valid``; ``item`` and ``shard``, the index of its item, and ``step``, its
    index in an item of several rows; for sampled blocks, its place in the block ``[T, B]``: ``time`` (time step) and
    ``column`` (index on axis B); and the columns.

    Args:
        learner: The learner.
        recorder: Sizes of the record.
        trace_of: See `GradientStep`.
        forms: Forms of the items, by module.
        items: Items of each module.
        num_columns: ``B`` of the modules whose items come from a block.
    """

    def __init__(
        self,
        learner: Learner,
        recorder: Recorder,
        trace_of: Callable[..., Trace],
        forms: Mapping[ModuleID, Form],
        items: Mapping[ModuleID, Items | WholeItems],
        num_columns: Mapping[ModuleID, int],
    ):
        self._learner, self._recorder, self._trace_of, self._forms = learner, recorder, trace_of, forms
        self._items, self._num_columns = items, num_columns
        self._norms: Record = {}

    def note_gradients(self, gradients: ParamDict, applied: ParamDict) -> None:
        """Stores the norms of a step's gradients before and after `Learner.postprocess_gradients`, for the next record
        of a minibatch.
        """
        self._norms = _norms(GRADIENT, gradients) | _norms(APPLIED_GRADIENT, applied)

    def __call__(
        self, before: Carry, after: Carry, logged: TracedMetrics, taken: TakenFrom, index: Mapping[ModuleID, Any]
    ) -> Record:
        """Returns the debugging record of one gradient step. Before this call, `note_gradients` must have stored the
        norms of the step's gradients.

        Args:
            before, after: Arrays before and after the step.
            logged: Metrics of the step.
            taken: Items from which the minibatch is gathered.
            index: See `GradientStep.__call__`.
        """
        trace = self._trace_of(metrics=TracedMetrics(), params=before.params, optimizers={})
        refs, is_linear = trace.trained_refs, loss_is_linear(self._learner)
        values = logged.collect().values(trace.axis_name, are_exchanged=is_linear)
        record: Record = {(METRIC, *path): value for path, value in values.items()}
        record |= self._norms
        record |= _norms(STEP, {ref: after.params[ref] - before.params[ref] for ref in refs})
        record |= _norms(PARAMETER, {ref: before.params[ref] for ref in refs})
        return record | self._rows(before, taken, index, trace.axis_name) if is_linear else record

    def _rows(self, before: Carry, taken: TakenFrom, index: Mapping[ModuleID, Any], axis_name: str | None) -> Record:
        """Finds the rows with the largest losses in a minibatch, and returns them as entries of the minibatch's
        debugging record.

        The entries, ``{path: array}``, are the losses and columns of these rows, the places from which the rows come
        (such as shuffle shard and item, see `_shown`), and each module's mean loss over all valid rows.
        """
        counts = row_counts(taken, index, axis_name)

        def of_part(rest: Any, part: Any) -> tuple[Any, Any]:
            batch = {mid: own.take(part[mid]) for mid, own in taken.items()}
            losses, rest = self._losses_of_rows(before.params, rest, batch, counts)
            masks = {mid: batch[mid][Columns.LOSS_MASK] for mid in batch if self._forms[mid].is_masked}
            return rest, (losses, {mid: mask.reshape(-1) for mid, mask in masks.items()})

        if all(own is None or own.shape[0] == 1 for own in index.values()):
            first = {mid: None if own is None else own[0] for mid, own in index.items()}
            _, (losses, masks) = of_part(before.rest, first)
        else:
            _, (losses, masks) = jax.lax.scan(of_part, before.rest, index)
        record: Record = {}
        for mid, own in losses.items():
            own = own.reshape(-1)
            is_valid = masks[mid].reshape(-1) if mid in masks else jnp.ones(own.shape, bool)
            share = jnp.sum(jnp.where(is_valid, own, 0.0)) / counts[mid]
            record[ROW_MEAN, mid] = share if axis_name is None else jax.lax.pmean(share, axis_name)
            # top_k orders NaN by its sign, which depends on the operation that made it.
            score = jnp.where(is_valid, jnp.where(jnp.isnan(own), jnp.inf, own), -jnp.inf)
            _, rows = jax.lax.top_k(score, min(self._recorder.num_rows, own.size))
            record |= {(ROW, mid, "loss"): own[rows], (ROW, mid, "is_valid"): is_valid[rows]}
            record |= {(ROW, mid, *path): x for path, x in self._shown(mid, rows, index[mid]).items()}
        return record

    def _losses_of_rows(
        self, params: ParamDict, rest: dict[str, jax.Array], batch: dict[ModuleID, Any], counts: dict[ModuleID, Any]
    ) -> tuple[dict[ModuleID, jax.Array], dict[str, jax.Array]]:
        """Returns the loss of every row in a microbatch, ``{module_id: float32 [rows]}``, and the modules'
        non-parameter state after the forward passes.
        """

        def total(weights: dict[ModuleID, jax.Array]) -> tuple[jax.Array, dict[str, jax.Array]]:
            losses = Losses(self._learner, functools.partial(self._trace_of, row_weights=weights), self._forms)
            values, outputs = losses(params, rest, batch, counts, {})
            return jnp.sum(jnp.stack(jax.tree.leaves(values))), outputs.rest

        number = {mid: self._forms[mid].all_valid(columns).size for mid, columns in batch.items()}
        found, rest = jax.grad(total, has_aux=True)({mid: jnp.ones(n, jnp.float32) for mid, n in number.items()})
        return {mid: own * counts[mid] for mid, own in found.items()}, rest

    def _shown(self, module_id: ModuleID, rows: jax.Array, index: jax.Array | None) -> Record:
        """Returns some rows of a minibatch as entries of the minibatch's debugging record.

        The entries are the columns of each row, and the indices of the row's shuffle shard and item (step, chunk or env
        step). If an item has several rows, the entry ``step`` is the index of the row in its item. For rows from
        sampled blocks ``[T, B]``, the entries also contain the time step and the index on axis B. The loss mask, PRNG
        keys and large columns (see `Recorder.max_numbers`) are left out.

        Args:
            module_id: The module.
            rows: int32 ``[k]``, positions in the minibatch.
            index: uint32 ``[parts, S, m / parts]``, the items of the minibatch; None for all items in their order.
        """
        form, items = self._forms[module_id], self._items[module_id]
        columns = {name: own for name, own in items.columns.items() if name != Columns.LOSS_MASK}
        position, step = rows // form.rows_per_item, rows % form.rows_per_item
        if index is None or isinstance(items, WholeItems):
            item, shard = position, jnp.zeros_like(position)
            taken = {name: jax.tree.map(lambda x: x[item], own) for name, own in columns.items()}
        else:
            item = index.reshape(-1)[position].astype(jnp.int32)
            shard = position // index.shape[2] % index.shape[1]
            taken = {name: _taken(own, shard, item) for name, own in columns.items()}
        record: Record = {("item",): item, ("shard",): shard}
        if form.rows_per_item > 1:
            record[("step",)] = step
        if module_id in self._num_columns:
            record |= self._place(form, shard, item, step, self._num_columns[module_id], index)
        of_rows = form.rows_of(taken, step)
        for path, leaf in jax.tree_util.tree_leaves_with_path(of_rows):
            is_small = leaf.size <= self._recorder.max_numbers * len(rows)
            if is_small and not is_key(leaf):
                record[COLUMN, *(str(getattr(part, "key", part)) for part in path)] = leaf
        return record

    @staticmethod
    def _place(form: Form, shard: Any, item: Any, step: Any, num_columns: int, index: Any) -> Record:
        """Returns the places of minibatch rows in the sampled block ``[T, B]`` of this device: ``time`` (time step) and
        ``column`` (index on axis B).
        """
        num_agents = form.num_agents if isinstance(form, EnvStepForm) else 1
        per_shard = num_columns // num_agents // index.shape[1]
        column, time = shard * per_shard + item % per_shard, item // per_shard
        if num_agents > 1:
            column = step * (num_columns // num_agents) + column
        elif isinstance(form, ChunkForm):
            time = time * form.length + step
        return {("column",): column, ("time",): time}


def _norms(name: str, leaves: ParamDict) -> Record:
    return {(name, ref): _norm(leaf) for ref, leaf in leaves.items()}


def _norm(x: jax.Array) -> jax.Array:
    """Returns the Euclidean norm of an array, scaled so that the squares do not overflow or underflow in float32."""
    largest = jnp.max(jnp.abs(x), initial=0.0)
    scale = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1.0)
    return scale * jnp.sqrt(jnp.sum(jnp.square(x / scale)))


def _taken(column: Any, shard: jax.Array, item: jax.Array) -> Any:
    """Gathers items from a column ``[S, N, ...]``, which has N items in each of S shuffle shards.

    Entry i of the result is item ``item[i]`` of shard ``shard[i]``. If the column stores observations as single frames
    (`FrameRows`), returns frame-stacked observations.
    """
    if isinstance(column, FrameRows):
        return jax.vmap(lambda s, i: jax.tree.map(lambda x: x[s], column).take(i[None])[0])(shard, item)
    return jax.tree.map(lambda x: x[shard, item], column)
