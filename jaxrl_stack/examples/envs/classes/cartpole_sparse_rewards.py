"""CartPole with a single reward at the end of the episode."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict


class CartPoleSparseRewards(gym.Env):
    """CartPole-v1 with sparse rewards: a step that terminates an episode gives the sum of CartPole's rewards in this
    episode.

    All other steps, including a truncating step, give 0.

    The observation is ``{"obs": CartPole's, "action_mask": [1, 1]}``. Its state can be taken and put back.

    Args:
        config: Has no settings.
    """

    def __init__(self, config: Mapping[str, Any] | None = None):
        self.env = gym.make("CartPole-v1")
        self.action_space = self.env.action_space
        self.observation_space = Dict({"obs": self.env.observation_space, "action_mask": Box(0, 1, (2,), np.int8)})
        self.running_reward = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.running_reward = 0.0
        obs, info = self.env.reset(seed=seed, options=options)
        return self._with_mask(obs), info

    def step(self, action: Any):
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.running_reward += float(reward)
        return self._with_mask(obs), self.running_reward if terminated else 0.0, terminated, truncated, info

    def get_state(self) -> tuple[gym.Env, float]:
        """Returns a copy of the environment, and the sum of the present episode's rewards so far."""
        return copy.deepcopy(self.env), self.running_reward

    def set_state(self, state: tuple[gym.Env, float]) -> dict[str, np.ndarray]:
        """Restores the environment from a result of `get_state`; returns the current observation."""
        self.env, self.running_reward = copy.deepcopy(state[0]), state[1]
        return self._with_mask(np.asarray(self.env.unwrapped.state, np.float32))  # type: ignore[attr-defined]

    def _with_mask(self, obs: Any) -> dict[str, np.ndarray]:
        return {"obs": obs, "action_mask": np.ones(2, np.int8)}
