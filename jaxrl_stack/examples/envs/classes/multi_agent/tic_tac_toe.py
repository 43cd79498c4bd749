"""Tic-tac-toe: two agents that take turns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from jaxrl_stack.env.multi_agent_env import MultiAgentEnv


class TicTacToe(MultiAgentEnv):
    """Tic-tac-toe: two players take turns on a board of 3 x 3 fields.

    An episode terminates if a player has three fields in a line, or if the board is full.

    Only the player whose turn it is observes the board: float32 ``[9]``, 1 for its own fields, -1 for the opponent's
    fields, 0 for free fields. After the last turn, both players observe it. The winner gets 1, the loser -1. A player
    that chooses a taken field gets -0.5 and loses the turn. After 30 turns the episode is truncated. The player that
    begins is drawn at random.
    """

    WIN_LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))

    def __init__(self, config: Mapping[str, Any] | None = None):
        super().__init__()
        self.agents = ["player1", "player2"]
        self.possible_agents = list(self.agents)
        self.observation_spaces = dict.fromkeys(self.agents, Box(-1.0, 1.0, (9,), np.float32))
        self.action_spaces = dict.fromkeys(self.agents, Discrete(9))
        self.max_timesteps = 30
        # 1 for the fields of player1, -1 for those of player2.
        self.board = np.zeros(9, np.float32)
        self.current_player = "player1"
        self.timestep = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.board = np.zeros(9, np.float32)
        self.current_player = self.agents[self.np_random.integers(2)]
        self.timestep = 0
        return {self.current_player: self._seen_by(self.current_player)}, {}

    def step(self, action_dict: Mapping[Any, Any]) -> Any:
        player, field = self.current_player, int(action_dict[self.current_player])
        opponent = self.agents[1 - self.agents.index(player)]
        self.timestep += 1
        self.current_player = opponent
        rewards, terminated = {player: 0.0}, False
        if self.board[field]:
            rewards[player] = -0.5
        else:
            self.board[field] = 1.0 if player == "player1" else -1.0
            if any((self.board[list(line)] == self.board[field]).all() for line in self.WIN_LINES):
                rewards, terminated = {player: 1.0, opponent: -1.0}, True
            elif self.board.all():
                terminated = True
        truncated = self.timestep >= self.max_timesteps and not terminated
        obs = {opponent: self._seen_by(opponent)}
        if terminated or truncated:
            obs[player] = self._seen_by(player)
            rewards.setdefault(opponent, 0.0)
        return obs, rewards, {"__all__": terminated}, {"__all__": truncated}, {}

    def _seen_by(self, player: str) -> np.ndarray:
        return self.board.copy() if player == "player1" else -self.board
