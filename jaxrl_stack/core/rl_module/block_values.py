"""Computation of the value function for a block of sampled steps.

The values are computed for every observation, for the final observation (before the reset) of each truncated step, and
for the observation after the block's last step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.core.block import Block
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.rl_module.row_independence import can_be_split, handles_resets
from jaxrl_stack.core.rl_module.sequences import step_by_step
from jaxrl_stack.ops import chunking, masks

TRUNCATED_ROWS_PER_PASS = 256
"""Minimum number of truncated rows that are evaluated at a time; for large blocks 1/1024 of their rows. Most blocks
have fewer truncated rows, many have none."""


class BlockValues(NamedTuple):
    """Value function outputs for sampled steps ``[T, B, ...]``: values of the state before each step, and of the state
    after it.

    Attributes:
        of_steps: float32 ``[T, B]``, values of the states in which the actions were taken.
        after_block: float32 ``[B]``, values of the states after the last step; if the block has masks, after the last
            valid step at each index of axis B.
        rows_after: Pytree ``[T * B, ...]``, inputs of `after_rows` for every row.
        after_rows: Function from rows ``[n, ...]`` of `rows_after` to float32 ``[n]``, values of the states after them.
    """

    of_steps: jax.Array
    after_block: jax.Array
    rows_after: Any
    after_rows: Callable[[Any], jax.Array]

    def at_truncations(self, block: Block) -> jax.Array:
        """Returns the values of the final observations (before the reset) of truncated steps, for bootstrapping,
        float32 ``[T, B]``.

        The values are 0 for all other steps, and for truncated steps that are also terminated or masked.

        Args:
            block: The block of these values.
        """
        truncateds = block.columns[Columns.TRUNCATEDS]
        needed = jnp.logical_and(truncateds, jnp.logical_not(block.columns[Columns.TERMINATEDS]))
        if block.mask is not None:
            needed = jnp.logical_and(needed, block.mask)
        return values_at(needed.reshape(-1), self.rows_after, self.after_rows).reshape(truncateds.shape)


def values_of_block(block: Block, module: Any, bound: Callable[[], Any]) -> BlockValues:
    """Computes the value function for all steps of a sampled block; for recurrent modules, each chunk (training
    sequence) starts from its ``STATE_IN``.

    The value of a final observation uses the recurrent state after the episode's last step: the sequence continues with
    the final observation.

    Args:
        block: Block with the columns obs, final_obs, rewards (and resets, state_in, loss_mask).
        module: The module; only its properties are read.
        bound: Function that returns the module with traced weights. Every loop needs a new one, since a module that
            draws random numbers counts its draws.
    """
    if block.chunk_length is None:
        return _of_rows(block, module, bound)
    return _of_chunks(block, block.chunk_length, module, bound)


def _of_rows(block: Block, module: Any, bound: Callable[[], Any]) -> BlockValues:
    """Computes the value function for all steps of a sampled block, for a module without a recurrent state."""

    def values_of(observations: Any) -> jax.Array:
        return bound().compute_values({Columns.OBS: observations}).astype(jnp.float32)

    shape = block.columns[Columns.REWARDS].shape
    (rows, of_row), (rows_after, after_row) = block.rows_of_observations(values_of)
    values = chunking.map_rows(of_row, rows) if can_be_split(module) else of_row(rows)
    if block.mask is not None:
        last = masks.last_rows(block.mask) * shape[1] + jnp.arange(shape[1])
    else:
        last = slice(-shape[1], None)
    after_last = after_row(jax.tree.map(lambda x: x[last], rows_after))
    return BlockValues(values.reshape(shape), after_last, rows_after, after_row)


def _of_chunks(block: Block, length: int, module: Any, bound: Callable[[], Any]) -> BlockValues:
    """Computes the value function for all steps of a sampled block with a recurrent module.

    Each chunk (training sequence) of the block starts from its stored recurrent state.

    Every chunk is extended by one step, the final observation after its last row. For the last chunk this gives the
    value after the block. If rows are masked, the final observation follows the last valid row of the chunk: it
    replaces a masked row, or is the additional step.
    """
    columns = block.columns
    num_steps, num_columns = columns[Columns.REWARDS].shape
    starts = np.arange(0, num_steps, length)
    lasts = np.minimum(starts + length, num_steps) - 1
    rows = np.minimum(starts[:, None] + np.arange(length + 1), num_steps - 1)
    # For each chunk: the row whose final observation is added, and the place of that step in ``[G, L + 1, B, ...]``.
    completed: Any = (lasts,)
    place: Any = (np.arange(len(starts)), lasts - starts + 1)
    of_block: Any = (slice(None), -1, place[1][-1])  # after the block, in values ``[B, G, L + 1]``
    if block.mask is not None:
        each = np.arange(num_columns)
        last = masks.last_rows(block.mask)
        completed = (jnp.clip(last, starts[:, None], lasts[:, None]), each)
        place = (place[0][:, None], completed[0] - starts[:, None] + 1, each)
        of_block = (each, last // length, last % length + 1)

    def extended(x: jax.Array, final: Any) -> jax.Array:
        """Cuts each sequence in a column into chunks (training sequences), and adds one step per chunk for a final
        observation.

        The column ``[T, B, ...]`` has B sequences; each becomes G chunks of L steps. After the last valid step of each
        chunk, writes `final`: a scalar for all chunks, or one value per chunk, ``[G, B, ...]``. Returns
        ``[B, G, L + 1, ...]``.
        """
        return jnp.moveaxis(x[rows].at[place].set(final), 2, 0)

    final_obs = columns[Columns.FINAL_OBS]
    obs = jax.tree.map(lambda x, final: extended(x, final[completed]), columns[Columns.OBS], final_obs)
    resets = extended(columns[Columns.RESETS], False)
    states = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), columns[Columns.STATE_IN])

    def values_of(obs: Any, resets: jax.Array, states: Any) -> jax.Array:
        """Computes the value function for n training sequences, float32 ``[n, L + 1]``.

        Each sequence has L steps and one additional step, so that a final observation fits after the last valid step.
        """
        own, batch = bound(), {Columns.OBS: obs, Columns.RESETS: resets, Columns.STATE_IN: states}
        if not handles_resets(module):
            batch, _ = step_by_step(own, batch)
        return own.compute_values(batch).astype(jnp.float32).reshape(resets.shape)

    def values_after(row: jax.Array) -> jax.Array:
        """Computes the value of the state that follows each of n steps in the block, float32 ``[n]``.

        `row`, int ``[n]``, contains the indices of these steps in the flattened axes ``[T * B]``.
        """
        step, column = row // num_columns, row % num_columns
        chunk, at = step // length, step % length + 1

        def with_final(x: jax.Array, final: jax.Array) -> jax.Array:
            return x[column, chunk].at[jnp.arange(len(row)), at].set(final)

        sequences = jax.tree.map(lambda x, final: with_final(x, final[step, column]), obs, final_obs)
        own_states = jax.tree.map(lambda x: x[column, chunk], states)
        values = values_of(sequences, with_final(resets, jnp.zeros(row.shape, bool)), own_states)
        return jnp.take_along_axis(values, at[:, None], axis=1)[:, 0]

    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (obs, resets, states))
    if can_be_split(module):
        values = chunking.map_rows(lambda sequences: values_of(*sequences), flat, size=length)
    else:
        values = values_of(*flat)
    values = values.reshape(num_columns, len(starts), length + 1)
    of_steps = values[:, :, :length].reshape(num_columns, -1)[:, :num_steps].T
    return BlockValues(of_steps, values[of_block], jnp.arange(num_steps * num_columns), values_after)


def values_at(needed: jax.Array, observations: Any, values_of) -> jax.Array:
    """Applies `values_of` (observations to values) only to the rows where `needed` is True; the other rows get 0.

    Each pass finds and evaluates the next `TRUNCATED_ROWS_PER_PASS` of them, or 1/1024 of N if that is more.

    Args:
        needed: bool ``[N]``.
        observations: Pytree ``[N, ...]``.
        values_of: Function from observations ``[n, ...]`` to float32 ``[n]``.

    Returns:
        float32 ``[N]``.
    """
    num_rows = needed.shape[0]
    per_pass = min(max(TRUNCATED_ROWS_PER_PASS, num_rows >> 10), num_rows)
    found = masks.TrueRows.of(needed)

    def one_pass(carry):
        start, values = carry
        wanted = start + jnp.arange(1, per_pass + 1, dtype=jnp.int32)
        rows = found.rows(wanted)  # num_rows if there are no more rows
        taken = jax.tree.map(lambda x: x.at[rows].get(mode="clip"), observations)
        return start + per_pass, values.at[rows].set(values_of(taken), mode="drop")

    _, values = jax.lax.while_loop(
        lambda carry: carry[0] < found.total, one_pass, (jnp.int32(0), jnp.zeros((num_rows,), jnp.float32))
    )
    return values
