"""Adapter for Octax's CHIP-8 games; ids are the names of Octax's environments, such as "octax/brix"."""

# pyright: reportMissingImports=false
# The suite need not be installed where this is checked.

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import octax.environments
from gymnasium.spaces import Box, Discrete

from jaxrl_stack.env.suites.suite_env import StepOutcome, SuiteEnv, as_image

_SETTINGS = ("max_num_steps_per_episodes", "instruction_frequency", "fps", "frame_skip")


class OctaxEnv(SuiteEnv):
    """Octax game. Settings in `env_config` are the arguments `max_num_steps_per_episodes`, `instruction_frequency`,
    `fps` and `frame_skip` of Octax's ``OctaxEnv``; the game determines the other arguments.

    Observations are the last frames, bool ``[64, 32, frame_skip]`` (Octax has the frames first). The end of the game
    terminates an episode; `max_num_steps_per_episodes` truncate it.
    """

    prefix = "octax"
    reset_is_cheap = True

    @classmethod
    def ids(cls) -> Sequence[str]:
        return [module.name for module in pkgutil.iter_modules(octax.environments.__path__)]

    def setup(self, env_id: str, config: dict[str, Any]) -> None:
        self.refuse_unknown(config, _SETTINGS)
        self.env, _ = octax.environments.create_environment(env_id, render_mode="rgb_array", **config)
        _, frames, _ = jax.eval_shape(self.env.reset, jax.eval_shape(lambda: jax.random.PRNGKey(0)))
        self.observation_space = Box(0, 1, (*frames.shape[1:], frames.shape[0]), np.bool_)  # pyright: ignore[reportArgumentType]
        self.action_space = Discrete(int(self.env.num_actions))

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        state, frames, _ = self.env.reset(jax.random.key_data(key))
        return jnp.moveaxis(frames, 0, -1), state

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> StepOutcome:
        state, frames, reward, terminated, truncated, info = self.env.step(state, action)
        return jnp.moveaxis(frames, 0, -1), state, reward, terminated, truncated, info

    def render(self, state: Any) -> np.ndarray:
        return as_image(self.env.render(state))


__all__ = ["OctaxEnv"]
