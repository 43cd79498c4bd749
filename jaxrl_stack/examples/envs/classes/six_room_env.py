"""Gridworld of six rooms with doors: for one agent, and for a hierarchy in which one agent sets targets for others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
from gymnasium.spaces import Discrete, Tuple

from jaxrl_stack.env.multi_agent_env import MultiAgentEnv

# W is a wall, G the goal. The start is the upper left field.
MAPS = {
    "small": [
        "WWWWWWWWWWWWW",
        "W   W   W   W",
        "W       W   W",
        "W   W       W",
        "W WWWW WWWW W",
        "W   W   W   W",
        "W   W       W",
        "W       W  GW",
        "WWWWWWWWWWWWW",
    ],
    "medium": [
        "WWWWWWWWWWWWWWWWWWW",
        "W     W     W     W",
        "W           W     W",
        "W     W           W",
        "W WWWWWWW WWWWWWW W",
        "W     W     W     W",
        "W     W           W",
        "W           W    GW",
        "WWWWWWWWWWWWWWWWWWW",
    ],
    "large": [
        "WWWWWWWWWWWWWWWWWWWWWWWWW",
        "W       W       W       W",
        "W       W       W       W",
        "W               W       W",
        "W       W               W",
        "W       W       W       W",
        "WW WWWWWWWWW WWWWWWWWWW W",
        "W       W       W       W",
        "W       W               W",
        "W       W       W       W",
        "W               W       W",
        "W       W       W      GW",
        "WWWWWWWWWWWWWWWWWWWWWWWWW",
    ],
}
_MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
"""Row and column by action: up, down, left, right."""


class _Rooms:
    """Map of the rooms (fields and walls), with the position of the agent.

    Attributes:
        num_fields: Number of fields of the map, walls included.
        pos: Row and column of the agent.
    """

    def __init__(self, config: Mapping[str, Any]):
        name = config.get("map", "small")
        if "custom_map" not in config and name not in MAPS:
            raise ValueError(
                f"env_config['map']={name!r}: choose one of {', '.join(MAPS)}, or set env_config['custom_map']."
            )
        self.map = config.get("custom_map") or MAPS[name]
        self.num_columns = len(self.map[0])
        self.num_fields = len(self.map) * self.num_columns
        self.pos = (1, 1)

    @property
    def field(self) -> int:
        """Index of the field on which the agent is, counted row by row."""
        return self.pos[0] * self.num_columns + self.pos[1]

    @property
    def at_goal(self) -> bool:
        return self.map[self.pos[0]][self.pos[1]] == "G"

    def move(self, action: Any) -> None:
        """Moves the agent by one field unless a wall blocks the way."""
        row, column = self.pos[0] + _MOVES[action][0], self.pos[1] + _MOVES[action][1]
        if self.map[row][column] != "W":
            self.pos = row, column

    def distance(self, field: int) -> float:
        """Euclidean distance from the agent to a field, divided by the map's diagonal."""
        row, column = divmod(int(field), self.num_columns)
        squares = (row - self.pos[0]) ** 2 + (column - self.pos[1]) ** 2
        return (squares / (len(self.map) ** 2 + self.num_columns**2)) ** 0.5


class SixRoomEnv(gym.Env):
    """Gridworld in which the agent must find the goal, with reward 10; every other step costs 0.01. Observations are
    field indices.

    Settings:
        map ("small"): One of `MAPS`.
        custom_map: Lines of equal length, in place of that.
        time_limit (50): The step that truncates.
    """

    def __init__(self, config: Mapping[str, Any] | None = None):
        config = config or {}
        self.rooms = _Rooms(config)
        self.map = self.rooms.map
        self.time_limit = config.get("time_limit", 50)
        self.observation_space = Discrete(self.rooms.num_fields)
        self.action_space = Discrete(4)
        self._ts = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.rooms.pos, self._ts = (1, 1), 0
        return self.rooms.field, {}

    def step(self, action: Any) -> Any:
        self._ts += 1
        self.rooms.move(action)
        found = self.rooms.at_goal
        return self.rooms.field, 10.0 if found else -0.01, found, self._ts >= self.time_limit and not found, {}


class HierarchicalSixRoomEnv(MultiAgentEnv):
    """Hierarchical `SixRoomEnv`: a "high_level_agent" sets targets and selects the low-level agent that moves.

    The high-level agent's action is ``(field, i)``: "low_level_agent_i" acts until it is there, or
    `max_steps_low_level` are over; it observes ``(where it is, target)``. The high-level agent gets 10 for the goal, 1
    for every target that is reached, -0.01 for every one that is not, and, when it sets one, minus a share of the
    diagonal, the less the further the target is. The others get 1 at their target and -0.01 for every other step.
    Setting a target is a step, too.

    Settings:
        map, custom_map, time_limit: Settings of `SixRoomEnv`.
        max_steps_low_level (15): Steps for one target.
        num_low_level_agents (3): Number of low-level agents to choose from.
    """

    def __init__(self, config: Mapping[str, Any] | None = None):
        config = config or {}
        self.rooms = _Rooms(config)
        self.map = self.rooms.map
        self.max_steps_low_level = config.get("max_steps_low_level", 15)
        self.time_limit = config.get("time_limit", 50)
        self.num_low_level_agents = config.get("num_low_level_agents", 3)
        workers = [f"low_level_agent_{i}" for i in range(self.num_low_level_agents)]
        self.possible_agents = ["high_level_agent", *workers]
        super().__init__()
        field = Discrete(self.rooms.num_fields)
        self.observation_spaces = {"high_level_agent": field, **dict.fromkeys(workers, Tuple((field, field)))}
        targets = Tuple((field, Discrete(self.num_low_level_agents)))
        self.action_spaces = {"high_level_agent": targets, **dict.fromkeys(workers, Discrete(4))}
        self._target, self._low_level_steps, self._ts = 0, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.rooms.pos, self._low_level_steps, self._ts = (1, 1), 0, 0
        return {"high_level_agent": self.rooms.field}, {}

    def step(self, action_dict: Mapping[Any, Any]) -> Any:
        self._ts += 1
        ((agent, action),) = action_dict.items()
        if agent == "high_level_agent":
            self._target, self._low_level_steps = int(action[0]), 0
            worker, found = f"low_level_agent_{int(action[1])}", False
            obs: dict[str, Any] = {worker: (self.rooms.field, self._target)}
            rewards = {agent: self.rooms.distance(self._target) - 1.0}
        else:
            obs, rewards, found = self._low_level_step(agent, action)
        is_late = self._ts >= self.time_limit and not found
        if is_late:
            # A truncated agent needs its last observation, also if it is not the next one to act.
            own = self.rooms.field if agent == "high_level_agent" else (self.rooms.field, self._target)
            obs = {"high_level_agent": self.rooms.field, **obs, agent: own}
        return obs, rewards, {"__all__": found}, {"__all__": is_late}, {}

    def _low_level_step(self, agent: str, action: Any) -> tuple[dict[str, Any], dict[str, float], bool]:
        """Moves the acting low-level agent; returns ``(observations, rewards, whether the goal is found)``."""
        self._low_level_steps += 1
        self.rooms.move(action)
        at_target, found = self.rooms.field == self._target, self.rooms.at_goal
        rewards = {agent: 1.0 if at_target else 0.0 if found else -0.01}
        is_next = {"high_level_agent": self.rooms.field}
        if found or at_target:
            return is_next, {**rewards, "high_level_agent": 10.0 if found else 1.0}, found
        if self._low_level_steps >= self.max_steps_low_level:
            return is_next, {**rewards, "high_level_agent": -0.01}, False
        return {agent: (self.rooms.field, self._target)}, rewards, False


__all__ = ["MAPS", "HierarchicalSixRoomEnv", "SixRoomEnv"]
