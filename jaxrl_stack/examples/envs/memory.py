"""Environments that need memory, with known optimal returns of policies without memory.

`RepeatFirst` and `TMaze` have exact answers, for the mean return of a policy that sees nothing but the present
observation (also one that draws its actions), and of one that remembers. `StatelessCartPole` and `StatelessPendulum`
hide the velocities of gymnax's environments; RLlib's of these names for gymnasium are in
``jaxrl_stack/examples/envs/classes/``.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Box, Discrete

from jaxrl_stack.env.jax_env import AutoResetJaxEnv, GymnaxEnv
from jaxrl_stack.examples.envs.settings import ConfiguredEnv


class MemoryProbe(ConfiguredEnv):
    """Base class of environments whose first observation contains information needed later; the maximum mean return is
    1.
    """

    @property
    @abc.abstractmethod
    def memoryless_return(self) -> float:
        """Maximum mean return of policies without memory, including stochastic policies."""

    @abc.abstractmethod
    def observations(self) -> np.ndarray:
        """Returns all K possible observations, float32 ``[K, D]`` with D features. The observations with the
        information that the agent must remember come first.
        """


class RepeatFirst(MemoryProbe):
    """Environment in which the agent must repeat the symbol of the first observation at the end; observations are
    one-hot, ``[num_symbols + 1]``.

    The first observation shows one of the symbols, drawn evenly; all later ones are the same, the last feature. An
    action names a symbol. With step `length`, which terminates, the right one pays 1; other steps pay nothing. With
    `every_step` every step pays 1 / length for it.

    Without memory the later answers are guesses: the mean return is at most ``1 / num_symbols``, with `every_step`
    ``(1 + (length - 1) / num_symbols) / length``.

    Settings:
        length (8): Steps of an episode, at least 2.
        num_symbols (2): At least 2.
        every_step (False): Whether every step asks.
    """

    defaults = {"length": 8, "num_symbols": 2, "every_step": False}

    def __init__(self, config: Mapping[str, Any] | None = None, **settings: Any):
        super().__init__(config, **settings)
        self._require("length", self.settings["length"] >= 2, "at least 2")
        self._require("num_symbols", self.settings["num_symbols"] >= 2, "at least 2")

    @property
    def observation_space(self):
        return Box(0.0, 1.0, (self.settings["num_symbols"] + 1,), np.float32)

    @property
    def action_space(self):
        return Discrete(self.settings["num_symbols"])

    def observations(self):
        return np.eye(self.settings["num_symbols"] + 1, dtype=np.float32)

    @property
    def memoryless_return(self):
        length, chance = self.settings["length"], 1.0 / self.settings["num_symbols"]
        return (1.0 + (length - 1) * chance) / length if self.settings["every_step"] else chance

    def reset_env(self, key, params):
        symbol = jax.random.randint(key, (), 0, self.settings["num_symbols"])
        return self._one_hot(symbol), (symbol, jnp.int32(0))

    def step_env(self, key, state, action, params):
        symbol, time = state[0], state[1] + 1
        length = self.settings["length"]
        ended = time >= length
        pays = 1.0 / length if self.settings["every_step"] else jnp.where(ended, 1.0, 0.0)
        reward = jnp.where(action == symbol, pays, 0.0)
        return self._one_hot(self.settings["num_symbols"]), (symbol, time), reward, ended, False, {}

    def _one_hot(self, index: Any) -> jax.Array:
        return jax.nn.one_hot(index, self.settings["num_symbols"] + 1)


class TMaze(MemoryProbe):
    """Corridor with a junction at the end; the first observation shows in which direction to turn there.

    Observation: ``[cue, whether this is the junction]``; the cue is -1 (left) or 1 (right), half each, and 0 in all but
    the first observation. Actions: 0 left, 1 right, 2 forward, which takes `length` steps to the junction; what leads
    into a wall does nothing. A turn at the junction terminates, with 1 if it was the right one, else -1; an episode of
    `max_steps` terminates with -1.

    Without memory the mean return is at most 0: whatever turns right with probability p at the junction returns
    2p - 1 on one half of the cues and 1 - 2p on the other one, and episodes without a turn return -1.

    The task is that of Bakker, "Reinforcement Learning with Long Short-Term Memory" (2001).

    Settings:
        length (5): At least 1.
        max_steps (None): More than `length`; None: four times as many, and one.
    """

    defaults = {"length": 5, "max_steps": None}

    def __init__(self, config: Mapping[str, Any] | None = None, **settings: Any):
        super().__init__(config, **settings)
        length, max_steps = self.settings["length"], self.settings["max_steps"]
        self._require("length", length >= 1, "at least 1")
        self._max_steps = 4 * length + 1 if max_steps is None else max_steps
        self._require("max_steps", self._max_steps > length, f"more than length={length}")

    @property
    def observation_space(self):
        return Box(-1.0, 1.0, (2,), np.float32)

    @property
    def action_space(self):
        return Discrete(3)

    def observations(self):
        return np.array([[-1, 0], [1, 0], [0, 0], [0, 1]], np.float32)

    @property
    def memoryless_return(self):
        return 0.0

    def reset_env(self, key, params):
        cue = jax.random.rademacher(key, (), jnp.float32)
        return jnp.stack([cue, 0.0]), (cue, jnp.int32(0), jnp.int32(0))

    def step_env(self, key, state, action, params):
        cue, position, time = state
        length = self.settings["length"]
        turned = (position == length) & (action != 2)
        position = jnp.minimum(position + (action == 2), length)
        out_of_time = time + 1 >= self._max_steps
        is_right = turned & (jnp.where(action == 1, 1.0, -1.0) == cue)
        reward = jnp.where(is_right, 1.0, jnp.where(turned | out_of_time, -1.0, 0.0))
        obs = jnp.stack([0.0, jnp.where(position == length, 1.0, 0.0)])
        return obs, (cue, position, time + 1), reward, turned | out_of_time, False, {}


class _PartlyShown(AutoResetJaxEnv):
    """gymnax environment whose observations lack some features, such as velocities."""

    env_id: ClassVar[str]
    shown: ClassVar[list[int]]

    def __init__(self, config: Mapping[str, Any] | None = None):
        super().__init__()
        self._full = GymnaxEnv(self.env_id, config)
        space = self._full.observation_space
        assert isinstance(space, Box)
        self.observation_space = Box(space.low[self.shown], space.high[self.shown], dtype=np.float32)
        self.action_space = self._full.action_space

    @property
    def params(self):
        return self._full.params

    @property
    def render_fps(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._full.render_fps

    def render(self, state):
        return self._full.render(state)

    def reset_env(self, key, params):
        obs, state = self._full.env.reset_env(key, params)
        return obs[jnp.array(self.shown)], state

    def step_env(self, key, state, action, params):
        obs, *rest = self._full.step_env(key, state, action, params)
        return obs[jnp.array(self.shown)], *rest


class StatelessCartPole(_PartlyShown):
    """CartPole with observations ``[position, angle]``, without both velocities; episodes have at most 500 steps.

    The best of 2048 policies that push right with probability ``sigmoid(a * position + b * angle)`` lasts 56 steps in
    the mean. With the velocities, which two observations in a row tell, the sign of a weighted sum lasts 500.

    Settings: gymnax's of CartPole-v1, e.g. `max_steps_in_episode` (500).
    """

    env_id = "CartPole-v1"
    shown = [0, 2]


class StatelessPendulum(_PartlyShown):
    """Pendulum with observations ``[cos(angle), sin(angle)]``, without the velocity; episodes have 200 steps.

    A torque that depends on the angle alone damps nothing: the pendulum comes to rest nowhere. The best of 4096 such
    policies returns -1050 in the mean; with the velocity out of the last two observations, swinging up by its energy
    and holding it returns -130.

    Settings: gymnax's of Pendulum-v1, e.g. `g` (10.0), gravity in m/s².
    """

    env_id = "Pendulum-v1"
    shown = [0, 1]


MEMORY_PROBES: tuple[type[MemoryProbe], ...] = (RepeatFirst, TMaze)
