"""CartPole that shows its observations as bytes of a protocol buffer."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv

from jaxrl_stack.examples.envs.classes.utils.cartpole_observations_proto import FIELDS, CartPoleObservation


class CartPoleWithProtobufObservationSpace(CartPoleEnv):
    """CartPole without time limit; an observation is a serialised `CartPoleObservation`, uint8 ``[36]``.

    Args:
        config: Not read.
    """

    def __init__(self, config: Any = None):
        super().__init__()
        size = len(_as_bytes(np.zeros(len(FIELDS))))
        self.observation_space = gym.spaces.Box(0, 255, (size,), np.uint8)

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode; see ``gymnasium.Env``."""
        obs, infos = super().reset(**kwargs)
        return _as_bytes(obs), infos

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take a step; see ``gymnasium.Env``."""
        obs, reward, terminated, truncated, infos = super().step(action)
        return _as_bytes(obs), float(reward), terminated, truncated, infos


def _as_bytes(obs: np.ndarray) -> np.ndarray:
    message = CartPoleObservation(**dict(zip(FIELDS, map(float, obs), strict=True)))
    return np.frombuffer(message.SerializeToString(), np.uint8)
