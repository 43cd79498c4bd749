"""Adapter for Navix (MiniGrid's tasks in JAX), with Navix's ids, such as "navix/Navix-Empty-5x5-v0"."""

# pyright: reportMissingImports=false
# The suite need not be installed where this is checked.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import navix
import numpy as np
from gymnasium.spaces import Box, Discrete, Space

from jaxrl_stack.env.suites.suite_env import StepOutcome, SuiteEnv, arguments_of, as_image


class NavixEnv(SuiteEnv):
    """Registered Navix environment. Settings in `env_config` are arguments of ``navix.Environment.create``.

    `observation_fn` may be the name of a function of ``navix.observations``, such as "rgb". `max_steps` (100)
    truncate an episode.
    """

    prefix = "navix"
    reset_is_cheap = True

    @classmethod
    def ids(cls) -> Sequence[str]:
        return list(navix.registry())

    def setup(self, env_id: str, config: dict[str, Any]) -> None:
        self.refuse_unknown(config, arguments_of(navix.Environment.create))
        if isinstance(config.get("observation_fn"), str):
            config["observation_fn"] = getattr(navix.observations, config["observation_fn"])
        self.env = navix.make(env_id, **config)
        self.observation_space, self.action_space = _space(self.env.observation_space), _space(self.env.action_space)

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        step = self.env.reset(jax.random.key_data(key))
        return step.observation, step

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> StepOutcome:
        # `step` would reset, one step late, in place of a step.
        after = self.env._step(state, action)
        return after.observation, after, after.reward, after.is_termination(), after.is_truncation(), {}

    def render(self, state: Any) -> np.ndarray:
        # It updates arrays as JAX does: a state that was fetched has NumPy's.
        return as_image(navix.observations.rgb(jax.tree.map(jnp.asarray, state.state)))


def _space(space: Any) -> Space:
    low, high = np.asarray(space.minimum), np.asarray(space.maximum)
    if not space.shape and np.dtype(space.dtype).kind in "iu":
        return Discrete(int(high) + 1)
    dtype = np.dtype(space.dtype)
    low, high = (np.broadcast_to(bound, space.shape).astype(dtype) for bound in (low, high))
    return Box(low, high, space.shape, dtype.type)


__all__ = ["NavixEnv"]
