"""Connector that multiplies rewards by a constant."""

from __future__ import annotations

import math
from typing import Any

from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.context import ConnectorContext
from jaxrl_stack.core.columns import Columns


class ScaleRewards(ConnectorV2):
    """Multiplies REWARDS in the train batch by a constant; episodes, callbacks and metrics keep the environment's
    rewards.

    Rows that are drawn from replay have sums of rewards, which it multiplies likewise.

    Args:
        input_observation_space: See ConnectorV2.
        input_action_space: See ConnectorV2.
        factor: A finite number above 0.
        **kwargs: See ConnectorV2.

    Raises:
        ValueError: ``factor`` is no such number.
    """

    def __init__(self, *args: Any, factor: float, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._check_argument("factor", factor, factor > 0.0 and math.isfinite(factor), "give a finite number above 0")
        self.factor = float(factor)

    @property
    def takes_frames(self) -> bool:
        return type(self) is ScaleRewards

    def apply(self, state: Any, batch: dict[str, Any], ctx: ConnectorContext) -> tuple[Any, dict[str, Any]]:
        """Multiplies REWARDS, float32 ``[T, B]``, by the connector's factor."""
        return state, self._with_columns(batch, self._scaled)

    def _scaled(self, module_id: str, columns: dict[str, Any]) -> dict[str, Any]:
        return {Columns.REWARDS: self.factor * columns[Columns.REWARDS]}
