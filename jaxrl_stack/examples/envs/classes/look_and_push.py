"""Corridor that needs memory: the agent can look at a hidden value at the start, and needs the value at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete


class LookAndPush(gym.Env):
    """Corridor of five cells for agents with memory.

    In cell 2, action 0 shows a hidden value, 0 or 1. In the last cell, the action equal to this value gives reward 10,
    the other action -10.

    An episode starts in cell 2. There, action 0 looks: it leads to cell 0 or 1, whichever is the hidden case. Action 1
    pushes on: from 0 to 2, else to the next cell. In cell 4 the action that equals the case pays 10, the other one
    -10, and the episode terminates. Every other step costs 1.

    Args:
        config: Has no settings.
    """

    def __init__(self, config: Mapping[str, Any] | None = None):
        self.action_space = Discrete(2)
        self.observation_space = Discrete(5)
        self._state, self._case = 2, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self._state, self._case = 2, int(self.np_random.integers(2))
        return self._state, {}

    def step(self, action: Any):
        if self._state == 4:
            return self._state, 10.0 if action == self._case else -10.0, True, False, {}
        if action == 1:
            self._state = 2 if self._state == 0 else self._state + 1
        elif self._state == 2:
            self._state = self._case
        return self._state, -1.0, False, False, {}


class OneHot(gym.ObservationWrapper):
    """Wrapper that converts observations of a `Discrete` space to one-hot vectors."""

    def __init__(self, env: gym.Env):
        super().__init__(env)
        assert isinstance(env.observation_space, Discrete)
        self._eye = np.eye(int(env.observation_space.n), dtype=np.float32)
        self.observation_space = Box(0.0, 1.0, (len(self._eye),), np.float32)

    def observation(self, observation: Any) -> np.ndarray:
        return self._eye[observation]
