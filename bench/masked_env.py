"""Environment with and without an action mask, to measure the cost of masks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.env.jax_env import AutoResetJaxEnv, GymnaxEnv


class MaskedEnv(AutoResetJaxEnv):
    """gymnax environment with discrete actions whose observations contain a mask that allows all actions.

    Args:
        config: ``{"env": id without "gymnax/", "has_mask": whether observations are
            {"action_mask": ..., "observations": ...} rather than the environment's}``.
    """

    def __init__(self, config: Mapping[str, Any]):
        self.env = GymnaxEnv(config["env"])
        self.has_mask = config["has_mask"]
        self.observation_space, self.action_space = self.env.observation_space, self.env.action_space
        self.reset_is_cheap = self.env.reset_is_cheap
        assert isinstance(self.action_space, gym.spaces.Discrete)
        self.num_actions = int(self.action_space.n)
        if self.has_mask:
            mask = gym.spaces.Box(0.0, 1.0, (self.num_actions,), np.float32)
            self.observation_space = gym.spaces.Dict(action_mask=mask, observations=self.env.observation_space)

    @property
    def params(self) -> Any:
        return self.env.params

    def _seen(self, obs: Any) -> Any:
        if not self.has_mask:
            return obs
        # A constant would let the compiler drop what is measured.
        is_valid = jnp.max(obs) < jnp.arange(1, self.num_actions + 1) * 1e6
        return {"action_mask": is_valid.astype(jnp.float32), "observations": obs}

    def reset_env(self, key: Any, params: Any) -> tuple[Any, Any]:
        obs, state = self.env.reset_env(key, params)
        return self._seen(obs), state

    def step_env(self, key: Any, state: Any, action: Any, params: Any) -> tuple[Any, Any, Any, Any, Any, Any]:
        outcome = self.env.step_env(key, state, action, params)
        return (self._seen(outcome[0]), *outcome[1:])
