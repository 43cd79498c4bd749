"""Connector that adds advantages and value targets, with correct bootstrapping at terminations, time limits and batch
ends.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.context import ConnectorContext
from jaxrl_stack.core.block import Block
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.rl_module.apis import ValueFunctionAPI
from jaxrl_stack.core.rl_module.block_values import BlockValues, values_of_block
from jaxrl_stack.ops import reductions, returns

MIN_ADVANTAGE_STD = 1e-4


class GeneralAdvantageEstimation(ConnectorV2):
    """Adds the columns ``ADVANTAGES`` and ``VALUE_TARGETS``. Advantages are standardised over the steps of all devices,
    except steps with ``LOSS_MASK`` False.

    Reads ``[T, B, ...]`` columns obs, final_obs, rewards, terminateds, truncateds (and loss_mask, and discount). The
    value function is evaluated once, over the whole block, with the parameters of before the update; and once more on
    the final observations of the truncated rows, which are gathered so that a block with few of them costs little. The
    value after a block belongs to the final observation of its last row; where rows are masked, of each column's last
    valid one.

    With a recurrent state the block is evaluated in its chunks, from their ``STATE_IN``. The value of a final
    observation is computed with the state of its moment: of a sequence that continues with it where its episode ended.

    Args:
        gamma: Discount; None reads the config's current value.
        lambda_: Trace decay of GAE; None reads the config's current value.
        **kwargs: Spaces, as for every connector.
    """

    def __init__(self, *args: Any, gamma: float | None = None, lambda_: float | None = None, **kwargs: Any):
        super().__init__(*args, gamma=gamma, lambda_=lambda_, **kwargs)
        self.gamma = gamma
        self.lambda_ = lambda_

    @property
    def takes_frames(self) -> bool:
        return type(self) is GeneralAdvantageEstimation

    def apply(self, state: Any, batch: dict[str, Any], ctx: ConnectorContext) -> tuple[Any, dict[str, Any]]:
        out = dict(batch)
        for module_id, columns in batch.items():
            module = ctx.module[module_id]
            if not isinstance(module, ValueFunctionAPI):
                continue
            block = ctx.block(module_id, columns)
            settings = (ctx.settings or {}).get(module_id, {})
            out[module_id] = self._advantages(
                values_of_block(block, module, lambda module_id=module_id: ctx.module[module_id]),
                block,
                settings["gamma"] if self.gamma is None else self.gamma,
                settings["lambda_"] if self.lambda_ is None else self.lambda_,
                ctx.axis_name,
            )
        return state, out

    def _advantages(self, values: BlockValues, block: Block, gamma, lambda_, axis_name) -> dict[str, Any]:
        columns, mask = dict(block.columns), block.mask
        del columns[Columns.FINAL_OBS]
        discounts = columns.get(Columns.DISCOUNT)
        advantages, targets = returns.gae(
            rewards=columns[Columns.REWARDS],
            values=values.of_steps,
            terminateds=columns[Columns.TERMINATEDS],
            truncateds=columns[Columns.TRUNCATEDS],
            truncation_values=values.at_truncations(block),
            bootstrap_value=values.after_block,
            gamma=gamma,
            lambda_=lambda_,
            mask=mask,
            discounts=None if discounts is None else discounts.astype(jnp.float32),
        )
        mean, std = reductions.masked_mean_std(advantages, mask, axis_name)
        columns[Columns.ADVANTAGES] = (advantages - mean) / jnp.maximum(std, MIN_ADVANTAGE_STD)
        columns[Columns.VALUE_TARGETS] = targets
        return columns
