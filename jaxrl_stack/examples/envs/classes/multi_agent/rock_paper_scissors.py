"""Rock, paper, scissors: two agents that move at the same time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium.spaces import Discrete

from jaxrl_stack.env.multi_agent_env import MultiAgentEnv

NUM_MOVES = 10


class RockPaperScissors(MultiAgentEnv):
    """Rock-paper-scissors with ten simultaneous moves of both players; the winner of a move gets 1, the loser -1.

    A player observes the opponent's last move, at first 0. After the last move, the episode is terminated.

    Settings: `sheldon_cooper_mode` (False), with lizard and Spock as further moves.

    Attributes:
        BEATS: Move -> the moves that it wins against.
    """

    ROCK, PAPER, SCISSORS, LIZARD, SPOCK = range(5)
    BEATS = {
        ROCK: (SCISSORS, LIZARD),
        PAPER: (ROCK, SPOCK),
        SCISSORS: (PAPER, LIZARD),
        LIZARD: (PAPER, SPOCK),
        SPOCK: (ROCK, SCISSORS),
    }

    def __init__(self, config: Mapping[str, Any] | None = None):
        super().__init__()
        self.agents = ["player1", "player2"]
        self.possible_agents = list(self.agents)
        self.sheldon_cooper_mode = bool((config or {}).get("sheldon_cooper_mode", False))
        moves = Discrete(5 if self.sheldon_cooper_mode else 3)
        self.observation_spaces = dict.fromkeys(self.agents, moves)
        self.action_spaces = dict.fromkeys(self.agents, moves)
        self.num_moves = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.num_moves = 0
        return dict.fromkeys(self.agents, 0), {}

    def step(self, action_dict: Mapping[Any, Any]) -> Any:
        self.num_moves += 1
        first, second = (int(action_dict[player]) for player in self.agents)
        won = float(second in self.BEATS[first]) - float(first in self.BEATS[second])
        obs = {"player1": second, "player2": first}
        rewards = {"player1": won, "player2": -won}
        return obs, rewards, {"__all__": self.num_moves >= NUM_MOVES}, {"__all__": False}, {}
