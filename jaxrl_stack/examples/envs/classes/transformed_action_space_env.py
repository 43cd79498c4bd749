"""Environments with rescaled actions: a wrapper maps actions from chosen bounds to the original bounds of the action
space.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
from gymnasium.spaces import Box


class ActionTransform(gym.ActionWrapper):
    """Wrapper that maps actions in [`low`, `high`] to the bounds of the environment's `Box`.

    Args:
        env: An environment with a bounded `Box` of actions.
        low: Lower bound.
        high: Upper bound.
    """

    def __init__(self, env: gym.Env, low: float, high: float):
        super().__init__(env)
        inner = env.action_space
        assert isinstance(inner, Box)
        self._low, self._high, self._inner = low, high, inner
        self.action_space = Box(low, high, inner.shape, inner.dtype.type)

    def action(self, action: Any) -> Any:
        share = (action - self._low) / (self._high - self._low)
        return self._inner.low + share * (self._inner.high - self._inner.low)


def transform_action_space(env_name_or_creator: str | Callable[[Mapping[str, Any]], gym.Env]) -> Callable[..., gym.Env]:
    """Returns a function that creates environments with rescaled actions.

    The agent acts in [`low`, `high`], and a wrapper maps the agent's actions to the bounds of the environment's `Box`.

    Args:
        env_name_or_creator: An id of gymnasium, or a function of an ``env_config``.

    Returns:
        A function of an ``env_config``, whose settings `low` (-1.0) and `high` (1.0) are the agent's bounds. The
        creator gets the other settings; with an id of gymnasium, they are ignored.
    """

    def create(config: Mapping[str, Any]) -> gym.Env:
        settings = dict(config)
        low, high = settings.pop("low", -1.0), settings.pop("high", 1.0)
        inner = env_name_or_creator
        env = gym.make(inner) if isinstance(inner, str) else inner(settings)
        return ActionTransform(env, low, high)

    return create


TransformedActionPendulum = transform_action_space("Pendulum-v1")
