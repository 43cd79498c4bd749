"""One gradient step of a Learner, traced: losses and their gradients, then the hooks that change the parameters."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.learner.learner_base import Batch, ModuleID
from jaxrl_stack.core.learner.loss_hooks import LinearizedLosses, LossHooks, Trace
from jaxrl_stack.core.learner.minibatches import PackedRows, WholeRows
from jaxrl_stack.core.learner.optimizers import ParamDict, as_vector
from jaxrl_stack.core.learner.traced_metrics import NOT_FINITE, Metrics, TracedMetrics
from jaxrl_stack.core.rl_module.apis import SelfSupervisedLossAPI
from jaxrl_stack.core.rl_module.row_independence import can_be_split, handles_resets
from jaxrl_stack.core.rl_module.sequences import leading_axes, step_by_step
from jaxrl_stack.ops import reductions
from jaxrl_stack.utils.devices import Device
from jaxrl_stack.utils.live_inputs import Once

Carry = tuple[ParamDict, dict[str, jax.Array], Any]
"""What a gradient step changes: parameters, other state of the modules, optimizer states."""
Rows = Mapping[ModuleID, PackedRows | WholeRows]


class GradientStep:
    """One gradient step of a learner on the rows of a minibatch, as a function to trace.

    Args:
        learner: Whose hooks it calls; they are looked up when it is traced.
        trace_of: ``(metrics, params, optimizers) -> Trace``, the part of a trace that all steps of an update share.
    """

    def __init__(self, learner: LossHooks, trace_of: Callable[..., Trace]):
        self._learner = learner
        self._trace_of = trace_of
        self._losses_of: Callable[..., Any] = self.losses

    def __call__(self, carry: Carry, rows: Rows, index: Mapping[ModuleID, Any]) -> tuple[Carry, TracedMetrics]:
        """Make the step.

        Args:
            carry: Before it.
            rows: Those to take minibatches of.
            index: ``{module_id: uint32 [microbatches, S, m / microbatches]}``, the rows of this minibatch; None for
                all rows, at once.

        Returns:
            ``(carry, metrics)`` after it.
        """
        learner, (params, rest, optimizers) = self._learner, carry
        trace = self._trace_of(metrics=TracedMetrics(), params=params, optimizers=optimizers)
        first = {mid: None if own is None else own[0] for mid, own in index.items()}
        with learner.tracing(trace):
            if loss_is_linear(learner):
                trace.row_counts = row_counts(rows, index, trace.axis_name)
                losses, rest, metrics, per_row = self._in_parts(trace, rest, rows, index, first)
            else:
                losses, trace.linearized, (rest, metrics, per_row) = self._linearized(trace, rest, rows, first)
            trace.losses = losses
            trace.metrics = TracedMetrics(metrics, per_row)
            # The module that the losses saw belongs to their differentiation and must not be read after it.
            trace.module = learner.pure.bind(params, rest)
            for mid, loss in losses.items():
                total = sum(loss.values()) if isinstance(loss, dict) else loss
                trace.metrics.log_value((mid, learner.TOTAL_LOSS_KEY), total, window=1)
            gradients = learner.compute_gradients(losses)
            if learner.config.check_nans:
                _log_finiteness(learner, trace.metrics, losses, gradients)
            learner.apply_gradients(learner.postprocess_gradients(gradients))
            return (trace.params, rest, trace.optimizers), trace.metrics

    def _in_parts(
        self, trace: Trace, rest: dict[str, jax.Array], rows: Rows, index: Mapping[ModuleID, Any], first: Any
    ) -> tuple[dict[ModuleID, Any], dict[str, jax.Array], Metrics, dict[Any, jax.Array]]:
        """Losses, and gradients for `trace`, added up over the parts of the minibatch and averaged over devices.

        Returns:
            ``(losses, other state of the modules, metrics, metrics per row)``.
        """

        def of_part(rest, part):
            losses, linearized, (rest, metrics, per_row) = self._linearized(trace, rest, rows, part)
            return rest, (losses, self._learner.gradients_of(losses, linearized), metrics), per_row

        def shares_of_part(rest, part):
            rest, (losses, gradients, metrics), _ = of_part(rest, part)
            return rest, (losses, as_vector(gradients)[0]), metrics

        per_row: dict[Any, jax.Array] = {}
        if all(own is None or own.shape[0] == 1 for own in index.values()):
            rest, (losses, gradients, metrics), per_row = of_part(rest, first)
        else:
            _, shares, metrics = jax.eval_shape(shares_of_part, rest, first)

            def add(carry, part):
                rest, shares, metrics = carry
                rest, own, logged = shares_of_part(rest, part)
                return (rest, jax.tree.map(jnp.add, shares, own), metrics.with_part(logged)), None

            zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shares)
            (rest, (losses, vector), metrics), _ = jax.lax.scan(add, (rest, zeros, metrics.nothing()), index)
            gradients = as_vector({ref: trace.params[ref] for ref in trace.trained_refs})[1](vector)
        axis_name = trace.axis_name
        (losses, trace.gradients, averages), slots = reductions.means_and_sums(
            (losses, gradients, metrics.averages), metrics.statistics_in_slots(axis_name), axis_name
        )
        return losses, rest, metrics.exchanged(averages, slots), per_row

    def _linearized(self, trace: Trace, rest: dict[str, jax.Array], rows: Rows, index: Any) -> tuple[Any, Any, Any]:
        """Losses of the rows at `index`, how they change with the parameters, and what `losses` returns with them."""
        batch = {mid: own.take(index[mid]) for mid, own in rows.items()}
        trained = {ref: trace.params[ref] for ref in trace.trained_refs}
        losses = functools.partial(self._losses_of, trace.params, rest, batch, trace.row_counts)
        values, function, others = jax.linearize(losses, trained, has_aux=True)
        return values, LinearizedLosses(function, trained), others

    def losses(self, params: ParamDict, rest: Any, batch: Any, row_counts: Any, trained: ParamDict) -> Any:
        """The losses of rows, ``{module_id: {column: [m, ...]}}``, and what they leave.

        Args:
            params: All parameters.
            rest: Other state of the modules.
            batch: The rows; of a module with a recurrent state chunks, ``[m, L, ...]``.
            row_counts: What `row_counts` returned, or None.
            trained: Those of the parameters that change.

        Returns:
            ``(losses, (rest, metrics, metrics per row))``.
        """
        learner = self._learner
        trace = self._trace_of(metrics=TracedMetrics(), params=params, optimizers={})
        trace.row_counts = row_counts
        trace.module = learner.pure.bind({**params, **trained}, rest)
        batch, fwd_out = dict(batch), {}
        with learner.tracing(trace):
            try:
                for mid, columns in batch.items():
                    has_mask = Columns.LOSS_MASK in columns
                    if not has_mask:
                        columns = {**columns, Columns.LOSS_MASK: jnp.ones(leading_axes(columns), bool)}
                    batch[mid], fwd_out[mid] = self._forward(mid, trace.module[mid], columns)
                    trace.masks[mid] = batch[mid][Columns.LOSS_MASK]
                    if not has_mask:
                        trace.full_masks.append(trace.masks[mid])
                losses = learner.compute_losses(fwd_out=fwd_out, batch=batch)
            except KeyError as error:
                columns, outputs = ({mid: sorted(own) for mid, own in x.items()} for x in (batch, fwd_out))
                raise ValueError(
                    f"The loss of {type(learner).__name__}, or a forward_train(), looks up {error}, which is not "
                    f"there: the batch has the columns {columns}, and forward_train() returned {outputs}. Add a "
                    f"learner connector that makes it, or look up one of these."
                ) from error
        _check_losses(losses, type(learner).__name__)
        return losses, (learner.pure.unbind(trace.module)[1], trace.metrics.collect(), trace.metrics.rows)

    def _forward(self, module_id: ModuleID, module: Any, columns: dict[str, Any]) -> tuple[Any, Any]:
        """``(columns, what forward_train returns of them)``; see `step_by_step` for columns that become others."""
        if Columns.RESETS in columns and not handles_resets(self._learner.template[module_id]):
            return step_by_step(module, columns)
        return columns, module.forward_train(columns)

    def arguments_of_losses(
        self, params: ParamDict, rest: dict[str, jax.Array], batch: Batch, num_rows: Mapping[ModuleID, int]
    ) -> tuple[Any, ...]:
        """Those to trace `losses` for, with `num_rows` rows of each module's ``[T, B, ...]``."""

        def minibatch(x, n):
            return jax.ShapeDtypeStruct((n, *x.shape[2:]), x.dtype)

        rows = {mid: jax.tree.map(lambda x, n=num_rows[mid]: minibatch(x, n), own) for mid, own in batch.items()}
        trace = self._trace_of(metrics=TracedMetrics(), params=params, optimizers={})
        counts = dict.fromkeys(rows, jnp.float32(0.0)) if loss_is_linear(self._learner) else None
        return params, rest, rows, counts, {ref: params[ref] for ref in trace.trained_refs}

    def replay_losses(self, once: Once) -> dict[ModuleID, frozenset[str]]:
        """Replay a trace of `losses` from here on.

        Returns:
            The columns that the losses depend on; the others need not be carried through the shuffle.
        """
        self._losses_of = once.call
        return {
            mid: frozenset(c for c, own in columns.items() if any(jax.tree.leaves(own)))
            for mid, columns in once.matters[2].items()
        }


def _check_losses(losses: Any, learner: str) -> None:
    """Raises a ValueError if `compute_losses` of a learner of that class returned anything but scalars by module id."""
    if not isinstance(losses, Mapping):
        raise ValueError(
            f"{learner}.compute_losses() returned a {type(losses).__name__}: return a dict {{module_id: loss}}."
        )
    for mid, loss in losses.items():
        name = f"The loss of module {mid!r} in {learner}"
        for scalar in jax.tree.leaves(loss, is_leaf=lambda leaf: leaf is None):
            if not isinstance(scalar, jax.Array | np.ndarray | np.generic | float | int):
                raise ValueError(f"{name} is {scalar!r}: return a float32 scalar.")
            if jnp.shape(scalar):
                raise ValueError(
                    f"{name} has the shape {jnp.shape(scalar)}: return a scalar. Take means over the batch with "
                    f"self.masked_mean(x, batch)."
                )
            if not jnp.issubdtype(jnp.result_type(scalar), jnp.floating):
                raise ValueError(
                    f"{name} has the dtype {jnp.result_type(scalar)}, which has no gradient: return a float32 scalar."
                )


def _log_finiteness(
    learner: LossHooks, metrics: TracedMetrics, losses: Mapping[ModuleID, Any], gradients: ParamDict
) -> None:
    """Flags for ``config.debugging(check_nans=True)``; read by `raise_if_not_finite`."""
    for mid, loss in losses.items():
        flags = {"loss": jax.tree.reduce(jnp.logical_and, jax.tree.map(jnp.isfinite, loss))}
        for ref, gradient in gradients.items():
            if ref in learner.pure.module_refs(mid):
                flags[f"gradient of {ref}"] = jnp.all(jnp.isfinite(gradient))
        for name, is_finite in flags.items():
            metrics.log_value((NOT_FINITE, mid, name), 1.0 - is_finite.astype(jnp.float32), reduce="max")


def loss_is_linear(learner: LossHooks) -> bool:
    """Whether the class that says so (`loss_is_linear_in_means`) is also the last one to touch the losses."""
    if any(isinstance(module, SelfSupervisedLossAPI) for module in learner.template.values()):
        return False
    for cls in type(learner).__mro__:
        if "loss_is_linear_in_means" in vars(cls):
            return cls.loss_is_linear_in_means
        if "compute_loss_for_module" in vars(cls) or "compute_losses" in vars(cls):
            return False
    return False


def row_counts(rows: Rows, index: Mapping[ModuleID, Any], axis_name: str | None) -> dict[ModuleID, jax.Array]:
    """Valid rows of the minibatch per device, on average over the devices."""
    counts = {}
    for mid, packed in rows.items():
        own = index[mid]
        size = jax.tree.leaves(packed.columns)[0].shape[0] if own is None else own.size
        if Columns.LOSS_MASK in packed.columns:
            flat: Any = None if own is None else jnp.moveaxis(own, 0, 1).reshape(own.shape[1], -1)
            mask = packed.take_column(Columns.LOSS_MASK, flat)
            count = reductions.pmean_flat(jnp.sum(mask).astype(jnp.float32), axis_name)
            # No valid row anywhere: the sums are 0, and so are the means.
            counts[mid] = jnp.where(count > 0.0, count, 1.0)
        else:
            counts[mid] = jnp.float32(size * packed.steps_per_item)
    return counts


def microbatches_per_minibatch(
    learner: LossHooks,
    sizes: Mapping[ModuleID, int],
    local_shards: int,
    lengths: Mapping[ModuleID, int] = MappingProxyType({}),
) -> int:
    """Over how many parts of each minibatch the gradients are added up.

    Args:
        learner: Whose loss it is.
        sizes: Rows, or chunks, per minibatch and shard.
        local_shards: Shuffle shards on each device.
        lengths: Steps per chunk.
    """
    target = gradient_rows_per_microbatch(learner.devices)
    if target is None or not loss_is_linear(learner) or not all(can_be_split(learner.template[mid]) for mid in sizes):
        return 1
    wanted = max(
        -(-size * length * local_shards // _steps_per_microbatch(target, length))
        for mid, size in sizes.items()
        for length in (lengths.get(mid, 1),)
    )
    for microbatches in range(wanted, 2 * wanted + 1):
        if all(size % microbatches == 0 for size in sizes.values()):
            return microbatches
    return 1


def _steps_per_microbatch(rows: int, length: int) -> int:
    """What takes the room of `rows` of one step, in chunks of `length`.

    A recurrent layer keeps several times as much of every step, and is slow with few chunks side by side. With chunks
    of 32 steps a quarter as many take 0.9 times as long as half as many.
    """
    return rows if length == 1 else max(rows // 4, min(16 * length, rows // 2))


def gradient_rows_per_microbatch(devices: Sequence[Device]) -> int | None:
    """How many rows of a minibatch to differentiate at a time: what fits a CPU core's cache.

    Measured on 2 cores with 64x64 networks: gradients of 16,384 rows at once take 1.25 times, of 65,536 rows 1.75
    times as long as added up over microbatches. One CPU device spreads a matrix product over all cores and needs larger
    microbatches than one device per core. Accelerators take the whole minibatch.
    """
    if devices[0].platform != "cpu":
        return None
    return 4096 if len(devices) == 1 else 1024
