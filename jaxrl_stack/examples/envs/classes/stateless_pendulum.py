"""Pendulum without the velocity in observations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.envs.classic_control import PendulumEnv
from gymnasium.spaces import Box

from jaxrl_stack.examples.envs.classes.utils.other_observations import OtherObservations


class StatelessPendulum(OtherObservations, PendulumEnv):
    """Pendulum whose observation is ``[cos(angle), sin(angle)]``, so that the agent needs memory to know the velocity.

    Settings: `g` (10.0), gravity in m/s².
    """

    def __init__(self, config: Mapping[str, Any] | None = None):
        super().__init__(g=(config or {}).get("g", 10.0))
        self.observation_space = Box(-1.0, 1.0, (2,), np.float32)

    def _shown(self, obs: np.ndarray) -> np.ndarray:
        return obs[:2]
