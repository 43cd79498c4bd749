"""Sequences to learn from: chunks of a block, and steps one by one.

A chunk is ``L`` steps of one column of a block ``[T, B, ...]``; of a module with a recurrent state, with that before
the first of them in ``STATE_IN``. Chunks are cut at fixed steps, wherever episodes end, so that every block has as
many: ``RESETS`` says where the state starts anew.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.layouts import Layout
from jaxrl_stack.core.rl_module.functional import ModuleDefinition
from jaxrl_stack.ops.masks import expand

if TYPE_CHECKING:
    from jaxrl_stack.core.rl_module.rl_module import RLModule


class Chunks(NamedTuple):
    """A block cut into chunks.

    Attributes:
        columns: ``{column: pytree [G, B, L, ...]}``, with a recurrent state ``STATE_IN`` ``[G, B, ...]``.
        layout: That of the block, masked if chunks had to be filled up.
    """

    columns: dict[str, Any]
    layout: Layout


def as_chunks(columns: dict[str, Any], layout: Layout) -> Chunks:
    """A block as chunks.

    Args:
        columns: ``{column: pytree [T, B, ...]}``, with a recurrent state ``STATE_IN`` ``[G, B, ...]``,
            ``G = ceil(T / L)``; of whole observations.
        layout: Its layout; L is that.

    Returns:
        The chunks. Where L does not divide T, the last ones are filled up with zeros, of which ``LOSS_MASK`` is False.
    """
    num_steps, num_columns = jax.tree.leaves(layout.steps(columns))[0].shape[:2]
    length, num_chunks = layout.length, layout.num_chunks(num_steps)
    missing = num_chunks * length - num_steps
    if missing and not layout.is_masked:
        columns = {**columns, Columns.LOSS_MASK: jnp.ones((num_steps, num_columns), bool)}
        layout = dataclasses.replace(layout, is_masked=True)

    def cut(x: Any) -> Any:
        xp: Any = np if isinstance(x, np.ndarray) else jnp
        if missing:
            x = xp.concatenate([x, xp.zeros((missing, *x.shape[1:]), x.dtype)])
        return xp.moveaxis(x.reshape(num_chunks, length, *x.shape[1:]), 1, 2)

    steps = layout.steps(columns)
    return Chunks({name: jax.tree.map(cut, own) if name in steps else own for name, own in columns.items()}, layout)


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
