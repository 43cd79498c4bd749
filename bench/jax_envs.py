"""The environments of `bench.baselines.environments` as this project's `JaxEnv`, for benchmarks without gymnax."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import numpy as np
from gymnasium.spaces import Box, Discrete

from bench.baselines.environments import ENVIRONMENTS, PREFIX, Environment
from jaxrl_stack.env.jax_env import AutoResetJaxEnv
from jaxrl_stack.env.multi_agent_jax_env import MultiAgentJaxEnv
from jaxrl_stack.examples.envs.multi_agent import MultiAgentCartPole


class _PlainEnv(AutoResetJaxEnv):
    """Base of the environments of this module.

    Args:
        config: ``max_steps``, length of an episode that the time limit ends.
    """

    plain: ClassVar[type[Environment]]

    def __init__(self, config: Mapping[str, Any] | None = None):
        super().__init__()
        self._env = self.plain()
        self._params = self._env.default_params._replace(**dict(config or {}))
        low, high = self._bounds
        self.observation_space = Box(low, high, self._env.obs_shape, np.float32)
        self.action_space = Discrete(self._env.num_actions)

    _bounds: ClassVar[tuple[float, float]] = (-np.inf, np.inf)

    @property
    def params(self) -> Any:
        return self._params

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        return self._env.reset_env(key, params)

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        obs, state, reward, terminated, info = self._env.step_env(key, state, action, params)
        return obs, state, reward, terminated, self._env.is_truncated(state, params), info


class CartPole(_PlainEnv):
    """Gymnasium's CartPole-v1."""

    plain = ENVIRONMENTS["CartPole"]


class Catch(_PlainEnv):
    """Game of images of 10 x 10 x 4, as large as MinAtar's."""

    plain = ENVIRONMENTS["Catch"]
    _bounds = (0.0, 1.0)


class Pendulum(_PlainEnv):
    """Gymnasium's Pendulum-v1."""

    plain = ENVIRONMENTS["Pendulum"]

    def __init__(self, config: Mapping[str, Any] | None = None):
        super().__init__(config)
        self.action_space = Box(-2.0, 2.0, (1,), np.float32)


class CartPoles(MultiAgentCartPole):
    """CartPole for several agents that act in each step: the first pole that falls ends the episode of all.

    All rows of a batch are valid, so agent steps are env steps times the number of agents.
    """

    acts: Any = MultiAgentJaxEnv.acts

    def step_env(self, key: jax.Array, state: Any, action: Mapping[Any, Any], params: Any) -> Any:
        obs, after, rewards, _, _, infos = super().step_env(key, state, action, params)
        falls = after.fallen.any()
        is_late = after.t >= after.max_steps
        return obs, after, rewards, {"__all__": falls}, {"__all__": is_late & ~falls}, infos


CLASSES: dict[str, type[_PlainEnv]] = {"CartPole": CartPole, "Pendulum": Pendulum, "Catch": Catch}
"""Name without its prefix -> class."""


def jax_env_class(name: str) -> type[_PlainEnv]:
    """Class of "plain/CartPole", "plain/Pendulum" or "plain/Catch"."""
    return CLASSES[name.removeprefix(PREFIX)]
