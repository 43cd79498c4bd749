"""Pendulum that shows no velocity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.envs.classic_control import PendulumEnv
from gymnasium.spaces import Box


class StatelessPendulum(PendulumEnv):
    """Pendulum whose observation is ``[cos(angle), sin(angle)]``: without memory, the velocity is unknown.

    Settings: `g` (10.0), gravity in m/s².
    """

    def __init__(self, config: Mapping[str, Any] | None = None):
        super().__init__(g=(config or {}).get("g", 10.0))
        self.observation_space = Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        obs, info = super().reset(seed=seed, options=options)
        return obs[:2], info

    def step(self, action: Any):
        obs, *rest = super().step(action)
        return obs[:2], *rest
