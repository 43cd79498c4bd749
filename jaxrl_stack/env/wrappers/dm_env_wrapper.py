"""Adapter from environments with the `dm_env` interface to gymnasium."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete


def space_of(spec: Any) -> gym.Space:
    """Converts a dm_env spec to a gymnasium space.

    Args:
        spec: A `dm_env.specs.Array` (`BoundedArray`, `DiscreteArray`), or a mapping of names to such.
    """
    if isinstance(spec, Mapping):
        return Dict({name: space_of(part) for name, part in spec.items()})
    if hasattr(spec, "num_values"):
        return Discrete(int(spec.num_values))
    low, high = bounds_of(spec)
    return Box(low.astype(spec.dtype), high.astype(spec.dtype), dtype=spec.dtype)


def bounds_of(spec: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns lower and upper bounds of an array spec, broadcast to its shape; infinite if the spec has none."""
    limits = getattr(spec, "minimum", -np.inf), getattr(spec, "maximum", np.inf)
    low, high = (np.broadcast_to(limit, spec.shape) for limit in limits)
    return low, high


def ends(time_step: Any) -> tuple[bool, bool]:
    """Returns ``(terminated, truncated)`` of a time step: a final step terminates the episode if its discount is 0,
    else truncates it.
    """
    last = bool(time_step.last())
    terminated = last and time_step.discount == 0.0
    return terminated, last and not terminated


class DMEnv(gym.Env):
    """A `dm_env.Environment` as a gymnasium environment.

    Infos contain the time step's "discount". A final step terminates the episode if its discount is 0, else truncates
    it.

    Args:
        dm_env: The environment. It has its own random number generator; the seed of `reset` has no effect.
    """

    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, dm_env: Any):
        self._env = dm_env
        self.action_space = space_of(dm_env.action_spec())
        self.observation_space = space_of(dm_env.observation_spec())

    @property
    def reward_range(self) -> tuple[Any, Any]:
        """Lower and upper bound of the reward."""
        low, high = bounds_of(self._env.reward_spec())
        return low[()], high[()]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets the environment and returns ``(observation, {})``."""
        super().reset(seed=seed)
        return self._env.reset().observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Steps the environment; a missing reward is 0."""
        time_step = self._env.step(action)
        return time_step.observation, float(time_step.reward or 0.0), *ends(time_step), {"discount": time_step.discount}
