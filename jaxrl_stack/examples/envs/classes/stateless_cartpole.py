"""CartPole without velocities in observations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.spaces import Box

from jaxrl_stack.examples.envs.classes.utils.other_observations import OtherObservations

_SHOWN = [0, 2]


class StatelessCartPole(OtherObservations, CartPoleEnv):
    """CartPole whose observation is ``[position, angle]``, so that the agent needs memory to know the velocities.

    Args:
        config: Has no settings.
    """

    def __init__(self, config: Mapping[str, Any] | None = None):
        super().__init__()
        full = self.observation_space
        assert isinstance(full, Box)
        self.observation_space = Box(full.low[_SHOWN], full.high[_SHOWN], dtype=np.float32)

    def _shown(self, obs: np.ndarray) -> np.ndarray:
        return obs[_SHOWN]
