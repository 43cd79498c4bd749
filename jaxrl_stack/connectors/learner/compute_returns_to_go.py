"""Connector that adds a column with the discounted sum of the rewards from each step on (the return-to-go)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.context import ConnectorContext
from jaxrl_stack.core.columns import Columns


class ComputeReturnsToGo(ConnectorV2):
    """Adds RETURNS_TO_GO: ``G_t = r_t + gamma * G_{t+1}``, where ``G`` is 0 after the end of an episode or of the
    sampled steps.

    There is no bootstrapping, so a step whose episode continues after the block, or was truncated, gets the
    rewards that are in the block. Rows with LOSS_MASK False are passed over.

    Args:
        input_observation_space: See ConnectorV2.
        input_action_space: See ConnectorV2.
        gamma: Discount in [0, 1].

    Raises:
        ValueError: ``gamma`` is outside [0, 1].
    """

    def __init__(self, *args, gamma: float, **kwargs):
        super().__init__(*args, **kwargs)
        self._check_argument("gamma", gamma, 0.0 <= gamma <= 1.0, "give a number in [0, 1]")
        self.gamma = float(gamma)

    def apply(self, state: Any, batch: dict[str, Any], ctx: ConnectorContext) -> tuple[Any, dict[str, Any]]:
        """Adds RETURNS_TO_GO, the discounted sum of the rewards from each step on, float32 ``[T, B]``; 0 where
        LOSS_MASK is False.
        """
        return state, self._with_columns(
            batch, lambda module_id, columns: self._returns_to_go(columns, ctx.loss_mask(module_id, columns))
        )

    def _returns_to_go(self, columns: dict[str, Any], mask: Any) -> dict[str, jax.Array]:
        rewards = jnp.asarray(columns[Columns.REWARDS])
        ends = jnp.logical_or(columns[Columns.TERMINATEDS], columns[Columns.TRUNCATEDS])
        valid = jnp.ones_like(ends) if mask is None else jnp.asarray(mask)

        def backward(after, row):
            reward, end, is_valid = row
            here = reward + self.gamma * jnp.where(end, 0.0, after)
            return jnp.where(is_valid, here, after), jnp.where(is_valid, here, 0.0)

        _, returns = jax.lax.scan(backward, jnp.zeros_like(rewards[0]), (rewards, ends, valid), reverse=True)
        return {Columns.RETURNS_TO_GO: returns}
