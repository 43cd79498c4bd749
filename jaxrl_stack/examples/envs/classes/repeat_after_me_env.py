"""Environment in which the right action equals the observation of a given number of steps ago."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete


class RepeatAfterMeEnv(gym.Env):
    """Environment in which the agent must repeat the observation of `repeat_delay` steps ago. In the first
    `repeat_delay` steps, the right action is 0.

    The reward is 1 for the right action and -1 for the other one. With `continuous`, the reward is minus the sum of
    absolute differences from the right action.

    Settings:
        continuous (False): Observations are ``[2]`` in [0, 1) instead of 0 and 1.
        repeat_delay (1): Steps; 0: the present observation.
        episode_len (100): The step that ends an episode, for ``repeat_delay=1``; a longer delay ends it sooner.
    """

    def __init__(self, config: Mapping[str, Any] | None = None):
        config = config or {}
        self.observation_space = Box(-1.0, 1.0, (2,)) if config.get("continuous") else Discrete(2)
        self.action_space = self.observation_space
        self.delay = config.get("repeat_delay", 1)
        self.episode_len = config.get("episode_len", 100)
        self.history: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.history = [0] * self.delay
        return self._show(), {}

    def step(self, action: Any):
        wanted = self.history[-1 - self.delay]
        if isinstance(self.action_space, Box):
            reward = -float(np.abs(action - wanted).sum())
        else:
            reward = 1.0 if action == wanted else -1.0
        ended = len(self.history) > self.episode_len
        return self._show(), reward, ended, ended, {}

    def _show(self) -> Any:
        is_box = isinstance(self.observation_space, Box)
        token = self.np_random.random(2, np.float32) if is_box else self.np_random.integers(2)
        self.history.append(token)
        return token
