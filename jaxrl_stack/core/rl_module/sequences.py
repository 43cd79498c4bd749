"""Sequences to learn from, of modules with a recurrent state: chunks of a block, and steps one by one.

A chunk is ``L`` steps of one column of a block ``[T, B, ...]``, with the state before the first of them in
``STATE_IN``. Chunks are cut at fixed steps, wherever episodes end, so that every block has as many: ``RESETS`` says
where the state starts anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.rl_module.functional import ModuleDefinition
from jaxrl_stack.ops.masks import expand

if TYPE_CHECKING:
    from jaxrl_stack.core.rl_module.rl_module import RLModule


def steps_per_item(columns: dict[str, Any], lead: int) -> int:
    """``L`` of chunks ``[*lead, L, ...]``; 1 of rows ``[*lead, ...]``."""
    if Columns.STATE_IN not in columns:
        return 1
    return _column_of_steps(columns).shape[lead]


def leading_axes(columns: dict[str, Any]) -> tuple[int, ...]:
    """``(N,)`` of rows, ``(N, L)`` of sequences, which have the column ``STATE_IN``."""
    return tuple(_column_of_steps(columns).shape[: 2 if Columns.STATE_IN in columns else 1])


def _column_of_steps(columns: dict[str, Any]) -> Any:
    return jax.tree.leaves({name: column for name, column in columns.items() if name != Columns.STATE_IN})[0]


def as_chunks(columns: dict[str, Any], length: int) -> dict[str, Any]:
    """A block as chunks.

    Args:
        columns: ``{column: pytree [T, B, ...]}``, with ``STATE_IN`` ``[G, B, ...]``, ``G = ceil(T / L)``.
        length: ``L``.

    Returns:
        ``{column: pytree [G, B, L, ...]}``, ``STATE_IN`` as it is. Where L does not divide T, the last chunks are
        filled up with zeros, of which ``LOSS_MASK`` is False.
    """
    num_steps, num_columns = leading_axes(columns)
    num_chunks = -(-num_steps // length)
    missing = num_chunks * length - num_steps
    if missing and Columns.LOSS_MASK not in columns:
        columns = {**columns, Columns.LOSS_MASK: jnp.ones((num_steps, num_columns), bool)}

    def cut(x: Any) -> Any:
        xp: Any = np if isinstance(x, np.ndarray) else jnp
        if missing:
            x = xp.concatenate([x, xp.zeros((missing, *x.shape[1:]), x.dtype)])
        return xp.moveaxis(x.reshape(num_chunks, length, *x.shape[1:]), 1, 2)

    return {name: own if name == Columns.STATE_IN else jax.tree.map(cut, own) for name, own in columns.items()}


def step_by_step(module: RLModule, batch: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Sequences as sequences of one step each, for a module that does not look at ``RESETS``.

    The module makes a step at a time, from the state that the step before it left, or from its initial state where
    ``RESETS`` says so. Gradients flow from step to step.

    Args:
        module: With a recurrent state; its other state changes as in the steps.
        batch: ``{column: pytree [N, L, ...]}``, ``STATE_IN`` ``[N, ...]`` and ``RESETS`` among them.

    Returns:
        ``(batch [N * L, 1, ...] with each step's state, what forward_train returns of it)``.
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
        # Of modules whose pass for the loss returns none, the one for acting does; its gradient is wanted here.
        after = outputs.pop(Columns.STATE_OUT, None)
        after = own._forward_inference(columns)[Columns.STATE_OUT] if after is None else after
        return (after, definition.flatten(own)[1]), (columns, outputs)

    (_, rest), (columns, outputs) = jax.lax.scan(step, (state, rest), steps)
    nnx.update(module, nnx.from_flat_state([(path, rest[ref]) for path, ref in definition.rest_refs.items()]))

    def as_rows(x: jax.Array) -> jax.Array:
        return jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:])

    return jax.tree.map(as_rows, (columns, outputs))
