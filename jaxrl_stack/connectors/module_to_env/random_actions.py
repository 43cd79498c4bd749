"""Connector for epsilon-greedy exploration: replaces some actions by random ones, for every module and action space."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.context import ConnectorContext
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.default_observations import sample_valid
from jaxrl_stack.ops.masks import expand
from jaxrl_stack.utils import spaces
from jaxrl_stack.utils.spaces.boxes import scaled_from_bounds


class RandomActions(ConnectorV2):
    """Replaces each action, with probability `epsilon`, by a random draw from the action space when exploring. Without
    exploration, actions do not change.

    ACTIONS becomes what is done, and hence what is recorded. ACTION_LOGP, the log-probability of another action in
    these steps, is taken out of all: PPO, which needs it to learn, refuses such a connector in training. Where there is
    an action mask, the draws are from the valid actions.

        config.env_runners(module_to_env_connector=lambda env: RandomActions(epsilon=0.1))

    Args:
        input_observation_space, input_action_space, multi_agent: See `ConnectorV2`.
        epsilon: The share, 0 to 1.
        normalize_actions: The same as ``environment(normalize_actions=...)``. True: the module acts in [-1, 1] in
            dimensions with two bounds.
        **kwargs: See `ConnectorV2`.

    Raises:
        ValueError: `epsilon` out of its range.
    """

    def __init__(self, *args, epsilon: float = 0.1, normalize_actions: bool = True, **kwargs):
        super().__init__(*args, **kwargs)
        if not 0.0 <= epsilon <= 1.0:
            raise ValueError(f"RandomActions(epsilon={epsilon!r}): give a probability from 0 to 1.")
        self.epsilon = epsilon
        self.normalize_actions = normalize_actions

    def apply(self, state: Any, batch: dict[str, Any], ctx: ConnectorContext) -> tuple[Any, dict[str, Any]]:
        """Replaces each action in the column ACTIONS, with probability `epsilon`, by a random action.

        ACTIONS are ``[B, ...]``. Draws the random actions with ``ctx.key``, and removes the column ACTION_LOGP. If
        ``ctx.explore`` is False, returns the batch unchanged.

        Raises:
            ValueError: Exploring without ``ctx.key``.
        """
        if not ctx.explore:
            return state, batch
        if ctx.key is None:
            raise ValueError(
                "RandomActions: ctx.key is None, but random actions need a PRNG key. Create the context with "
                "ConnectorContext(key=jax.random.key(0), ...), or with explore=False."
            )
        own, batch = self._action_spaces(), dict(batch)
        for i, (name, module_id) in enumerate(self._state_keys(batch)):
            which, draw = jax.random.split(jax.random.fold_in(ctx.key, i))
            columns = {name: leaf for name, leaf in batch[module_id].items() if name != Columns.ACTION_LOGP}
            actions = columns[Columns.ACTIONS]
            num_rows = jax.tree.leaves(actions)[0].shape[0]
            mask = (ctx.action_masks or {}).get(module_id)
            if mask is None:
                drawn = spaces.sample(draw, spaces.from_zero(own[name]), (num_rows,))
            else:
                drawn = sample_valid(draw, own[name], mask)
            drawn = spaces.map_parts(self._of_module, own[name], drawn)
            is_drawn = jax.random.uniform(which, (num_rows,)) < self.epsilon
            columns[Columns.ACTIONS] = jax.tree.map(
                lambda given, other, is_drawn=is_drawn: jnp.where(
                    expand(is_drawn, given), other.astype(given.dtype), given
                ),
                actions,
                drawn,
            )
            batch[module_id] = columns
        return state, batch

    def _of_module(self, space: gym.Space, action: jax.Array) -> jax.Array:
        """Converts a random action of the environment to the corresponding output of the module.

        If actions are normalised, actions in a Box of floats are scaled from their bounds to [-1, 1], and the lower
        bounds are subtracted from actions in a Box of integers. All other actions do not change.
        """
        if not (isinstance(space, gym.spaces.Box) and self.normalize_actions):
            return action
        if np.issubdtype(space.dtype, np.floating):
            return scaled_from_bounds(space, action)
        return action - jnp.asarray(space.low)[None]
