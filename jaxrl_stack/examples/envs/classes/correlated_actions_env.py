"""Environment whose reward depends on the combination of two actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete, Tuple


class CorrelatedActionsEnv(gym.Env):
    """Environment for correlated actions, with episodes of one step.

    The observation is ``[x]``, x uniform in [-1, 1]. The action is ``(a1, [a2])``, a1 in {0, 1, 2}, a2 in [-2, 2]. The
    reward is ``-|1 - (x + a1)| - |x + a1 + a2|``.

    The best a2 depends on x and on the a1 that was taken.

    Args:
        config: Has no settings.
    """

    def __init__(self, config: Mapping[str, Any] | None = None):
        self.observation_space = Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = Tuple((Discrete(3), Box(-2.0, 2.0, (1,), np.float32)))
        self.obs = np.zeros(1, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.obs = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.obs, {}

    def step(self, action: Any):
        first, (second,) = action
        total = float(self.obs[0]) + first
        return self.obs.copy(), float(-abs(1.0 - total) - abs(total + second)), True, False, {}
