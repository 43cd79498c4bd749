"""Connector that adds previous actions and rewards to the observation."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.context import ConnectorContext
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.utils.spaces import flatdim, flatten_observation, from_zero


class PrevActionsPrevRewards(ConnectorV2):
    """Converts each observation to a dict of the observation and the previous actions and rewards.

    ``_orig_obs`` is the observation as it came in. ``prev_n_actions`` holds the module's last actions,
    flattened (Discrete: one-hot) and side by side, the oldest first; ``prev_n_rewards`` the last rewards,
    likewise. Steps before the start of the episode are zero. Put FlattenObservations after this connector for
    a module that wants one vector.

    Args:
        input_observation_space: Any observation space.
        input_action_space: The environment's action space.
        n_prev_actions: Number of actions; 0 leaves the key out.
        n_prev_rewards: Number of rewards; 0 leaves the key out.
        **kwargs: See ConnectorV2.

    Raises:
        ValueError: A negative number, or both are 0.
    """

    sees_action_mask = False

    ORIG_OBS_KEY = "_orig_obs"
    PREV_ACTIONS_KEY = "prev_n_actions"
    PREV_REWARDS_KEY = "prev_n_rewards"

    def __init__(self, *args, n_prev_actions: int = 1, n_prev_rewards: int = 1, **kwargs):
        super().__init__(*args, **kwargs)
        if n_prev_actions < 0 or n_prev_rewards < 0 or n_prev_actions + n_prev_rewards == 0:
            raise ValueError(
                f"PrevActionsPrevRewards(n_prev_actions={n_prev_actions!r}, "
                f"n_prev_rewards={n_prev_rewards!r}): give numbers of 0 or more, not both 0."
            )
        self.n_prev_actions = n_prev_actions
        self.n_prev_rewards = n_prev_rewards

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """Returns a Dict with the input space, a Box of previous actions and a Box of previous rewards."""
        self._spaces_by_module(input_action_space, "action")  # says so if there is none
        return self._map_spaces(self._extended_space, input_observation_space, input_action_space)

    def _extended_space(self, observation_space, action_space):
        spaces = {self.ORIG_OBS_KEY: observation_space}
        if self.n_prev_actions:
            # One-hot numbers have bounds; what a module puts out for a Box has none.
            bounds = (0.0, 1.0) if isinstance(action_space, gym.spaces.Discrete) else (-np.inf, np.inf)
            width = self.n_prev_actions * _width(action_space)
            spaces[self.PREV_ACTIONS_KEY] = gym.spaces.Box(*bounds, (width,), np.float32)
        if self.n_prev_rewards:
            spaces[self.PREV_REWARDS_KEY] = gym.spaces.Box(-np.inf, np.inf, (self.n_prev_rewards,), np.float32)
        return gym.spaces.Dict(spaces)

    def init(self, num_envs: int) -> Any:
        """Returns a history of zeros for the previous actions and rewards.

        The history is ``{module_id: {"actions": float32 [B, (n - 1) * D], "rewards": float32 [B, m - 1]}}``, with n =
        `n_prev_actions`, m = `n_prev_rewards`, and D numbers per flat action. It has "actions" only if n > 1, and
        "rewards" only if m > 1: the context contains the last action and reward.
        """
        history = {}
        for key, space in self._action_spaces().items():
            widths = {"actions": (self.n_prev_actions - 1) * _width(space), "rewards": self.n_prev_rewards - 1}
            history[key] = {name: jnp.zeros((num_envs, n), jnp.float32) for name, n in widths.items() if n > 0}
        return history

    def apply(self, state: Any, batch: dict[str, Any], ctx: ConnectorContext) -> tuple[Any, dict[str, Any]]:
        """Replaces OBS by a dict of the observation, the previous actions and the previous rewards.

        The previous values come from `state`, ``ctx.prev_actions`` and ``ctx.prev_rewards``, and are zeros where
        ``ctx.reset`` is True.
        """
        spaces = self._action_spaces()
        state, batch = dict(state), dict(batch)
        for key, module_id in self._state_keys(batch):
            history, columns = dict(state[key]), batch[module_id]
            observation = {self.ORIG_OBS_KEY: columns[Columns.OBS]}
            if self.n_prev_actions:
                last = flatten_observation(from_zero(spaces[key]), ctx.prev_actions[module_id], batch_dims=1)
                observation[self.PREV_ACTIONS_KEY] = _push(history, "actions", last, ctx.reset)
            if self.n_prev_rewards:
                last = jnp.asarray(ctx.prev_rewards[module_id], jnp.float32)[:, None]
                observation[self.PREV_REWARDS_KEY] = _push(history, "rewards", last, ctx.reset)
            state[key] = history
            batch[module_id] = {**columns, Columns.OBS: observation}
        return state, batch


def _push(history: dict[str, jax.Array], name: str, last: jax.Array, reset: jax.Array) -> jax.Array:
    """Returns the n newest actions or rewards of each environment, and stores the newest n - 1 of them in `history`.

    The result is float32 ``[B, n * D]``, with D numbers per action or reward, the newest last. ``history[name]``
    contains the n - 1 earlier actions or rewards, and `last` ``[B, D]`` is the newest. Rows where `reset` is True are
    zeros. ``history[name]`` changes in place; if n is 1, `history` has no entry `name`.
    """
    window = jnp.concatenate([history[name], last], axis=-1) if name in history else last
    # Also an action 0 is no action after a reset: its one-hot vector must be zero.
    window = jnp.where(reset[:, None], 0.0, window)
    if name in history:
        history[name] = window[:, last.shape[-1] :]
    return window


def _width(space) -> int:
    return flatdim(from_zero(space))
