"""Maze in which wind moves the agent: for one agent, and for a hierarchy in which one agent sets goals for others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete, Tuple

from jaxrl_stack.env.multi_agent_env import MultiAgentEnv

MAP_DATA = """
#########
#S      #
####### #
      # #
      # #
####### #
#F      #
#########"""
MAX_STEPS = 200
"""The step that truncates."""
STEPS_PER_GOAL = 25
_MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))
"""Row and column by the wind's direction: north, east, south, west."""


class WindyMazeEnv(gym.Env):
    """Maze from S to F for one agent: action 0 waits, action 1 moves in the direction of the wind.

    Reaching F gives reward 100, every other step 0.

    Observations are ``((row, column), direction of the wind)``; the wind turns at random in every step.
    """

    def __init__(self, env_config: Mapping[str, Any] | None = None):
        self.map = [line for line in MAP_DATA.split("\n") if line]
        self.start_pos, self.end_pos = (self._find(mark) for mark in "SF")
        self.observation_space = Tuple((Box(0.0, 100.0, (2,)), Discrete(4)))
        self.action_space = Discrete(2)
        self.pos, self.wind_direction, self.num_steps = self.start_pos, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.pos, self.num_steps = self.start_pos, 0
        self.wind_direction = int(self.np_random.integers(4))
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        if action == 1:
            self.pos = self.moved(self.pos, self.wind_direction)
        self.num_steps += 1
        self.wind_direction = int(self.np_random.integers(4))
        at_goal = self.pos == self.end_pos
        return self._observation(), 100.0 * at_goal, at_goal, self.num_steps >= MAX_STEPS and not at_goal, {}

    def moved(self, pos: tuple[int, int], direction: int) -> tuple[int, int]:
        """Returns the position after a move from `pos`: the next field, or `pos` if a wall or the border blocks the
        move.
        """
        row, column = pos[0] + _MOVES[direction][0], pos[1] + _MOVES[direction][1]
        inside = 0 <= row < len(self.map) and 0 <= column < len(self.map[0])
        return (row, column) if inside and self.map[row][column] != "#" else pos

    def _find(self, mark: str) -> tuple[int, int]:
        return next((row, line.index(mark)) for row, line in enumerate(self.map) if mark in line)

    def _observation(self) -> tuple[np.ndarray, int]:
        return np.array(self.pos, np.float32), self.wind_direction


class HierarchicalWindyMazeEnv(MultiAgentEnv):
    """Hierarchical `WindyMazeEnv`: a "high_level_agent" chooses a direction, and low-level agents follow it.

    The agents "low_level_1", "low_level_2", ... have 25 steps each, and observe ``(observation, direction)``: they get
    1 for a step in that direction, -1 for one in another. The high-level agent gets the maze's reward.
    """

    def __init__(self, env_config: Mapping[str, Any] | None = None):
        self.flat_env = WindyMazeEnv(env_config)
        # Ids of agents that have ended do not come back in an episode.
        workers = [f"low_level_{i + 1}" for i in range(-(-MAX_STEPS // STEPS_PER_GOAL))]
        self.possible_agents = ["high_level_agent", *workers]
        super().__init__()
        seen = self.flat_env.observation_space
        self.observation_spaces = {"high_level_agent": seen, **dict.fromkeys(workers, Tuple((seen, Discrete(4))))}
        self.action_spaces = {"high_level_agent": Discrete(4), **dict.fromkeys(workers, Discrete(2))}
        self.cur_obs: Any = None
        self.current_goal, self.steps_remaining_at_level, self.num_high_level_steps = 0, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.cur_obs, info = self.flat_env.reset(seed=seed, options=options)
        self.num_high_level_steps = 0
        return {"high_level_agent": self.cur_obs}, {"high_level_agent": info}

    def step(self, action_dict: Mapping[Any, Any]) -> Any:
        ((agent, action),) = action_dict.items()
        if agent == "high_level_agent":
            self.current_goal, self.steps_remaining_at_level = int(action), STEPS_PER_GOAL
            self.num_high_level_steps += 1
            worker = self._worker
            return {worker: (self.cur_obs, self.current_goal)}, {worker: 0.0}, {"__all__": False}, {}, {}
        return self._low_level_step(agent, action)

    def _low_level_step(self, agent: str, action: Any) -> Any:
        before = self.flat_env.pos
        wanted = self.flat_env.moved(before, self.current_goal)
        self.cur_obs, reward, terminated, truncated, info = self.flat_env.step(action)
        self.steps_remaining_at_level -= 1
        after = self.flat_env.pos
        own = 0.0 if after == before else 1.0 if after == wanted else -1.0
        obs = {agent: (self.cur_obs, self.current_goal)}
        rewards, terminateds = {agent: own}, {"__all__": terminated}
        if terminated or truncated:
            obs["high_level_agent"] = self.cur_obs
            rewards["high_level_agent"] = reward
        elif self.steps_remaining_at_level == 0:
            obs["high_level_agent"] = self.cur_obs
            rewards["high_level_agent"] = 0.0
            terminateds[agent] = True
        return obs, rewards, terminateds, {"__all__": truncated}, {agent: info}

    @property
    def _worker(self) -> str:
        return f"low_level_{self.num_high_level_steps}"


__all__ = ["MAP_DATA", "HierarchicalWindyMazeEnv", "WindyMazeEnv"]
