"""RLModules with fixed strategies for rock-paper-scissors, as opponents."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.examples.rl_modules.classes.random_rlm import RandomRLModule

NUM_MOVES = 3


class AlwaysSameHeuristicRLM(RandomRLModule):
    """Draws a move at the start of an episode and repeats it to the end.

    The recurrent state is int32 ``[1]``: 0 before the first move, else its number from 1 on.
    """

    def get_initial_state(self) -> Any:
        return {"move": jnp.zeros(1, jnp.int32)}

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        before = batch[Columns.STATE_IN]["move"][:, 0]
        num_steps = jax.tree.leaves(batch[Columns.OBS])[0].shape[1]
        move = jnp.where(before == 0, self._draw(before.shape) + 1, before)
        actions = jnp.broadcast_to(move[:, None] - 1, (*before.shape, num_steps))
        return {Columns.ACTIONS: actions, Columns.STATE_OUT: {"move": move[:, None]}}


class BeatLastHeuristicRLM(RandomRLModule):
    """Plays the move that beats the opponent's last move.

    Each of the N observations is this last move: OBS contains move numbers ``[N]`` in {0, 1, 2}, or one-hot vectors
    ``[N, 3]``.
    """

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        seen = batch[Columns.OBS]
        last = jnp.argmax(seen, axis=-1) if seen.ndim > 1 else seen
        return {Columns.ACTIONS: (last.astype(jnp.int32) + 1) % NUM_MOVES}
