"""PettingZoo's connect four."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxrl_stack.env.wrappers.pettingzoo_env import PettingZooEnv
from jaxrl_stack.utils.optional_packages import optional_import


class MultiAgentConnect4(PettingZooEnv):
    """PettingZoo's ``connect_four_v3`` for the agents "player_0" and "player_1"; an illegal move raises AssertionError.

    Args:
        config: Not used.
        env: An `AECEnv` in place of it.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, env: Any = None):
        if env is None:
            env = optional_import(
                "pettingzoo.classic.connect_four.connect_four",
                purpose="MultiAgentConnect4",
                install="jaxrl-stack[pettingzoo]",
            ).raw_env()
        super().__init__(env)
        self.config = dict(config or {})


__all__ = ["MultiAgentConnect4"]
