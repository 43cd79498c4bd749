"""Connector that adds the discounted sum of an episode's rewards so far, for reward normalisation."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.context import ConnectorContext
from jaxrl_stack.core.columns import Columns


class ReturnsSoFar(ConnectorV2):
    """Adds RETURNS_SO_FAR: ``c_t = gamma * (c_{t-1} + r_{t-1})``, and 0 at the start of an episode.

    ``c_t + r_t`` is the discounted sum of an episode's rewards up to step t, across all blocks of the episode.
    `NormalizeRewards` in the learner pipeline divides by its standard deviation. Rewards are the environment's.

    Without learning (evaluation, a `Policy`) the column is 0, and the sum does not change.

    Args:
        input_observation_space: See ConnectorV2.
        input_action_space: See ConnectorV2.
        gamma: Discount in [0, 1]; None reads the config's current value.
        **kwargs: See ConnectorV2.

    Raises:
        ValueError: ``gamma`` is outside [0, 1].
    """

    def __init__(self, *args: Any, gamma: float | None = None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        fits = gamma is None or 0.0 <= gamma <= 1.0
        self._check_argument("gamma", gamma, fits, "give a number in [0, 1], or None for the config's")
        self.gamma = gamma

    def init(self, num_envs: int) -> Any:
        """Returns the initial discounted sums of rewards, 0 for every environment: ``{module_id: float32 [B]}``."""
        return {key: jnp.zeros((num_envs,), jnp.float32) for key in self._observation_spaces()}

    def apply(self, state: Any, batch: dict[str, Any], ctx: ConnectorContext) -> tuple[Any, dict[str, Any]]:
        """Adds RETURNS_SO_FAR, float32 ``[B]``: the discounted sum of an episode's earlier rewards, or 0 if
        ``ctx.update_statistics`` is False. Reads ``ctx.prev_rewards`` and ``ctx.reset``.
        """
        state, batch = dict(state), dict(batch)
        for key, module_id in self._state_keys(batch):
            carried = jnp.zeros_like(state[key])
            if ctx.update_statistics:
                gamma = ctx.settings[module_id]["gamma"] if self.gamma is None else self.gamma
                state[key] = carried = jnp.where(
                    jnp.asarray(ctx.reset), 0.0, gamma * (state[key] + jnp.asarray(ctx.prev_rewards[module_id]))
                )
            batch[module_id] = {**batch[module_id], Columns.RETURNS_SO_FAR: carried}
        return state, batch
