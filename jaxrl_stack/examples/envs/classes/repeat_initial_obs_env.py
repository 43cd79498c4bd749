"""Environment in which the right action equals the first observation of the episode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
from gymnasium.spaces import Discrete


class RepeatInitialObsEnv(gym.Env):
    """Environment that shows 0 or 1 in the first observation, then 0. The reward is 1 for the action equal to the first
    observation, else -1.

    Args:
        config: Settings: `episode_len` (100), the step that ends an episode; or that number itself.
        episode_len: The same as a keyword.
    """

    def __init__(self, config: Mapping[str, Any] | int | None = None, *, episode_len: int = 100):
        self.observation_space = self.action_space = Discrete(2)
        self.episode_len = config if isinstance(config, int) else (config or {}).get("episode_len", episode_len)
        self.token = self.num_steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.token, self.num_steps = int(self.np_random.integers(2)), 0
        return self.token, {}

    def step(self, action: Any):
        self.num_steps += 1
        ended = self.num_steps >= self.episode_len
        return 0, 1.0 if action == self.token else -1.0, ended, ended, {}
