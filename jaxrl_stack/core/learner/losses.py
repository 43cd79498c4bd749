"""Losses of a minibatch: `Losses` computes them; `TracedLosses` replays a JAX trace of the computation, and lists the
columns that the losses read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.learner.items import Form
from jaxrl_stack.core.learner.minibatches import Batch
from jaxrl_stack.core.learner.optimizers import ParamDict
from jaxrl_stack.core.learner.traced_metrics import Metrics, TracedMetrics
from jaxrl_stack.core.learner.tracing import Trace
from jaxrl_stack.core.rl_module.apis import SelfSupervisedLossAPI
from jaxrl_stack.utils.live_inputs import once_of
from jaxrl_stack.utils.typing import ModuleID

if TYPE_CHECKING:
    from jaxrl_stack.core.learner.learner import Learner


class LossOutputs(NamedTuple):
    """Auxiliary outputs of the losses of a minibatch: module state after the forward passes, metrics, and values logged
    per row.

    Attributes:
        rest: Non-parameter state of the modules after the forward passes.
        metrics: Logged metrics.
        rows: Values that were logged per row, ``{(module_id, name): float32 [m, ...]}``.
    """

    rest: dict[str, jax.Array]
    metrics: Metrics
    rows: dict[Any, jax.Array]


LossFunction = Callable[[ParamDict, dict[str, jax.Array], Batch, Any, ParamDict], tuple[Any, LossOutputs]]
"""`Losses.__call__`, or a replay of its trace."""


@dataclasses.dataclass(frozen=True)
class TracedLosses:
    """Losses that were traced once; all gradient steps replay the trace, because tracing the loss takes most of the
    time of tracing an update.

    Attributes:
        function: Function with the results of `Losses` for rows of these shapes; it calls no hook.
        columns_read: ``{module_id: names of columns}`` on which the losses depend; the others need not be gathered for
            minibatches.
    """

    function: LossFunction
    columns_read: dict[ModuleID, frozenset[str]]

    @classmethod
    def of(cls, losses: Losses, arguments: tuple[Any, ...], program: Any, out: Any) -> TracedLosses:
        """Creates `TracedLosses` from the trace of a `Losses` function, the result of ``jax.make_jaxpr(losses,
        return_shape=True)(*arguments)``.
        """
        once = once_of(losses, arguments, program, out)
        columns_read = {
            mid: frozenset(name for name, own in columns.items() if any(jax.tree.leaves(own)))
            for mid, columns in once.matters[2].items()
        }
        return cls(once.call, columns_read)


class Losses:
    """Function from parameters and a minibatch to the losses; calls the modules' `forward_train` and the learner's
    `compute_losses`.

    Args:
        learner: The learner, whose hooks are looked up during tracing.
        trace_of: ``(metrics, params, optimizers) -> Trace``; fills in the parts that all steps of an update share.
        forms: Forms of the items, by module.
    """

    def __init__(self, learner: Learner, trace_of: Callable[..., Trace], forms: Mapping[ModuleID, Form]):
        self._learner = learner
        self._trace_of = trace_of
        self._forms = forms

    def __call__(
        self, params: ParamDict, rest: dict[str, jax.Array], batch: Batch, row_counts: Any, trained: ParamDict
    ) -> tuple[dict[ModuleID, Any], LossOutputs]:
        """Computes the losses of a minibatch, ``{module_id: loss}``, and their auxiliary outputs: module state, metrics
        and values per row.

        Args:
            params: All parameters.
            rest: Non-parameter state of the modules.
            batch: ``{module_id: {column: [m, ...]}}``, or chunks ``[m, L, ...]``; observations are whole, not frames.
            row_counts: Result of `gradient_step.row_counts`, or None.
            trained: The parameters that change; they replace those in `params`.

        Raises:
            ValueError: If the loss looks up a column that does not exist, or is not a float32 scalar.
        """
        learner = self._learner
        trace = self._trace_of(metrics=TracedMetrics(), params=params, optimizers={})
        trace.row_counts = row_counts
        trace.module = learner.pure.bind({**params, **trained}, rest)
        batch, fwd_out = dict(batch), {}
        with learner.tracing(trace):
            try:
                for mid, columns in batch.items():
                    form = self._forms[mid]
                    if not form.is_masked:
                        columns = {**columns, Columns.LOSS_MASK: form.all_valid(columns)}
                    batch[mid], fwd_out[mid] = form.forward(trace.module[mid], columns)
                    trace.masks[mid] = batch[mid][Columns.LOSS_MASK]
                    if not form.is_masked:
                        trace.full_masks.append(trace.masks[mid])
                losses = learner.compute_losses(fwd_out=fwd_out, batch=batch)
            except KeyError as error:
                columns, outputs = ({mid: sorted(own) for mid, own in x.items()} for x in (batch, fwd_out))
                raise ValueError(
                    f"The loss of {type(learner).__name__}, or a module's forward_train(), looks up the key {error}, "
                    f"but the batch has {columns}, and forward_train() returned {outputs}. Add the column in a learner "
                    f"connector. Or set columns_from_acting = ({error},) in {type(learner).__name__}, and add the "
                    "column in forward_exploration() or an env-to-module connector."
                ) from error
        _check_losses(losses, type(learner).__name__)
        rest = learner.pure.unbind(trace.module)[1]
        return losses, LossOutputs(rest, trace.metrics.collect(), trace.metrics.rows)

    def arguments(self, params: ParamDict, rest: dict[str, jax.Array], batch: Batch) -> tuple[Any, ...]:
        """Returns the arguments with which JAX traces `Losses.__call__`. The argument `batch` gives only the shapes and
        dtypes of the minibatch.

        Args:
            params: All parameters.
            rest: Non-parameter state of the modules.
            batch: `jax.ShapeDtypeStruct`s of the rows, ``[m, ...]``.
        """
        trace = self._trace_of(metrics=TracedMetrics(), params=params, optimizers={})
        counts = dict.fromkeys(batch, jnp.float32(0.0)) if loss_is_linear(self._learner) else None
        return params, rest, batch, counts, {ref: params[ref] for ref in trace.trained_refs}


def loss_is_linear(learner: Learner) -> bool:
    """Returns True if the learner's class declares that the learner's loss is a linear function of means over rows.

    The class declares this by ``loss_is_linear_in_means = True``. A subclass that overrides the loss must set the
    attribute again.

    False if a module is self-supervised, since its loss is not the learner's.
    """
    if any(isinstance(module, SelfSupervisedLossAPI) for module in learner.template.values()):
        return False
    for cls in type(learner).__mro__:
        if "loss_is_linear_in_means" in vars(cls):
            return cls.loss_is_linear_in_means
        if "compute_loss_for_module" in vars(cls) or "compute_losses" in vars(cls):
            return False
    return False


def _check_losses(losses: Any, learner: str) -> None:
    """Raises a ValueError if a learner's `compute_losses` did not return a dict of losses by module id.

    A loss is a floating-point scalar, or a pytree of scalars (one per optimizer).
    """
    if not isinstance(losses, Mapping):
        raise ValueError(
            f"{learner}.compute_losses() returned a {type(losses).__name__}. Return a dict {{module_id: loss}}."
        )
    for mid, loss in losses.items():
        name = f"The loss of module {mid!r} in {learner}"
        for scalar in jax.tree.leaves(loss, is_leaf=lambda leaf: leaf is None):
            if not isinstance(scalar, jax.Array | np.ndarray | np.generic | float | int):
                raise ValueError(f"{name} is {scalar!r}. Return a float32 scalar.")
            if jnp.shape(scalar):
                raise ValueError(
                    f"{name} has the shape {jnp.shape(scalar)}, but must be a scalar. Take means over the batch with "
                    f"self.masked_mean(x, batch)."
                )
            if not jnp.issubdtype(jnp.result_type(scalar), jnp.floating):
                raise ValueError(
                    f"{name} has the dtype {jnp.result_type(scalar)}, which has no gradient. Return a float32 scalar."
                )
