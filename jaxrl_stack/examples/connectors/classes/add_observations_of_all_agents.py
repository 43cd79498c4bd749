"""Connector that adds the observations of all agents and an agent id to each observation, for example for centralized
critics.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.connectors.env_to_module.observation_preprocessor import MultiAgentObservationPreprocessor

OWN, ALL_AGENTS = "own", "all_agents"


class AddObservationsOfAllAgents(MultiAgentObservationPreprocessor):
    """Replaces each agent's observation by ``{"own": observation and agent id, "all_agents": observations of all
    agents}``.

    Observations are Boxes of rank 1. Both parts are float32 vectors: the agent's number is one-hot, after its own
    observation, so that one policy can act for all; agents that do not observe are zeros among all.
    """

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """Returns the space of this connector's output observations: a Dict with one space per agent."""
        widths = {agent: space.shape[0] for agent, space in input_observation_space.items()}
        everything = gym.spaces.Box(-np.inf, np.inf, (sum(widths.values()),), np.float32)
        spaces: Any = {
            agent: gym.spaces.Dict(
                {OWN: gym.spaces.Box(-np.inf, np.inf, (width + len(widths),), np.float32), ALL_AGENTS: everything}
            )
            for agent, width in widths.items()
        }
        return gym.spaces.Dict(spaces)

    def preprocess(self, observations: Any, episode: Any) -> Any:
        """Returns two float32 vectors for each agent with an observation, ``{"own": ..., "all_agents": ...}``.

        The first one is the agent's observation followed by the agent's one-hot id. The second one contains the
        observations of all agents, with zeros for agents without an observation.
        """
        spaces: Any = self.input_observation_space
        # On the device in a compiled program, where everybody observes.
        xp: Any = jnp if any(isinstance(one, jax.Array) for one in observations.values()) else np
        of_all = [observations.get(agent, np.zeros(space.shape)) for agent, space in spaces.items()]
        everything = xp.concatenate(of_all).astype(np.float32)
        numbers = np.eye(len(spaces), dtype=np.float32)
        own = {agent: numbers[i] for i, agent in enumerate(spaces)}
        return {
            agent: {OWN: xp.append(observation, own[agent]).astype(np.float32), ALL_AGENTS: everything}
            for agent, observation in observations.items()
        }
