"""Connector for `DoubleRowCorridorEnv` that adds the other agent's row to each agent's observation."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from jaxrl_stack.connectors.env_to_module.observation_preprocessor import MultiAgentObservationPreprocessor

_HAS_ARRIVED = 2
"""The row of an agent that is not in the corridor any more."""


class AddOtherAgentsRowIndexToXYPos(MultiAgentObservationPreprocessor):
    """Adds the other agent's row, 0 or 1, to each observation of `DoubleRowCorridorEnv`.

    If the other agent reached its goal in an earlier step, the added value is 2.

    The observation of "agent_0" becomes two integers for one-hot encoding, ``{"agent": row * length + column,
    "other_agent_row": other row}`` in a corridor of `length` columns. The observation of "agent_1" becomes float32
    ``[row, column, other row]``.
    """

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """Returns the space of this connector's output observations: a Dict with one space per agent."""
        length = _length(input_observation_space)
        of_first: Any = {"agent": gym.spaces.Discrete(2 * length), "other_agent_row": gym.spaces.Discrete(3)}
        of_second = gym.spaces.Box(0.0, max(length - 1.0, _HAS_ARRIVED), (3,), np.float32)
        return gym.spaces.Dict({"agent_0": gym.spaces.Dict(of_first), "agent_1": of_second})

    def preprocess(self, observations: Any, episode: Any) -> Any:
        """Adds the other agent's row to the observation of each agent, and returns the new observations.

        For "agent_0", in a corridor of `length` columns: ``{"agent": row * length + column, "other_agent_row": other
        row}``. For "agent_1": float32 ``[row, column, other row]``. The other row is the other agent's row, or 2 if the
        other agent has no observation.
        """
        length = _length(self.input_observation_space)
        rows = {agent: own[0] for agent, own in observations.items()}
        changed = {}
        if "agent_0" in observations:
            row, column = observations["agent_0"]
            other = rows.get("agent_1", _HAS_ARRIVED)
            changed["agent_0"] = {"agent": int(row) * length + int(column), "other_agent_row": int(other)}
        if "agent_1" in observations:
            other = rows.get("agent_0", _HAS_ARRIVED)
            changed["agent_1"] = np.array([*observations["agent_1"], other], np.float32)
        return changed


def _length(space: Any) -> int:
    """Returns the number of columns of the corridor, computed from the observation space of "agent_0"."""
    return int(space["agent_0"].high[1]) + 1
