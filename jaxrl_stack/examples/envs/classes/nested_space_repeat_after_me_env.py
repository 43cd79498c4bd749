"""Environment in which the right action equals the newest observation, which has a nested space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Space, Tuple

from jaxrl_stack.utils.nested import tree_leaves
from jaxrl_stack.utils.spaces import map_parts


class NestedSpaceRepeatAfterMeEnv(gym.Env):
    """Environment in which the agent must repeat the newest observation, which has a nested space.

    The reward is the sum over the leaves of the space: 1 for an equal `Discrete` value, minus the sum of absolute
    differences for a `Box` value.

    Settings:
        space (a Tuple of Discrete(2) and a Dict of Box(-1, 1, (2,))): Space of observations and of actions.
        episode_len (100): Number of steps after which an episode is truncated.
    """

    def __init__(self, config: Mapping[str, Any] | None = None):
        config = config or {}
        default = Tuple((Discrete(2), Dict({"a": Box(-1.0, 1.0, (2,))})))
        self.observation_space = self.action_space = config.get("space", default)
        self.episode_len = config.get("episode_len", 100)
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps = 0
        self.current_obs = self.observation_space.sample()
        return self.current_obs, {}

    def step(self, action: Any):
        self.steps += 1
        reward = sum(tree_leaves(map_parts(_agreement, self.action_space, action, self.current_obs)))
        self.current_obs = self.observation_space.sample()
        return self.current_obs, float(reward), False, self.steps >= self.episode_len, {}


def _agreement(space: Space, action: Any, wanted: Any) -> float:
    if isinstance(space, Box):
        return -float(np.abs(action - wanted).sum())
    return float(isinstance(space, Discrete) and action == wanted)
