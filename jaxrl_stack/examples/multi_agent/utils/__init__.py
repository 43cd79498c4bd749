"""Helpers of RLlib's self-play example scripts: the self-play callback, and a human opponent."""

from __future__ import annotations

from typing import Any

from jaxrl_stack.examples.multi_agent.utils.self_play_callback import SelfPlayCallback
from jaxrl_stack.examples.multi_agent.utils.self_play_league_based_callback import SelfPlayLeagueBasedCallback

__all__ = ["SelfPlayCallback", "SelfPlayLeagueBasedCallback", "ask_user_for_action"]


def ask_user_for_action(time_step: Any) -> int:
    """Asks the user on the terminal for a legal action.

    Args:
        time_step: Of OpenSpiel's environment: ``observations`` with "current_player", and "legal_actions" by player.

    Raises:
        EOFError: The terminal is closed.
    """
    legal = time_step.observations["legal_actions"][time_step.observations["current_player"]]
    while True:
        answer = input(f"Choose an action from {list(legal)}: ").strip()
        if answer.removeprefix("-").isdigit() and int(answer) in legal:
            return int(answer)
