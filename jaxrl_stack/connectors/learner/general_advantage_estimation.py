"""Advantages and value targets, exact at terminations, time limits and batch ends."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_stack.connectors.connector_v2 import ConnectorContext, ConnectorV2
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.rl_module.apis import ValueFunctionAPI
from jaxrl_stack.core.rl_module.row_independence import can_be_split
from jaxrl_stack.ops import chunking, masks, reductions, returns

TRUNCATED_ROWS_PER_PASS = 256
"""How many truncated rows are evaluated at a time; most blocks have fewer, many have none."""

MIN_ADVANTAGE_STD = 1e-4


class GeneralAdvantageEstimation(ConnectorV2):
    """Adds ``ADVANTAGES`` (standardised over all valid rows of all devices) and ``VALUE_TARGETS``.

    Reads ``[T, B, ...]`` columns obs, final_obs, rewards, terminateds, truncateds (and loss_mask). The value function
    is evaluated once, over the whole block, with the parameters of before the update; and once more on the final
    observations of the truncated rows, which are gathered so that a block with few of them costs little.

    Args:
        gamma: Discount; None reads the config's current value.
        lambda_: Trace decay of GAE; None reads the config's current value.
        **kwargs: Spaces, as for every connector.
    """

    def __init__(self, *args: Any, gamma: float | None = None, lambda_: float | None = None, **kwargs: Any):
        super().__init__(*args, gamma=gamma, lambda_=lambda_, **kwargs)
        self.gamma = gamma
        self.lambda_ = lambda_

    def apply(self, state: Any, batch: dict[str, Any], ctx: ConnectorContext) -> tuple[Any, dict[str, Any]]:
        out = dict(batch)
        for module_id, columns in batch.items():
            if not isinstance(ctx.module[module_id], ValueFunctionAPI):
                continue

            def values_of(observations: Any, module_id: str = module_id) -> jax.Array:
                # Bound anew in every loop that calls it: a module that draws random numbers counts them.
                module: Any = ctx.module[module_id]
                return module.compute_values({Columns.OBS: observations}).astype(jnp.float32)

            settings = (ctx.settings or {}).get(module_id, {})
            out[module_id] = self._advantages(
                values_of,
                can_be_split(ctx.module[module_id]),
                dict(columns),
                settings["gamma"] if self.gamma is None else self.gamma,
                settings["lambda_"] if self.lambda_ is None else self.lambda_,
                ctx.axis_name,
            )
        return state, out

    def _advantages(self, values_of, in_parts, columns, gamma, lambda_, axis_name) -> dict[str, Any]:
        rewards, truncateds = columns[Columns.REWARDS], columns[Columns.TRUNCATEDS]
        shape = rewards.shape
        mask = columns.get(Columns.LOSS_MASK)

        final_obs = columns.pop(Columns.FINAL_OBS)
        flat_final = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), final_obs)
        flat_obs = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), columns[Columns.OBS])
        values = (chunking.map_rows(values_of, flat_obs) if in_parts else values_of(flat_obs)).reshape(shape)
        bootstrap_value = values_of(jax.tree.map(lambda x: x[-1], final_obs))
        needed = jnp.logical_and(truncateds, jnp.logical_not(columns[Columns.TERMINATEDS]))
        if mask is not None:
            needed = jnp.logical_and(needed, mask)
        truncation_values = values_at(needed.reshape(-1), flat_final, values_of).reshape(shape)
        advantages, targets = returns.gae(
            rewards=rewards,
            values=values,
            terminateds=columns[Columns.TERMINATEDS],
            truncateds=truncateds,
            truncation_values=truncation_values,
            bootstrap_value=bootstrap_value,
            gamma=gamma,
            lambda_=lambda_,
            mask=mask,
        )
        mean, std = reductions.masked_mean_std(advantages, mask, axis_name)
        columns[Columns.ADVANTAGES] = (advantages - mean) / jnp.maximum(std, MIN_ADVANTAGE_STD)
        columns[Columns.VALUE_TARGETS] = targets
        return columns


def values_at(needed: jax.Array, observations: Any, values_of) -> jax.Array:
    """Values of the rows where `needed` is True, and 0 elsewhere, at the cost of those rows only.

    The rows' numbers are found from a running count; each pass then evaluates the next `TRUNCATED_ROWS_PER_PASS`.

    Args:
        needed: bool ``[N]``.
        observations: Pytree ``[N, ...]``.
        values_of: Maps observations ``[n, ...]`` to float32 ``[n]``.

    Returns:
        float32 ``[N]``.
    """
    num_rows = needed.shape[0]
    per_pass = min(TRUNCATED_ROWS_PER_PASS, num_rows)
    running = jnp.cumsum(needed.astype(jnp.int32))
    total = running[-1]

    def one_pass(carry):
        start, values = carry
        wanted = start + jnp.arange(1, per_pass + 1, dtype=jnp.int32)
        rows = masks.rows_of(running, wanted)  # num_rows where there is no such row
        taken = jax.tree.map(lambda x: x.at[rows].get(mode="clip"), observations)
        return start + per_pass, values.at[rows].set(values_of(taken), mode="drop")

    _, values = jax.lax.while_loop(
        lambda carry: carry[0] < total, one_pass, (jnp.int32(0), jnp.zeros((num_rows,), jnp.float32))
    )
    return values
