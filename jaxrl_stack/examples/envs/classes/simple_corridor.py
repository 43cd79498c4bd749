"""Corridor in which the agent must walk to the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

_LONGEST = 999


class SimpleCorridor(gym.Env):
    """Corridor from position 0 to a terminal end. Action 0 moves backward (not below 0), action 1 forward.

    The observation is ``[position]``. A step costs 0.01; the one that reaches the end pays 1.

    Settings: `corridor_length` (10), at most 999.
    """

    def __init__(self, config: Mapping[str, Any] | None = None):
        self.action_space = Discrete(2)
        self.observation_space = Box(0.0, _LONGEST, (1,), np.float32)
        self.set_corridor_length((config or {}).get("corridor_length", 10))
        self._position = 0

    def set_corridor_length(self, length: int) -> None:
        """Sets the length of the corridor.

        Raises:
            ValueError: It is beyond 999.
        """
        if length > _LONGEST:
            raise ValueError(f"SimpleCorridor(corridor_length={length}): must be at most {_LONGEST}.")
        self.end_pos = length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self._position = 0
        return self._observation(), {}

    def step(self, action: Any):
        if action not in (0, 1):
            raise ValueError(
                f"SimpleCorridor: the action {action!r} is neither 0 (backward) nor 1 (forward). Choose one of these."
            )
        self._position = max(0, self._position + (1 if action == 1 else -1))
        at_end = self._position >= self.end_pos
        return self._observation(), 1.0 if at_end else -0.01, at_end, False, {}

    def _observation(self) -> np.ndarray:
        return np.array([self._position], np.float32)
