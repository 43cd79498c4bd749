"""Cliff walking grid with a wall in place of the cliff."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
from gymnasium.spaces import Discrete

ACTION_UP, ACTION_RIGHT, ACTION_DOWN, ACTION_LEFT = range(4)

_ROWS, _COLUMNS = 4, 12
_START, _GOAL = 36, 47
_MOVES = {ACTION_UP: (-1, 0), ACTION_RIGHT: (0, 1), ACTION_DOWN: (1, 0), ACTION_LEFT: (0, -1)}


class CliffWalkingWallEnv(gym.Env):
    """A grid of 4 × 12 cells, numbered row by row; a wall fills the last row between start (36) and goal (47).

    The observation is the cell; moves into walls and borders do nothing. A step costs 1; the one that reaches the goal
    terminates and pays 10, so that the best return is 10 - 12 = -2.

    Args:
        seed: Seed of the spaces' samples; an ``env_config`` has no settings.
    """

    def __init__(self, seed: int | Mapping[str, Any] | None = 42):
        self.observation_space = Discrete(_ROWS * _COLUMNS)
        self.action_space = Discrete(len(_MOVES))
        if isinstance(seed, int):
            self.observation_space.seed(seed)
            self.action_space.seed(seed)
        self.position = _START

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.position = _START
        return self.position, {}

    def step(self, action: Any):
        if int(action) not in _MOVES:
            raise ValueError(
                f"CliffWalkingWallEnv: the action {action} is not in {self.action_space}. Choose from {sorted(_MOVES)}."
            )
        down, right = _MOVES[int(action)]
        row = min(max(self.position // _COLUMNS + down, 0), _ROWS - 1)
        column = min(max(self.position % _COLUMNS + right, 0), _COLUMNS - 1)
        cell = row * _COLUMNS + column
        if not _START < cell < _GOAL:
            self.position = cell
        at_goal = self.position == _GOAL
        return self.position, 10.0 if at_goal else -1.0, at_goal, False, {}
