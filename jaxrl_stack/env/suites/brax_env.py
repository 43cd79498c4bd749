"""Adapter for brax (rigid-body physics), with brax's ids, such as "brax/ant"."""

# pyright: reportMissingImports=false
# The suite need not be installed where this is checked.

from __future__ import annotations

import abc
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Box, Dict, Space

from jaxrl_stack.env import drawings
from jaxrl_stack.env.quiet import WARP, without_lines
from jaxrl_stack.env.suites.suite_env import StepOutcome, SuiteEnv, arguments_of

with without_lines(*WARP):
    import brax.envs


class PhysicsEnv(SuiteEnv):
    """Adapter for the environment interface that brax and MuJoCo Playground share.

    The environment's ``done`` terminates an episode; `episode_length` steps truncate it, as in brax's training. Every
    episode starts from a new initial state (brax's training repeats one initial state per environment).

    Settings: `episode_length`, number of physics steps after which an episode is truncated; `action_repeat`, number of
    physics steps per action; and the settings of the environment.
    """

    env: Any
    episode_length: int
    action_repeat: int

    def set_spaces(self) -> None:
        """Sets the adapter's spaces: unbounded observations (or a Dict of them), and actions in [-1, 1]."""
        self.observation_space = _unbounded(self.env.observation_size)
        self.action_space = Box(-1.0, 1.0, (int(self.env.action_size),), np.float32)

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        state = self.env.reset(jax.random.key_data(key))
        return state.obs, (state, jnp.int32(0))

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> StepOutcome:
        physics, time = state

        def repeated(physics: Any, _: None) -> tuple[Any, jax.Array]:
            physics = self.env.step(physics, action)
            return physics, physics.reward

        physics, rewards = jax.lax.scan(repeated, physics, length=self.action_repeat)
        time += self.action_repeat
        truncated = (time >= self.episode_length) & (physics.done == 0)
        return physics.obs, (physics, time), rewards.sum(), physics.done, truncated, physics.metrics

    def render(self, state: Any) -> np.ndarray | None:
        """Draws the environment's MuJoCo model from the side; returns None if the model consists only of meshes."""
        return drawings.bodies(*self.model_and_positions(state[0]))

    @abc.abstractmethod
    def model_and_positions(self, physics: Any) -> tuple[Any, Any]:
        """Returns MuJoCo's model of the environment, and the generalized positions ``[nq]`` of a state."""


class BraxEnv(PhysicsEnv):
    """Environment of ``brax.envs``. Settings are `episode_length`, `action_repeat`, and the arguments of the
    environment's class and of ``PipelineEnv`` (such as `backend`, but not `sys`).
    """

    prefix = "brax"

    @classmethod
    def ids(cls) -> Sequence[str]:
        return list(brax.envs._envs)

    def setup(self, env_id: str, config: dict[str, Any]) -> None:
        # The classes pass what they do not know on to that of the pipeline.
        pipeline = arguments_of(brax.envs.PipelineEnv.__init__)
        known = [*arguments_of(brax.envs._envs[env_id].__init__), *pipeline, "episode_length", "action_repeat"]
        self.refuse_unknown(config, [name for name in known if name != "sys"])
        self.episode_length = config.pop("episode_length", 1000)
        self.action_repeat = config.pop("action_repeat", 1)
        with warnings.catch_warnings():
            # Who names one of its environments has chosen it; docs/environments.md names Playground, too.
            warnings.filterwarnings("ignore", message="Brax System.* not actively being maintained")
            self.env = brax.envs.get_environment(env_id, **config)
        self.set_spaces()

    def model_and_positions(self, physics: Any) -> tuple[Any, Any]:
        return self.env.sys.mj_model, physics.pipeline_state.q


def _unbounded(size: Any) -> Space:
    if isinstance(size, Mapping):
        return Dict({name: _unbounded(size[name]) for name in sorted(size)})
    return Box(-np.inf, np.inf, (size,) if isinstance(size, int) else tuple(size), np.float32)


__all__ = ["BraxEnv", "PhysicsEnv"]
