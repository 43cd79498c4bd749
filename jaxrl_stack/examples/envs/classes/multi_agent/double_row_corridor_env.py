"""Two agents that must cross a corridor of two rows and get a reward for meeting on the way."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from jaxrl_stack.env.multi_agent_env import MultiAgentEnv

_MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
"""Changes of (row, column): up, down, left, right."""


class DoubleRowCorridorEnv(MultiAgentEnv):
    """Grid of two rows in which each of two agents must reach the other agent's start.

    "agent_0" starts at the left end of the upper row, "agent_1" at the right end of the lower row.

    An agent gets 10 when it arrives, which ends its part of the episode, and -0.1 in every step. When both agents are
    in one field for the first time, both get 5 more. An agent sees its own row and column only. Actions: 0 up, 1 down,
    2 left, 3 right; walls stop an agent.

    Args:
        config: ``{"length": number of columns, 15 by default}``.
    """

    def __init__(self, config: dict[str, Any] | None = None):
        super().__init__()
        self.length = int((config or {}).get("length", 15))
        self.agents = self.possible_agents = ["agent_0", "agent_1"]
        space = gym.spaces.Box(0, self.length - 1, (2,), np.int32)
        self.observation_spaces = dict.fromkeys(self.possible_agents, space)
        self.action_spaces = {agent: gym.spaces.Discrete(len(_MOVES)) for agent in self.possible_agents}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Starts an episode, always in the same state."""
        self.positions = {"agent_0": (0, 0), "agent_1": (1, self.length - 1)}
        self.goals = {"agent_0": self.positions["agent_1"], "agent_1": self.positions["agent_0"]}
        self.has_met, self.has_arrived = False, set[str]()
        return self._observations(self.possible_agents), {}

    def step(self, action_dict: dict[str, Any]):
        """Moves each agent that has not reached its goal. Returns gymnasium's five values as dicts by agent."""
        moving = [agent for agent in self.possible_agents if agent not in self.has_arrived]
        rewards = dict.fromkeys(moving, -0.1)
        for agent, action in action_dict.items():
            row, column = np.add(self.positions[agent], _MOVES[int(action)])
            self.positions[agent] = (int(np.clip(row, 0, 1)), int(np.clip(column, 0, self.length - 1)))
        if len(moving) == 2 and not self.has_met and len(set(self.positions.values())) == 1:
            self.has_met = True
            rewards = {agent: reward + 5.0 for agent, reward in rewards.items()}
        arrived = [agent for agent in moving if self.positions[agent] == self.goals[agent]]
        for agent in arrived:
            rewards[agent] += 10.0
        self.has_arrived |= set(arrived)
        terminateds = {agent: agent in arrived for agent in moving}
        terminateds["__all__"] = len(self.has_arrived) == 2
        return self._observations(moving), rewards, terminateds, {"__all__": False}, {}

    def _observations(self, agents: list[str]) -> dict[str, np.ndarray]:
        return {agent: np.array(self.positions[agent], np.int32) for agent in agents}
