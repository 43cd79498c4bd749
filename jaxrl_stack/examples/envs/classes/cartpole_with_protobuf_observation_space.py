"""CartPole whose observations are bytes of a protocol buffer."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv

from jaxrl_stack.examples.envs.classes.utils.cartpole_observations_proto import FIELDS, CartPoleObservation
from jaxrl_stack.examples.envs.classes.utils.other_observations import OtherObservations


class CartPoleWithProtobufObservationSpace(OtherObservations, CartPoleEnv):
    """CartPole without time limit; an observation is a serialised `CartPoleObservation`, uint8 ``[36]``.

    Args:
        config: Not read.
    """

    def __init__(self, config: Any = None):
        super().__init__()
        size = len(self._shown(np.zeros(len(FIELDS))))
        self.observation_space = gym.spaces.Box(0, 255, (size,), np.uint8)

    def _shown(self, obs: np.ndarray) -> np.ndarray:
        message = CartPoleObservation(**dict(zip(FIELDS, map(float, obs), strict=True)))
        return np.frombuffer(message.SerializeToString(), np.uint8)
