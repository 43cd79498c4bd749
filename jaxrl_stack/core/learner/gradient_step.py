"""Gradient step of a Learner, inside the compiled update: losses, gradients, and the Learner hooks that postprocess and
apply the gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_stack.core.learner.items import Form, PackedItems, RowForm, WholeItems
from jaxrl_stack.core.learner.losses import LossFunction, LossOutputs, loss_is_linear
from jaxrl_stack.core.learner.optimizers import ParamDict, as_vector, check_gradients
from jaxrl_stack.core.learner.traced_metrics import NOT_FINITE, Metrics, TracedMetrics
from jaxrl_stack.core.learner.tracing import LinearizedLosses, Trace
from jaxrl_stack.core.rl_module.row_independence import can_be_split
from jaxrl_stack.ops import reductions
from jaxrl_stack.utils.devices import Device
from jaxrl_stack.utils.typing import ModuleID

if TYPE_CHECKING:
    from jaxrl_stack.core.learner.learner import Learner

TakenFrom = Mapping[ModuleID, PackedItems | WholeItems]
"""Items of every module, from which minibatches are gathered."""


class Carry(NamedTuple):
    """Arrays that one gradient step changes (parameters, other module state, optimizer states); the carry of the loop
    over minibatches.

    Attributes:
        params: All parameters; between the steps of a loop in the form of `as_vector`.
        rest: Non-parameter state of the modules.
        optimizers: States of the optimizers, ``{module_id: {name: state}}``.
    """

    params: Any
    rest: dict[str, jax.Array]
    optimizers: Any


class _Linearized(NamedTuple):
    """Result of `GradientStep._linearized`: losses of a minibatch, their derivative as a linear function of parameter
    changes (see `LinearizedLosses`), and auxiliary outputs of the losses.
    """

    values: dict[ModuleID, Any]
    changes: LinearizedLosses
    outputs: LossOutputs


class _Shares(NamedTuple):
    """Partial results of a minibatch after one or several microbatches: summed contributions to its losses and
    gradients, merged metrics, and the modules' non-parameter state.

    Attributes:
        rest: Non-parameter state of the modules after the last microbatch.
        losses: Sums of the microbatches' contributions to the losses.
        gradients: Sums of the microbatches' contributions to the gradients, in the form of `as_vector`.
        metrics: Merged metrics of the microbatches.
    """

    rest: dict[str, jax.Array]
    losses: dict[ModuleID, Any]
    gradients: Any
    metrics: Metrics


class GradientStep:
    """Callable that makes one gradient step on a minibatch. It is called while JAX traces the update, and becomes a
    part of the compiled program.

    Args:
        learner: The learner, whose hooks are looked up during tracing.
        trace_of: ``(metrics, params, optimizers) -> Trace``; fills in the parts that all steps of an update share.
        losses: The update's `Losses`, or the replay of their trace.
        note_gradients: Called with the gradients before and after `Learner.postprocess_gradients`, while each step is
            traced; None for no call.
    """

    def __init__(
        self,
        learner: Learner,
        trace_of: Callable[..., Trace],
        losses: LossFunction,
        note_gradients: Callable[[ParamDict, ParamDict], None] | None = None,
    ):
        self._learner = learner
        self._note_gradients = note_gradients
        self._trace_of = trace_of
        self._losses = losses

    def __call__(self, carry: Carry, items: TakenFrom, index: Mapping[ModuleID, Any]) -> tuple[Carry, TracedMetrics]:
        """Makes one gradient step on the minibatch that `index` selects from `items` (steps, chunks or env steps of
        each module).

        Args:
            carry: Arrays before the step.
            items: Items of the modules that are updated.
            index: ``{module_id: uint32 [microbatches, S, m / microbatches]}``, indices of the minibatch's items; None
                takes all items in one part.

        Returns:
            ``(carry, metrics)`` after the step.
        """
        learner, (params, rest, optimizers) = self._learner, carry
        trace = self._trace_of(metrics=TracedMetrics(), params=params, optimizers=optimizers)
        first = {mid: None if own is None else own[0] for mid, own in index.items()}
        with learner.tracing(trace):
            if loss_is_linear(learner):
                trace.row_counts = row_counts(items, index, trace.axis_name)
                losses, outputs = self._in_parts(trace, rest, items, index, first)
            else:
                losses, trace.linearized, outputs = self._linearized(trace, rest, items, first)
            trace.losses = losses
            trace.metrics = TracedMetrics(outputs.metrics, outputs.rows)
            # The module inside the losses contains tracers of their differentiation, which must not be read later.
            trace.module = learner.pure.bind(params, outputs.rest)
            for mid, loss in losses.items():
                total = sum(loss.values()) if isinstance(loss, dict) else loss
                trace.metrics.log_value((mid, learner.TOTAL_LOSS_KEY), total, window=1)
            gradients, name = learner.compute_gradients(losses), type(learner).__name__
            check_gradients(gradients, "compute_gradients", name)
            if learner.config.check_nans:
                _log_finiteness(learner, trace.metrics, losses, gradients)
            computed, gradients = gradients, learner.postprocess_gradients(gradients)
            check_gradients(gradients, "postprocess_gradients", name)
            if self._note_gradients is not None:
                self._note_gradients(computed, gradients)
            learner.apply_gradients(gradients)
            return Carry(trace.params, outputs.rest, trace.optimizers), trace.metrics

    def _in_parts(
        self, trace: Trace, rest: dict[str, jax.Array], items: TakenFrom, index: Mapping[ModuleID, Any], first: Any
    ) -> tuple[dict[ModuleID, Any], LossOutputs]:
        """Computes the losses of a minibatch (summed over its microbatches, averaged over devices) and the auxiliary
        outputs of the losses.

        Stores the gradients, reduced in the same way, in `trace`.
        """

        def of_part(rest: Any, part: Any) -> tuple[_Linearized, ParamDict]:
            found = self._linearized(trace, rest, items, part)
            return found, self._learner.gradients_of(found.values, found.changes)

        def shares_of_part(rest: Any, part: Any) -> _Shares:
            found, gradients = of_part(rest, part)
            return _Shares(found.outputs.rest, found.values, as_vector(gradients)[0], found.outputs.metrics)

        per_row: dict[Any, jax.Array] = {}
        if all(own is None or own.shape[0] == 1 for own in index.values()):
            found, gradients = of_part(rest, first)
            losses, (rest, metrics, per_row) = found.values, found.outputs
        else:
            shapes = jax.eval_shape(shares_of_part, rest, first)

            def add(before: _Shares, part: Any) -> tuple[_Shares, None]:
                own = shares_of_part(before.rest, part)
                losses, gradients = jax.tree.map(
                    jnp.add, (before.losses, before.gradients), (own.losses, own.gradients)
                )
                return _Shares(own.rest, losses, gradients, before.metrics.with_part(own.metrics)), None

            losses, gradients = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (shapes.losses, shapes.gradients))
            shares, _ = jax.lax.scan(add, _Shares(rest, losses, gradients, shapes.metrics.nothing()), index)
            rest, losses, vector, metrics = shares
            gradients = as_vector({ref: trace.params[ref] for ref in trace.trained_refs})[1](vector)
        axis_name = trace.axis_name
        (losses, trace.gradients, averages), slots = reductions.means_and_sums(
            (losses, gradients, metrics.averages), metrics.statistics_in_slots(axis_name), axis_name
        )
        return losses, LossOutputs(rest, metrics.exchanged(averages, slots), per_row)

    def _linearized(self, trace: Trace, rest: dict[str, jax.Array], items: TakenFrom, index: Any) -> _Linearized:
        """Computes the losses of a minibatch, and the derivative of the losses as a linear function of parameter
        changes.

        `index` selects the minibatch or microbatch from `items`. The result also contains auxiliary outputs of the
        losses.
        """
        batch = {mid: own.take(index[mid]) for mid, own in items.items()}
        trained = {ref: trace.params[ref] for ref in trace.trained_refs}
        losses = functools.partial(self._losses, trace.params, rest, batch, trace.row_counts)
        values, function, outputs = jax.linearize(losses, trained, has_aux=True)
        return _Linearized(values, LinearizedLosses(function, trained), outputs)


def _log_finiteness(
    learner: Learner, metrics: TracedMetrics, losses: Mapping[ModuleID, Any], gradients: ParamDict
) -> None:
    """Logs flags that tell whether losses and gradients are finite, for ``config.debugging(check_nans=True)``;
    `raise_if_not_finite` reads them.
    """
    for mid, loss in losses.items():
        flags = {"loss": jax.tree.reduce(jnp.logical_and, jax.tree.map(jnp.isfinite, loss))}
        for ref, gradient in gradients.items():
            if ref in learner.pure.module_refs(mid):
                flags[f"gradient of {ref}"] = jnp.all(jnp.isfinite(gradient))
        for name, is_finite in flags.items():
            metrics.log_value((NOT_FINITE, mid, name), 1.0 - is_finite.astype(jnp.float32), reduce="max")


def row_counts(items: TakenFrom, index: Mapping[ModuleID, Any], axis_name: str | None) -> dict[ModuleID, jax.Array]:
    """Returns the number of valid rows (not masked) of each module in a minibatch, averaged over the devices.

    The result is ``{module_id: float32}``. If a module has no valid row on any device, the number is 1: a mean over the
    rows, the sum divided by this number, is then 0.
    """
    counts = {}
    for mid, own in items.items():
        count = own.num_valid(index[mid])
        if isinstance(count, int):
            counts[mid] = jnp.float32(count)
        else:
            count = reductions.pmean_flat(count, axis_name)
            # Without a valid row on any device all sums are 0, and so are the means.
            counts[mid] = jnp.where(count > 0.0, count, 1.0)
    return counts


def microbatches_per_minibatch(
    learner: Learner,
    sizes: Mapping[ModuleID, int],
    local_shards: int,
    forms: Mapping[ModuleID, Form] = MappingProxyType({}),
) -> int:
    """Returns the number of microbatches into which a minibatch is split to accumulate gradients.

    Args:
        learner: The learner, with its loss.
        sizes: Number of items per minibatch and shard, by module.
        local_shards: Number of shuffle shards on each device.
        forms: Forms of the items, by module; modules without one have rows.
    """
    target = gradient_rows_per_microbatch(learner.devices)
    if target is None or not loss_is_linear(learner) or not all(can_be_split(learner.template[mid]) for mid in sizes):
        return 1
    wanted = max(
        -(-size * form.rows_per_item * local_shards // form.steps_at_once(target))
        for mid, size in sizes.items()
        for form in (forms.get(mid, RowForm()),)
    )
    for microbatches in range(wanted, 2 * wanted + 1):
        if all(size % microbatches == 0 for size in sizes.values()):
            return microbatches
    return 1


def gradient_rows_per_microbatch(devices: Sequence[Device]) -> int | None:
    """Returns the number of rows of a microbatch, chosen to fit a CPU core's cache; None: minibatches are not split.

    Measured on 2 cores with 64x64 networks: gradients of 16,384 rows in one pass take 1.25 times, of 65,536 rows 1.75
    times as long as sums over microbatches. One CPU device spreads a matrix product over all cores and needs larger
    microbatches than one device per core. Accelerators take the whole minibatch.
    """
    if devices[0].platform != "cpu":
        return None
    return 4096 if len(devices) == 1 else 1024
