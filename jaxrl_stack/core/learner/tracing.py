"""Values that a learner's hooks read and change while JAX traces the update, such as parameters, config and metrics."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxrl_stack.utils.typing import ModuleID

if TYPE_CHECKING:
    from jaxrl_stack.core.learner.optimizers import ParamDict
    from jaxrl_stack.core.learner.traced_metrics import TracedMetrics
    from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModule
    from jaxrl_stack.utils.traced_config import TracedConfigView


@dataclasses.dataclass
class Trace:
    """Values that hooks read and change while JAX traces one gradient step: modules, config, metrics, parameters,
    gradients.

    Attributes:
        module: The modules, with traced parameters.
        configs: Configs by module, with current values of traced settings.
        learning_rates: ``{module_id: {optimizer: float32}}``, current values.
        extra: State of the algorithm besides networks, see `Learner.initial_extra_state`.
        metrics: Collector of metrics.
        axis_name: Name of the device axis; None without one.
        params: All parameters, ``{ref: array}``.
        optimizers: States of the optimizers, ``{module_id: {name: state}}``.
        trained_refs: Refs of the parameters that the update changes.
        full_masks: ``LOSS_MASK`` arrays whose rows are all valid.
        row_counts: Result of `gradient_step.row_counts`; None if the loss is not linear in means
            (`losses.loss_is_linear`).
        masks: ``LOSS_MASK`` of each module's minibatch.
        row_weights: Weights of the rows of each module's minibatch in `Learner.masked_means`, float32 ``[rows]``; None
            weights all rows equally.
        linearized: Linearization of the losses.
        losses: Result of `Learner.compute_losses`; None before.
        gradients: Reduced gradients, if they are known with the losses; else None.
    """

    module: MultiRLModule
    configs: dict[ModuleID, TracedConfigView]
    learning_rates: dict[ModuleID, dict[str, jax.Array]]
    extra: dict[str, Any]
    metrics: TracedMetrics
    axis_name: str | None
    params: ParamDict
    optimizers: dict[ModuleID, dict[str, Any]]
    trained_refs: tuple[str, ...] = ()
    full_masks: list[jax.Array] = dataclasses.field(default_factory=list)
    row_counts: dict[ModuleID, jax.Array] | None = None
    masks: dict[ModuleID, jax.Array] = dataclasses.field(default_factory=dict)
    row_weights: Mapping[ModuleID, jax.Array] | None = None
    linearized: LinearizedLosses | None = None
    losses: dict[ModuleID, Any] | None = None
    gradients: ParamDict | None = None
    num_updates: jax.Array | None = None


@dataclasses.dataclass(frozen=True)
class LinearizedLosses:
    """Losses of a minibatch, and their derivative as a linear function of parameter changes. This function gives the
    gradients of each loss without another forward pass.

    Attributes:
        function: ``{ref: tangent} -> {module_id: tangent of the loss, or {optimizer: tangent}}``; linear.
        params: The parameters of the linearization, ``{ref: array}``.
    """

    function: Callable[[ParamDict], dict[ModuleID, Any]]
    params: ParamDict

    def gradients(self, of: Callable[[dict[ModuleID, Any]], Any], refs: Iterable[str]) -> ParamDict:
        """Returns the gradients of a scalar, computed from the losses, with respect to the given parameters,
        ``{ref: gradient}``.

        `refs` are the names of these parameters. The argument `of` is a linear function that computes the scalar, for
        example the sum of the losses.

        Computations that lead only to other losses are skipped, and, in a compiled program, also those that lead only
        to other parameters.

        Args:
            of: Linear function from the losses to the scalar; it selects or adds losses.
            refs: Refs of the parameters.
        """
        transposed = jax.linear_transpose(lambda tangents: of(self.function(tangents)), self.params)
        (gradients,) = transposed(jnp.float32(1.0))
        return {ref: gradients[ref] for ref in refs}


class Tracing(threading.local):
    """Thread-local state of a learner while JAX traces an update, such as the `Trace` that hooks read. Other threads
    may use the learner at the same time.

    Attributes:
        trace: The trace; None outside of tracing.
        pure_hook: Name of the running hook that must not read the learner; None without one.
        has_rows: Results of `Learner.has_rows` in the hook, by module; None: all modules have rows.
    """

    trace: Trace | None = None
    pure_hook: str | None = None
    has_rows: Mapping[str, Any] | None = None

    def __reduce__(self) -> tuple[type[Tracing], tuple[()]]:
        """Pickles this tracing state as a new, empty object, because a copy of a learner is not being traced."""
        return Tracing, ()
