"""Game of two agents: one picks a number, the other guesses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium.spaces import Discrete, MultiDiscrete

from jaxrl_stack.env.multi_agent_env import MultiAgentEnv

_LOWER, _HIGHER, _EQUAL = range(3)


class GuessTheNumberGame(MultiAgentEnv):
    """Game of two agents: agent 0 picks a number in the first step; in each later step, agent 1 asks a question about
    the number.

    An action is ``[question, number]``, of which agent 0 uses the number; the question is 0, "is yours lower?", 1,
    "higher?", or 2, "equal?". Agent 1 gets 1 for a yes; agent 0 gets 1 for every step. Asked for equality, a yes gives
    agent 1 100, takes 100 of agent 0, and ends the game; a no gives both nothing. Agent 0 gets 100 if the last step
    does not find the number.

    Settings:
        max_number (3): Numbers are below it.
        max_steps (20): Number of questions; the last one truncates.
    """

    MAX_NUMBER = 3
    MAX_STEPS = 20

    def __init__(self, config: Mapping[str, Any] | None = None):
        config = config or {}
        self.possible_agents = [0, 1]
        super().__init__()
        self.max_number = config.get("max_number", self.MAX_NUMBER)
        self.max_steps = config.get("max_steps", self.MAX_STEPS)
        self.observation_space = Discrete(2)
        self.action_space = MultiDiscrete([3, self.max_number])
        self._number: int | None = None
        self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._step, self._number = 0, None
        return {0: 0}, {}

    def step(self, action_dict: Mapping[Any, Any]) -> Any:
        if 0 in action_dict:
            self._number = int(action_dict[0][1])
            return {1: 0}, {0: 0.0}, {"__all__": False}, {"__all__": False}, {}
        if self._number is None:
            raise ValueError(
                f"step({dict(action_dict)}): agent 0 has not picked its number. Call step({{0: action}}) first."
            )
        question, number = action_dict[1]
        found = bool(question == _EQUAL and number == self._number)
        if question == _EQUAL:
            rewards = {0: -100.0 * found, 1: 100.0 * found}
        else:
            yes = number > self._number if question == _LOWER else number < self._number
            rewards = {0: 1.0, 1: float(yes)}
        self._step += 1
        is_late = self._step >= self.max_steps and not found
        if is_late:
            rewards[0] = 100.0
        # The first one does not act again: it only sees the end that cuts it off.
        obs = {0: 0, 1: 0} if is_late else {1: 0}
        return obs, rewards, {"__all__": found}, {"__all__": is_late}, {}


__all__ = ["GuessTheNumberGame"]
