"""Processing of training sequences step by step, for recurrent modules.

A sequence is a chunk of a block (`Block.chunks`), or was drawn from replay. ``STATE_IN`` has the recurrent state before
its first step. If chunks are cut at fixed steps, ``RESETS`` marks the steps at which the state is reset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.rl_module.functional import ModuleDefinition
from jaxrl_stack.ops.masks import expand

if TYPE_CHECKING:
    from jaxrl_stack.core.rl_module.rl_module import RLModule


def step_by_step(module: RLModule, batch: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Runs a recurrent module that does not read ``RESETS`` over sequences ``[N, L, ...]``, one step at a time, and
    resets its state between episodes.

    The module processes one step at a time, from the state after the step before, or from its initial state where
    ``RESETS`` is True. Gradients flow from step to step.

    Args:
        module: Module with a recurrent state; its other state is updated in place.
        batch: ``{column: pytree [N, L, ...]}`` with ``STATE_IN`` ``[N, ...]`` and ``RESETS``.

    Returns:
        ``(batch [N * L, 1, ...] with each step's state, outputs of forward_train)``.
    """
    definition, params, rest = ModuleDefinition.of(module)
    initial = module.get_initial_state()
    state, steps = batch[Columns.STATE_IN], {name: own for name, own in batch.items() if name != Columns.STATE_IN}
    steps = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1)[:, :, None], steps)

    def step(carry: Any, columns: dict[str, Any]) -> Any:
        state, rest = carry
        own = definition.merge(params, rest)
        reset = columns[Columns.RESETS][:, 0]
        state = jax.tree.map(lambda new, old: jnp.where(expand(reset, old), new, old), initial, state)
        columns = {**columns, Columns.STATE_IN: state, Columns.RESETS: jnp.zeros_like(columns[Columns.RESETS])}
        outputs = dict(own.forward_train(columns))
        # If the pass for the loss returns no state, the pass for acting does; here it needs a gradient.
        after = outputs.pop(Columns.STATE_OUT, None)
        after = own._forward_inference(columns)[Columns.STATE_OUT] if after is None else after
        return (after, definition.flatten(own)[1]), (columns, outputs)

    (_, rest), (columns, outputs) = jax.lax.scan(step, (state, rest), steps)
    nnx.update(module, nnx.from_flat_state([(path, rest[ref]) for path, ref in definition.rest_refs.items()]))

    def as_rows(x: jax.Array) -> jax.Array:
        return jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:])

    return jax.tree.map(as_rows, (columns, outputs))
