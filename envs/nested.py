"""Environments with nested observation and action spaces, for modules, distributions and connectors."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from jaxrl_stack.examples.envs.settings import ConfiguredEnv
from jaxrl_stack.utils import spaces


class NestedState(NamedTuple):
    """State of the nested environments.

    Attributes:
        t: int32, steps taken.
        obs: The current observation.
    """

    t: jax.Array
    obs: Any


class NestedEnv(ConfiguredEnv):
    """Base of the nested environments: random observations of the space, a reward that the subclass defines, and
    truncation at `length` steps.
    """

    defaults = {"length": 10}

    def __init__(self, config=None, **settings):
        super().__init__(config, **settings)
        self._require("length", self.settings["length"] >= 1, "at least 1")

    def reward(self, obs: Any, action: Any) -> jax.Array:
        """Returns the reward of `action` at the observation `obs`, float32 scalar."""
        raise NotImplementedError

    def reset_env(self, key, params):
        state = NestedState(jnp.int32(0), spaces.sample(key, self.observation_space))
        return state.obs, state

    def step_env(self, key, state, action, params):
        reward = self.reward(state.obs, action)
        state = NestedState(state.t + 1, spaces.sample(key, self.observation_space))
        return state.obs, state, reward, False, state.t >= self.settings["length"], {}


class NestedObservationEnv(NestedEnv):
    """Environment whose observation has a part of every kind of space; the reward is 1 for the action that matches
    the observed `mode`, else 0.

    The best action is ``mode + 1`` (`mode` lies in {-1, 0, 1}, the action in {0, 1, 2}); the best return is
    `length`, that of random actions `length` / 3.

    Settings: `length` (10), steps until truncation.
    """

    @property
    def observation_space(self):
        return Dict(
            {
                "image": Box(0, 255, (3, 3, 1), np.uint8),
                "mode": Discrete(3, start=-1),
                "body": Dict(
                    {
                        "position": Box(-1.0, 1.0, (2,), np.float32),
                        "gears": MultiDiscrete([2, 3]),
                        "lights": MultiBinary(4),
                    }
                ),
                "pair": Tuple((Box(-np.inf, np.inf, (), np.float32), Discrete(2))),
            }
        )

    @property
    def action_space(self):
        return Discrete(3)

    def reward(self, obs, action):
        return jnp.where(action == obs["mode"] + 1, 1.0, 0.0)


class NestedActionEnv(NestedEnv):
    """Environment whose action has a part of every kind of space; the reward of a step is at most 1, a third for each
    of three parts.

    The observation is ``[x]``, x uniform in [-1, 1]. Best are: ``move`` 0 for x < 0 and 2 for x >= 0 (else
    that third is lost), ``arms[0]`` = (x, -x) (the third shrinks by the mean squared distance), ``arms[1]`` =
    [1, 2] (a sixth for each entry). The best return is `length`.

    Settings: `length` (10), steps until truncation.
    """

    @property
    def observation_space(self):
        return Box(-1.0, 1.0, (1,), np.float32)

    @property
    def action_space(self):
        return Dict({"move": Discrete(3), "arms": Tuple((Box(-1.0, 1.0, (2,), np.float32), MultiDiscrete([2, 3])))})

    def reward(self, obs, action):
        reach, grip = action["arms"]
        moved = action["move"] == jnp.where(obs[0] < 0, 0, 2)
        distance = jnp.mean(jnp.square(reach - obs[0] * jnp.array([1.0, -1.0], jnp.float32)))
        gripped = jnp.mean((grip == jnp.array([1, 2], jnp.int32)).astype(jnp.float32))
        return (moved.astype(jnp.float32) + (1.0 - distance) + gripped) / 3.0
