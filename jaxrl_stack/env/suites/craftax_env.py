"""Adapter for the games Craftax and Craftax-Classic, with ids such as "craftax/Craftax-Symbolic-v1"."""

# pyright: reportMissingImports=false
# The suite need not be installed where this is checked.

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from craftax.craftax_env import make_craftax_env_from_name
from gymnasium.spaces import Box, Discrete

from jaxrl_stack.env.env_settings import field_names, replaced_fields
from jaxrl_stack.env.suites.suite_env import StepOutcome, SuiteEnv, as_image


class CraftaxEnv(SuiteEnv):
    """Craftax game. Settings in `env_config` are fields of Craftax's ``EnvParams``; map sizes are fields of Craftax's
    ``StaticEnvParams``.

    `max_timesteps` truncate an episode; every other end (the player's death; in Craftax the last boss's death, in
    Classic lava) terminates it. At the end of an episode, the step's info contains the achievements in percent.
    """

    prefix = "craftax"

    @classmethod
    def ids(cls) -> Sequence[str]:
        return [f"Craftax{game}-{kind}-v1" for game in ("", "-Classic") for kind in ("Symbolic", "Pixels")]

    def setup(self, env_id: str, config: dict[str, Any]) -> None:
        env: Any = make_craftax_env_from_name(env_id, auto_reset=False)
        params, sizes = env.default_params, env.default_static_params()
        self.refuse_unknown(config, [*field_names(params), *field_names(sizes)])
        fixed = {name: value for name, value in config.items() if name in field_names(sizes)}
        if fixed:
            env = type(env)(sizes.replace(**fixed))
        self._params = jax.tree.map(np.asarray, replaced_fields(self.name, params, config))
        self.env = env
        space = env.observation_space(params)
        self.observation_space = Box(float(space.low), float(space.high), tuple(space.shape), np.float32)
        self.action_space = Discrete(int(env.num_actions))

    @property
    def params(self) -> Any:
        return self._params

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        return self.env.reset_env(jax.random.key_data(key), params)

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> StepOutcome:
        obs, state, reward, _, info = self.env.step_env(jax.random.key_data(key), state, action, params)
        # The game ends a step early or late of it by no rule but this: had there been no limit, would it be over?
        unlimited = params.replace(max_timesteps=jnp.iinfo(jnp.int32).max)
        terminated = self.env.is_terminal(state, unlimited)
        return obs, state, reward, terminated, state.timestep >= params.max_timesteps, info

    def render(self, state: Any) -> np.ndarray:
        game = "craftax_classic" if "Classic" in self.env_id else "craftax"
        renderer = importlib.import_module(f"craftax.{game}.renderer")
        constants = importlib.import_module(f"craftax.{game}.constants")
        # It indexes arrays by traced numbers: a state that was fetched has NumPy's.
        state = jax.tree.map(jnp.asarray, state)
        return as_image(renderer.make_craftax_pixel_renderer(constants.BLOCK_PIXEL_SIZE_IMG)(state))


__all__ = ["CraftaxEnv"]
