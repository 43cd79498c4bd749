"""Environment that counts its steps, so that all its statistics and bootstrap values are known exactly."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Box, Discrete

from jaxrl_stack.examples.envs.settings import ConfiguredEnv


class CounterEnv(ConfiguredEnv):
    """Environment whose observation and reward are the number t of steps taken in the episode.

    A reset shows observation ``[0.]``. Step t = 1, 2, ... shows ``[t]`` and pays t; it terminates if t
    reaches `terminate_at`, and truncates if it reaches `truncate_at` (both at once are possible). An episode
    of length L has the return L (L + 1) / 2. The action (one of two) does nothing.

    Settings:
        terminate_at (10): Length of a terminated episode; None: never.
        truncate_at (None): Length of a truncated episode; None: never.
        random_start (False): An episode starts at a random t from {0, ..., shortest of the two lengths - 1}, which the
            observation shows, and has only the remaining steps and rewards.
    """

    defaults = {"terminate_at": 10, "truncate_at": None, "random_start": False}

    def __init__(self, config=None, **settings):
        super().__init__(config, **settings)
        for name in ("terminate_at", "truncate_at"):
            value = self.settings[name]
            self._require(name, value is None or value >= 1, "None or at least 1")
        limits = [v for v in (self.settings["terminate_at"], self.settings["truncate_at"]) if v is not None]
        self._require("random_start", bool(limits) or not self.settings["random_start"], "False without a length")
        self._shortest = min(limits, default=1)

    @property
    def observation_space(self):
        return Box(0.0, np.inf, (1,), np.float32)

    @property
    def action_space(self):
        return Discrete(2)

    def reset_env(self, key, params):
        t = jnp.int32(0)
        if self.settings["random_start"]:
            t = jax.random.randint(key, (), 0, self._shortest)
        return t[None], t

    def step_env(self, key, state, action, params):
        t = state + 1
        terminate_at, truncate_at = self.settings["terminate_at"], self.settings["truncate_at"]
        terminated = False if terminate_at is None else t >= terminate_at
        truncated = False if truncate_at is None else t >= truncate_at
        return t[None], t, t, terminated, truncated, {}
