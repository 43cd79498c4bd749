"""Host environments with several agents that are not among RLlib's examples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from jaxrl_stack.env.multi_agent_env import MultiAgentEnv


class ComeAndGo(MultiAgentEnv):
    """Environment in which agents arrive and leave at random times; the host version of
    `jaxrl_stack.examples.envs.multi_agent.ComeAndGo`.

    Settings: `num_agents` (3).

    Attributes:
        visits: ``{agent: (arrival, departure)}``, in steps.
    """

    length = 8

    def __init__(self, config: Mapping[str, Any] | None = None):
        super().__init__()
        num_agents = int((config or {}).get("num_agents", 3))
        self.agents = [f"a{i}" for i in range(num_agents)]
        self.possible_agents = list(self.agents)
        self.observation_spaces = dict.fromkeys(self.agents, Box(0.0, float(num_agents), (2,), np.float32))
        self.action_spaces = dict.fromkeys(self.agents, Discrete(2))
        self.visits: dict[str, tuple[int, int]] = {}
        self.t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        self.visits = {"a0": (0, self.length)}
        for agent in self.agents[1:]:
            comes = int(self.np_random.integers(4))
            self.visits[agent] = (comes, comes + int(self.np_random.integers(1, 5)))
        return dict.fromkeys(self._present(), self._seen()), {}

    def step(self, action_dict: Mapping[Any, Any]) -> Any:
        rewards = {agent: float(action_dict[agent] == self.t % 2) for agent in self._present()}
        self.t += 1
        leaving = [agent for agent, (_, goes) in self.visits.items() if goes == self.t]
        terminateds = {agent: int(agent[1:]) % 2 == 0 for agent in leaving}
        truncateds = {agent: not terminateds[agent] for agent in leaving}
        ends = {"__all__": self.t >= self.length}
        obs = dict.fromkeys([*self._present(), *leaving], self._seen())
        return obs, rewards, {**terminateds, **ends}, {**truncateds, "__all__": False}, {}

    def _present(self) -> list[str]:
        return [agent for agent, (comes, goes) in self.visits.items() if comes <= self.t < goes]

    def _seen(self) -> np.ndarray:
        return np.array([self.t % 2, len(self._present())], np.float32)
