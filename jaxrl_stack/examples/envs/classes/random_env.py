"""Environments that draw observations and rewards at random from given spaces."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

from jaxrl_stack.compat.unsupported_names import stand_ins

__getattr__ = stand_ins(__name__)


class RandomEnv(gym.Env):
    """Environment that draws every observation and reward at random; actions have no effect.

    Settings:
        observation_space (Discrete(2)), action_space (Discrete(2)): Any spaces.
        reward_space (Box of shape () in [-1, 1]): Where rewards are drawn from.
        static_samples (False): Draw one observation and one reward, and repeat them.
        p_terminated (0.1): The chance of a step to terminate; `p_done` is its old name.
        max_episode_len (None): The step that truncates; None or 0: none.
        check_action_bounds (False): Raise a ValueError for actions that are not in the action space.
    """

    def __init__(self, config: Mapping[str, Any] | None = None):
        config = config or {}
        self.action_space = config.get("action_space", Discrete(2))
        self.observation_space = config.get("observation_space", Discrete(2))
        self.reward_space = config.get("reward_space", Box(-1.0, 1.0, (), np.float32))
        self.static_samples = config.get("static_samples", False)
        p_terminated = config.get("p_terminated")
        self.p_terminated = config.get("p_done", 0.1) if p_terminated is None else p_terminated
        self.max_episode_len = config.get("max_episode_len")
        self.check_action_bounds = config.get("check_action_bounds", False)
        self.steps = 0
        if self.static_samples:
            self._sample = self.observation_space.sample(), self.reward_space.sample()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        if seed is not None:
            # Copies may share the spaces of one config.
            self.observation_space, self.reward_space = map(copy.deepcopy, (self.observation_space, self.reward_space))
            self.observation_space.seed(seed)
            self.reward_space.seed(seed)
        self.steps = 0
        return self._draw()[0], {}

    def step(self, action: Any):
        if self.check_action_bounds and not self.action_space.contains(action):
            raise ValueError(
                f"The action {action!r} is not in the action space {self.action_space}. Choose an action from it, or "
                "set env_config={'check_action_bounds': False}."
            )
        self.steps += 1
        truncated = bool(self.max_episode_len) and self.steps >= self.max_episode_len
        terminated = not truncated and bool(self.np_random.random() < self.p_terminated)
        obs, reward = self._draw()
        return obs, np.asarray(reward).item(), terminated, truncated, {}

    def _draw(self) -> tuple[Any, Any]:
        if self.static_samples:
            return copy.deepcopy(self._sample)
        return self.observation_space.sample(), self.reward_space.sample()


class RandomLargeObsSpaceEnv(RandomEnv):
    """`RandomEnv` with `Box` observations ``[5000]``, all values in [-1, 1]."""

    def __init__(self, config: Mapping[str, Any] | None = None):
        super().__init__({**(config or {}), "observation_space": Box(-1.0, 1.0, (5000,))})


class RandomLargeObsSpaceEnvContActions(RandomEnv):
    """`RandomEnv` with `Box` observations ``[5000]`` and `Box` actions ``[5]``, all values in [-1, 1]."""

    def __init__(self, config: Mapping[str, Any] | None = None):
        spaces = {"observation_space": Box(-1.0, 1.0, (5000,)), "action_space": Box(-1.0, 1.0, (5,))}
        super().__init__({**(config or {}), **spaces})
