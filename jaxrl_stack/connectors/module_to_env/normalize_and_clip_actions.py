"""From the module's actions to the numbers that the environment takes."""

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


class NormalizeAndClipActions(ConnectorV2):
    """Writes ACTIONS_FOR_ENV; ACTIONS stay as the module gave them.

    The environment gets, leaf by leaf of a nested action space:

    * float Box with bounds on all sides: ``normalize_actions`` gives ``low + (a + 1) * (high - low) / 2``,
      clipped to the bounds; ``clip_actions`` clips;
    * other float Box: ``normalize_actions`` leaves it alone; ``clip_actions`` clips to what bounds there are;
    * integer Box: ``normalize_actions`` shifts by ``low``; ``clip_actions`` clips;
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
        """Reads ACTIONS_FOR_ENV if an earlier connector wrote it, else ACTIONS; leaves ``[B, ...]``."""
        spaces = self._action_spaces()

        def for_env(module_id: str, columns: dict[str, Any]) -> dict[str, Any]:
            actions = columns.get(Columns.ACTIONS_FOR_ENV, columns.get(Columns.ACTIONS))
            if actions is None:
                raise KeyError(
                    f"No {Columns.ACTIONS!r} for module {module_id!r}, only {sorted(columns)}. Put "
                    "GetActions before NormalizeAndClipActions."
                )
            return {Columns.ACTIONS_FOR_ENV: map_parts(self._for_env, self._space_of(spaces, module_id), actions)}

        return state, self._with_columns(batch, for_env)

    def _for_env(self, space, action):
        return self._box(space, action) if isinstance(space, gym.spaces.Box) else from_start(space, action)

    def _box(self, space, action: jax.Array) -> jax.Array:
        # The leading axis is added by hand, for sessions with strict rank promotion.
        low = jnp.asarray(space.low, action.dtype)[None]
        high = jnp.asarray(space.high, action.dtype)[None]
        if not self.normalize_actions:
            return jnp.clip(action, low, high) if self.clip_actions else action
        if not np.issubdtype(space.dtype, np.floating):
            return action + low
        return jnp.clip(low + (action + 1.0) * 0.5 * (high - low), low, high) if space.is_bounded() else action
