"""Adapter for XLand-MiniGrid, with ids such as "xminigrid/MiniGrid-Empty-5x5"."""

# pyright: reportMissingImports=false
# The suite need not be installed where this is checked.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import xminigrid
from gymnasium.spaces import Box, Discrete
from xminigrid.core.constants import NUM_COLORS, NUM_TILES

from jaxrl_stack.env.env_settings import field_names
from jaxrl_stack.env.suites.suite_env import StepOutcome, SuiteEnv, as_image


class XMiniGridEnv(SuiteEnv):
    """Registered xminigrid environment. Settings in `env_config` are fields of xminigrid's ``EnvParams``: `max_steps`,
    `view_size`, and `ruleset` for XLand.

    Observations are tiles and colours in the agent's field of view, uint8 ``[view_size, view_size, 2]``. Reaching
    the goal terminates an episode; `max_steps` truncate it.
    """

    prefix = "xminigrid"

    @classmethod
    def ids(cls) -> Sequence[str]:
        return list(xminigrid.registered_environments())

    def setup(self, env_id: str, config: dict[str, Any]) -> None:
        env, numbers = xminigrid.make(env_id)
        self.refuse_unknown(config, field_names(numbers))
        # Sizes among them are no arrays, so that nothing here is a parameter of the compiled program.
        self.env, self.env_params = env, numbers.replace(**config)
        shape: Any = env.observation_shape(self.env_params)
        highest = np.broadcast_to(np.array([NUM_TILES - 1, NUM_COLORS - 1], np.uint8), shape)
        self.observation_space = Box(np.zeros(shape, np.uint8), highest, shape, np.uint8)
        self.action_space = Discrete(env.num_actions(self.env_params))

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        step = self.env.reset(self.env_params, jax.random.key_data(key))
        return step.observation, step

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> StepOutcome:
        after = self.env.step(self.env_params, state, action)
        terminated = after.last() & (after.discount == 0)
        return after.observation, after, after.reward, terminated, after.last() & ~terminated, {}

    def render(self, state: Any) -> np.ndarray:
        return as_image(self.env.render(self.env_params, jax.device_get(state)))


__all__ = ["XMiniGridEnv"]
