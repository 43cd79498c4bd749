"""Image environment whose steps take almost no time, to measure the time of the other parts of training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete


class FastImageEnv(gym.Env):
    """Environment with black images ``[84, 84, 4]``, a reward of 1 per step, and episodes of 1001 steps.

    The steps take almost no time, so that only sampling and training are measured.

    Args:
        config: Has no settings.
    """

    def __init__(self, config: Mapping[str, Any] | None = None):
        self.action_space = Discrete(2)
        self.observation_space = Box(0.0, 1.0, (84, 84, 4), np.float32)
        self.i = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.i = 0
        return np.zeros((84, 84, 4), np.float32), {}

    def step(self, action: Any):
        self.i += 1
        ended = self.i > 1000
        return np.zeros((84, 84, 4), np.float32), 1.0, ended, ended, {}
