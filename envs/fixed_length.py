"""Environment with episodes of two lengths: the mean return of the episodes that finish first is wrong."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Box, Discrete

from jaxrl_stack.examples.envs.settings import ConfiguredEnv


class FixedLengthState(NamedTuple):
    """State of `FixedLengthEnv`.

    Attributes:
        t: int32, steps taken.
        long: bool, whether this is a long episode.
    """

    t: jax.Array
    long: jax.Array


class FixedLengthEnv(ConfiguredEnv):
    """Environment with short and long episodes, half of each: short ones have the return 0, long ones the return 1,
    which their last step pays.

    The reset's key selects the length. The mean return of a fair sample of episodes is 0.5, its standard deviation
    over N episodes 0.5 / sqrt(N); a sample of "the first N that end" is near 0 instead. Every episode
    terminates. The observation is ``[t / long_length, long]``; the action (one of two) does nothing.

    Settings: `short_length` (1) and `long_length` (100), in steps, 1 <= short < long.
    """

    defaults = {"short_length": 1, "long_length": 100}

    def __init__(self, config=None, **settings):
        super().__init__(config, **settings)
        short, long = self.settings["short_length"], self.settings["long_length"]
        self._require("short_length", 1 <= short < long, f"at least 1 and below long_length={long}")

    @property
    def observation_space(self):
        return Box(0.0, 1.0, (2,), np.float32)

    @property
    def action_space(self):
        return Discrete(2)

    def reset_env(self, key, params):
        state = FixedLengthState(jnp.int32(0), jax.random.bernoulli(key))
        return self._observe(state), state

    def step_env(self, key, state, action, params):
        state = state._replace(t=state.t + 1)
        length = jnp.where(state.long, self.settings["long_length"], self.settings["short_length"])
        terminated = state.t >= length
        reward = jnp.where(terminated & state.long, 1.0, 0.0)
        return self._observe(state), state, reward, terminated, False, {}

    def _observe(self, state):
        fraction = state.t.astype(jnp.float32) / self.settings["long_length"]
        return jnp.stack([fraction, state.long.astype(jnp.float32)])
