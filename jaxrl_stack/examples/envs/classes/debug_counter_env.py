"""Environment whose observations count the steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

from jaxrl_stack.compat.unsupported_names import stand_ins

__getattr__ = stand_ins(__name__)


class DebugCounterEnv(gym.Env):
    """Environment for debugging: the observation is the number of steps, the reward this number modulo 3; truncates at
    step 15.

    Settings: `start_at_t` (0), where the count starts.
    """

    def __init__(self, config: Mapping[str, Any] | None = None):
        self.action_space = Discrete(2)
        self.observation_space = Box(0, 100, (1,), np.float32)
        self.start_at_t = self.i = int((config or {}).get("start_at_t", 0))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.i = self.start_at_t
        return np.array([self.i], np.float32), {}

    def step(self, action: Any):
        self.i += 1
        return np.array([self.i], np.float32), float(self.i % 3), False, self.i >= 15 + self.start_at_t, {}
