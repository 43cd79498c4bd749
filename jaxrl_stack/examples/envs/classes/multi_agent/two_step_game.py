"""The two-step game of QMIX (Rashid et al. 2018, section 5, https://arxiv.org/abs/1803.11485)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Dict, Discrete, MultiDiscrete, Tuple

from jaxrl_stack.env.multi_agent_env import ENV_STATE, MultiAgentEnv

_CHOICE, _SAFE, _RISKY = range(3)
_PAYOFF = np.array([[0, 1], [1, 8]])
"""Of both together in the risky state, by their actions."""


class TwoStepGame(MultiAgentEnv):
    """Cooperative game of two agents and two steps: agent 0 first chooses a safe or a risky state.

    In the first step, action 0 of agent 0 selects the safe state, action 1 the risky state. Then both agents act. In
    the safe state, the reward is 7 for all actions.

    In the risky state the reward is 8 if both agents play action 1, 1 if their actions differ, 0 if both play 0. Each
    agent gets half of the reward.

    Settings:
        one_hot_state_encoding (False): Observe ``[choice, safe, risky, 1 or 2 for the agent]`` in place of the number
            of the state, to which agent 1 adds 3.
        separate_state_space (False): With `one_hot_state_encoding`: observe a dict with this vector as "obs", and
            ``[choice, safe, risky]`` as "state".
        actions_are_logits (False): Each action is a vector of two probabilities, from which 0 or 1 is drawn.
    """

    def __init__(self, env_config: Mapping[str, Any] | None = None):
        config = env_config or {}
        self.possible_agents = [0, 1]
        super().__init__()
        self.actions_are_logits = config.get("actions_are_logits", False)
        self.one_hot_state_encoding = config.get("one_hot_state_encoding", False)
        self.with_state = self.one_hot_state_encoding and config.get("separate_state_space", False)
        self.action_space = Discrete(2)
        self.observation_space = Discrete(6)
        if self.one_hot_state_encoding:
            self.observation_space = MultiDiscrete([2, 2, 2, 3])
        if self.with_state:
            self.observation_space = Dict({"obs": self.observation_space, ENV_STATE: MultiDiscrete([2, 2, 2])})
        # What is one for both agents is no dict by agent.
        self.observation_spaces = dict.fromkeys(self.possible_agents, self.observation_space)
        self.action_spaces = dict.fromkeys(self.possible_agents, self.action_space)
        self.state = _CHOICE

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.state = _CHOICE
        return self._observations(), {}

    def step(self, action_dict: Mapping[Any, Any]) -> Any:
        actions = [action_dict[agent] for agent in self.possible_agents]
        if self.actions_are_logits:
            actions = [self.np_random.choice(2, p=own) for own in actions]
        reward, over = 0, self.state != _CHOICE
        if self.state == _CHOICE:
            self.state = _RISKY if actions[0] else _SAFE
        else:
            reward = 7 if self.state == _SAFE else int(_PAYOFF[actions[0], actions[1]])
        rewards = dict.fromkeys(self.possible_agents, reward / 2)
        infos = {agent: {"done": over} for agent in self.possible_agents}
        return self._observations(), rewards, {"__all__": over}, {"__all__": False}, infos

    def _observations(self) -> dict[int, Any]:
        if not self.one_hot_state_encoding:
            return {0: self.state, 1: self.state + 3}
        state = np.eye(3, dtype=np.int64)[self.state]
        seen = {agent: np.append(state, agent + 1) for agent in self.possible_agents}
        if not self.with_state:
            return seen
        return {agent: {"obs": own, ENV_STATE: state} for agent, own in seen.items()}


class TwoStepGameWithGroupedAgents(MultiAgentEnv):
    """`TwoStepGame` with a single agent "agents", which acts for the agents 0 and 1.

    Observations and actions are tuples with one element for each of the agents 0 and 1. Settings: the settings of
    `TwoStepGame`.
    """

    def __init__(self, env_config: Mapping[str, Any] | None = None):
        self.possible_agents = ["agents"]
        super().__init__()
        game = TwoStepGame(env_config)
        self.env = game.with_agent_groups(
            groups={"agents": [0, 1]},
            obs_space=Tuple([game.observation_space, game.observation_space]),
            act_space=Tuple([game.action_space, game.action_space]),
        )
        self.observation_space = Dict({"agents": self.env.observation_space})
        self.action_space = Dict({"agents": self.env.action_space})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.env.reset(seed=seed, options=options)

    def step(self, action_dict: Mapping[Any, Any]) -> Any:
        return self.env.step(action_dict)


__all__ = ["TwoStepGame", "TwoStepGameWithGroupedAgents"]
