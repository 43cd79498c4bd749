"""PettingZoo's chess."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxrl_stack.env.multi_agent_env import MultiAgentEnv
from jaxrl_stack.env.wrappers.pettingzoo_env import PettingZooEnv
from jaxrl_stack.utils.optional_packages import optional_import


class MultiAgentChess(PettingZooEnv):
    """PettingZoo's ``chess_v6`` for the agents "player_0" and "player_1"; an illegal move raises AssertionError.

    Settings:
        random_start (4): Number of random moves before the first one of the agents; even, so that white is next.

    Args:
        config: The settings.
        env: An `AECEnv` in place of it, with a `board` of python-chess.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, env: Any = None):
        if env is None:
            env = optional_import(
                "pettingzoo.classic.chess.chess", purpose="MultiAgentChess", install="jaxrl-stack[pettingzoo]"
            ).raw_env()
        super().__init__(env)
        self.config = {"random_start": 4, **(config or {})}
        moves = self.config["random_start"]
        if not isinstance(moves, int) or moves < 0 or moves % 2:
            raise ValueError(
                f"env_config['random_start']={moves!r}: must be an even number of random moves, at least 0."
            )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        MultiAgentEnv.reset(self, seed=seed)  # seeds np_random
        _, infos = super().reset(seed=seed, options=options)
        board = self.env.unwrapped.board
        for _ in range(self.config["random_start"]):
            legal = list(board.legal_moves)
            board.push(legal[int(self.np_random.integers(len(legal)))])
        agent = self.env.agent_selection
        return {agent: self.env.observe(agent)}, infos


__all__ = ["MultiAgentChess"]
