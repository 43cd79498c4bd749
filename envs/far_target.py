"""Environment with a target far from the first actions: the learning rate must be high at first, and low at the end."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.env.jax_env import AutoResetJaxEnv


class FarTarget(AutoResetJaxEnv):
    """Environment with episodes of one step, whose reward is minus the distance of the action from a target.

    With Adam, the mean of the actions moves by about the learning rate per update. A high rate reaches the target early
    and then misses it by about its size; a low rate does not arrive.

    Args:
        config: ``{"target": 20.0}``.
    """

    observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def __init__(self, config: dict[str, Any]):
        super().__init__()
        self.target = float(config.get("target", 20.0))

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, jax.Array]:
        return jnp.ones(1), jnp.int32(0)

    def step_env(
        self, key: jax.Array, state: jax.Array, action: jax.Array, params: Any
    ) -> tuple[jax.Array, jax.Array, jax.Array, bool, bool, dict[str, Any]]:
        return jnp.ones(1), state, -jnp.abs(action[0] - self.target), True, False, {}
