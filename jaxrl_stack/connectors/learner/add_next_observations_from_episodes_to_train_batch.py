"""Connector that adds the next observation of each step as a column."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.context import ConnectorContext
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.ops.masks import expand


class AddNextObservationsFromEpisodesToTrainBatch(ConnectorV2):
    """Adds NEXT_OBS, the module's input after each step and before any reset, for example to train a world model.

    If environments run on the host, this connector makes their runners also record the observations after steps that
    terminated an episode. Batches that already have NEXT_OBS do not change.
    """

    needs_all_final_obs = True

    def apply(self, state: Any, batch: dict[str, Any], ctx: ConnectorContext) -> tuple[Any, dict[str, Any]]:
        """Adds NEXT_OBS with the structure of OBS; reads OBS and FINAL_OBS ``[T, B, ...]``, TERMINATEDS and TRUNCATEDS
        ``[T, B]``.

        Raises:
            ValueError: If FINAL_OBS is missing, because an earlier connector removed it.
        """
        return state, self._with_columns(batch, self._next_obs)

    def _next_obs(self, module_id: str, columns: dict[str, Any]) -> dict[str, Any]:
        if Columns.NEXT_OBS in columns:
            return {}
        if Columns.FINAL_OBS not in columns:
            raise ValueError(
                f"{type(self).__name__} needs the column {Columns.FINAL_OBS!r}, but module {module_id!r} has only the "
                f"columns {sorted(columns)}. If another connector removes the column, insert this connector earlier: "
                f"`pipeline.insert_after(AddObservationsFromEpisodesToBatch, {type(self).__name__}())`."
            )
        ended = jnp.logical_or(columns[Columns.TERMINATEDS], columns[Columns.TRUNCATEDS])
        ended = ended.at[-1].set(True)

        def next_of(obs: Any, final: Any) -> jax.Array:
            following = jnp.concatenate([obs[1:], final[-1:]])
            return jnp.where(expand(ended, following), final, following)

        return {Columns.NEXT_OBS: jax.tree.map(next_of, columns[Columns.OBS], columns[Columns.FINAL_OBS])}
