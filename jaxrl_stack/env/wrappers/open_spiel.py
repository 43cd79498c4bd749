"""Games of OpenSpiel as multi-agent environments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from jaxrl_stack.env.multi_agent_env import MultiAgentEnv
from jaxrl_stack.utils.multi_agent import ALL

ILLEGAL_ACTION_PENALTY = -0.1
"""Reward of an agent for an illegal action, in addition to the game's rewards."""


class OpenSpielEnv(MultiAgentEnv):
    """OpenSpiel game whose players are the agents 0, 1, ...

    In turn-based games, only the acting player gets an observation; in simultaneous games, all players get one. An
    illegal action is replaced by a random legal one, and the agent gets `ILLEGAL_ACTION_PENALTY`. The reward of a step
    is the change of the player's return. Chance outcomes are drawn from the environment's `np_random`.

    Args:
        env: The game, such as ``pyspiel.load_game("connect_four")``.

    Attributes:
        env: The game.
        type: Type of the game.
        state: State of the running game.

    Raises:
        ValueError: The game has neither observation tensors nor information state tensors.
    """

    def __init__(self, env: Any):
        self.env = env
        self.type: Any = env.get_type()
        self.state: Any = None
        self.possible_agents = list(range(env.num_players()))
        self.agents = list(self.possible_agents)
        super().__init__()
        if self.type.provides_observation_tensor:
            self._seen, size = "observation_tensor", env.observation_tensor_size()
        elif self.type.provides_information_state_tensor:
            self._seen, size = "information_state_tensor", env.information_state_tensor_size()
        else:
            raise ValueError(
                f"OpenSpielEnv({self.type.short_name}): the game gives its players neither observation tensors nor "
                "information state tensors. Load a game that has one of them: pyspiel.load_game('tic_tac_toe')."
            )
        box = Box(-np.inf, np.inf, (size,), np.float32)
        self.observation_spaces = dict.fromkeys(self.possible_agents, box)
        self.action_spaces = dict.fromkeys(self.possible_agents, Discrete(env.num_distinct_actions()))
        observations: Any = self.observation_spaces
        actions: Any = self.action_spaces
        self.observation_space, self.action_space = Dict(observations), Dict(actions)
        self._returns = np.zeros(len(self.possible_agents))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.state = self.env.new_initial_state()
        self._returns = np.zeros(len(self.possible_agents))
        self._play_chance()
        return self._observations(), {}

    def step(self, action_dict: Mapping[Any, Any]) -> Any:
        rewards = dict.fromkeys(self.possible_agents, 0.0)
        moves = {}
        for player in self._players():
            moves[player] = int(action_dict[player])
            legal = self.state.legal_actions(player)
            if moves[player] not in legal:
                moves[player] = int(self.np_random.choice(legal))
                rewards[player] = ILLEGAL_ACTION_PENALTY
        if self.state.is_simultaneous_node():
            self.state.apply_actions([moves[player] for player in self.possible_agents])
        else:
            self.state.apply_action(moves[self.state.current_player()])
        self._play_chance()
        returns = np.asarray(self.state.returns())
        for player in self.possible_agents:
            rewards[player] += float(returns[player] - self._returns[player])
        self._returns = returns
        over = bool(self.state.is_terminal())
        flags = {**dict.fromkeys(self.possible_agents, over), ALL: over}
        return self._observations(), rewards, flags, dict.fromkeys(flags, False), {}

    def render(self, mode: str | None = None) -> None:
        """Prints the state of the game, for ``mode="human"``."""
        if mode == "human":
            print(self.state)

    def _players(self) -> list[int]:
        """Returns the players that act in the next step; an empty list if the game is over."""
        if self.state.is_terminal():
            return []
        if not self.state.is_simultaneous_node():
            return [self.state.current_player()]
        return [player for player in self.possible_agents if self.state.legal_actions(player)]

    def _observations(self) -> dict[int, np.ndarray]:
        observe = getattr(self.state, self._seen) if self.state is not None else None
        return {player: np.asarray(observe(player), np.float32) for player in self._players()}  # type: ignore[misc]

    def _play_chance(self) -> None:
        while self.state.is_chance_node():
            actions, probabilities = zip(*self.state.chance_outcomes(), strict=True)
            self.state.apply_action(int(self.np_random.choice(actions, p=probabilities)))


__all__ = ["ILLEGAL_ACTION_PENALTY", "OpenSpielEnv"]
