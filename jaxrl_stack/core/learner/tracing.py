"""The trace of an update: what hooks of a learner see while they are traced."""

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
    """Everything that hooks may touch while one minibatch step is traced."""

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
    linearized: LinearizedLosses | None = None
    losses: dict[ModuleID, Any] | None = None
    gradients: ParamDict | None = None


@dataclasses.dataclass(frozen=True)
class LinearizedLosses:
    """Change of the losses of a minibatch with the parameters: one trace, from which every gradient follows.

    Attributes:
        function: ``{ref: tangent} -> {module_id: tangent of the loss, or {optimizer: tangent}}``; linear.
        params: The parameters that the losses were differentiated for.
    """

    function: Callable[[ParamDict], dict[ModuleID, Any]]
    params: ParamDict

    def gradients(self, of: Callable[[dict[ModuleID, Any]], Any], refs: Iterable[str]) -> ParamDict:
        """Gradients of one number made of the losses, for some parameters alone.

        What leads to other losses is not computed; nor is, in a compiled program, what leads to other parameters.

        Args:
            of: Picks (or adds up) from the losses; linear.
            refs: Those parameters.
        """
        transposed = jax.linear_transpose(lambda tangents: of(self.function(tangents)), self.params)
        (gradients,) = transposed(jnp.float32(1.0))
        return {ref: gradients[ref] for ref in refs}


class Tracing(threading.local):
    """The update that is traced in this thread; other threads may use the learner meanwhile.

    Attributes:
        trace: The trace; None outside of one.
        pure_hook: Name of the hook that runs and must not read the learner; None without one.
        has_rows: Result of `Learner.has_rows` in it, by module; None: all modules have rows.
    """

    trace: Trace | None = None
    pure_hook: str | None = None
    has_rows: Mapping[str, Any] | None = None

    def __reduce__(self) -> tuple[type[Tracing], tuple[()]]:
        """Copies of a learner are not being traced."""
        return Tracing, ()
