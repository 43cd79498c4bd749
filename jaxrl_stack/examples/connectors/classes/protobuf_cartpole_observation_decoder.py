"""Connector that decodes the observations of `CartPoleWithProtobufObservationSpace`."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.examples.envs.classes.utils.cartpole_observations_proto import FIELDS, CartPoleObservation


class ProtobufCartPoleObservationDecoder(ConnectorV2):
    """Env-to-module connector that decodes protocol buffer bytes, uint8 ``[n]``, to CartPole's observation, float32
    ``[4]``.

    Raises:
        ValueError: The input observations are not bytes.
    """

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> gym.Space:
        """Returns CartPole's observation space."""
        space = input_observation_space
        if not (isinstance(space, gym.spaces.Box) and len(space.shape) == 1 and space.dtype == np.uint8):
            raise ValueError(
                f"{type(self).__name__} reads bytes, Box(0, 255, (n,), np.uint8), but the observation space is {space}."
                " Use the environment CartPoleWithProtobufObservationSpace."
            )
        return gym.spaces.Box(-np.inf, np.inf, (len(FIELDS),), np.float32)

    def __call__(self, *, rl_module: Any, batch: dict[str, Any], episodes: list[Any], **kwargs: Any) -> dict[str, Any]:
        """Replaces the last observation of every episode by its decoded form."""
        for episode in self.single_agent_episode_iterator(episodes):
            message = CartPoleObservation.FromString(episode.get_observations(-1).tobytes())
            numbers = np.array([getattr(message, name) for name in FIELDS], np.float32)
            episode.set_observations(new_data=numbers, at_indices=-1)
        return batch
