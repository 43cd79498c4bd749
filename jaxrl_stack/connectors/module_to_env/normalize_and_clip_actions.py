"""Connector that rescales or clips the module's actions to the range of the environment's action space."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.context import ConnectorContext
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.utils.spaces import from_start, map_parts
from jaxrl_stack.utils.spaces.boxes import float32_bounds, integer_bounds, scaled_to_bounds, shifted_to_bounds


class NormalizeAndClipActions(ConnectorV2):
    """Writes ACTIONS_FOR_ENV, rescaled or clipped actions. ACTIONS, the module's outputs, do not change.

    The environment gets, leaf by leaf of a nested action space:

    * float Box: ``normalize_actions`` gives ``low + (a + 1) * (high - low) / 2`` in each dimension that has two bounds,
      and clips all dimensions to the bounds that they have; ``clip_actions`` only clips;
    * integer Box: ``normalize_actions`` shifts by ``low`` and clips; ``clip_actions`` only clips;
    * Discrete, MultiDiscrete: shifted by the space's ``start``, always, since modules count from 0;
    * MultiBinary: as it is.

    Args:
        input_observation_space: See ConnectorV2.
        input_action_space: The environment's action space.
        normalize_actions: The module acts in [-1, 1].
        clip_actions: Clip to the bounds; looked at only if ``normalize_actions`` is False.
    """

    def __init__(self, *args, normalize_actions: bool, clip_actions: bool, **kwargs):
        super().__init__(*args, **kwargs)
        self.normalize_actions = normalize_actions
        self.clip_actions = clip_actions

    def apply(self, state: Any, batch: dict[str, Any], ctx: ConnectorContext) -> tuple[Any, dict[str, Any]]:
        """Writes ACTIONS_FOR_ENV (leaves ``[B, ...]``), computed from ACTIONS_FOR_ENV if an earlier connector wrote it,
        otherwise from ACTIONS.
        """
        spaces = self._action_spaces()

        def for_env(module_id: str, columns: dict[str, Any]) -> dict[str, Any]:
            actions = columns.get(Columns.ACTIONS_FOR_ENV, columns.get(Columns.ACTIONS))
            if actions is None:
                raise KeyError(
                    f"Module {module_id!r} has no column {Columns.ACTIONS!r}, only the columns {sorted(columns)}. Put "
                    "GetActions before NormalizeAndClipActions in the module-to-env pipeline."
                )
            return {Columns.ACTIONS_FOR_ENV: map_parts(self._for_env, self._space_of(spaces, module_id), actions)}

        return state, self._with_columns(batch, for_env)

    def _for_env(self, space, action):
        return self._box(space, action) if isinstance(space, gym.spaces.Box) else from_start(space, action)

    def _box(self, space: gym.spaces.Box, action: jax.Array) -> jax.Array:
        is_float = np.issubdtype(space.dtype, np.floating)
        if self.normalize_actions:
            return (scaled_to_bounds if is_float else shifted_to_bounds)(space, action)
        if not self.clip_actions:
            return action
        low, high = float32_bounds(space) if is_float else integer_bounds(space, action.dtype)
        # The leading axis is added by hand, for sessions with strict rank promotion.
        return jnp.clip(action, jnp.asarray(low, action.dtype)[None], jnp.asarray(high, action.dtype)[None])
