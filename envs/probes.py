"""Probe environments: each isolates one link of the learning chain and has an exactly known answer.

If an algorithm fails one, the docstring names the fault. The values hold for an agent with discount ``gamma`` that
takes the actions of `optimal_actions`; if it returns None, every policy has the same value.
"""

from __future__ import annotations

import abc

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Box, Discrete

from jaxrl_stack.examples.envs.settings import ConfiguredEnv


class ProbeEnv(ConfiguredEnv):
    """Base of the probes: an environment with one float32 feature in [-1, 1], two actions, and a known solution."""

    @property
    def observation_space(self) -> Box:
        return Box(-1.0, 1.0, (1,), np.float32)

    @property
    def action_space(self) -> Discrete:
        return Discrete(2)

    @abc.abstractmethod
    def expected_values(self, gamma: float) -> tuple[np.ndarray, np.ndarray]:
        """Returns all observations and their exact values: float32 ``[K, 1]`` and float32 ``[K]``."""

    def optimal_actions(self) -> np.ndarray | None:
        """Returns the best action per observation of `expected_values`, int ``[K]``; None if all are equally good."""
        return None


class ConstantValueProbe(ProbeEnv):
    """Probe of a constant value: one step, observation 0, reward `reward`, terminated.

    V(0) = `reward` for any gamma. Fails if the value function is not fitted to its targets at all, or if
    something is bootstrapped after a terminal step.

    Settings: `reward` (1.0), the reward of the step.
    """

    defaults = {"reward": 1.0}

    def reset_env(self, key, params):
        return jnp.zeros((1,), jnp.float32), jnp.int32(0)

    def step_env(self, key, state, action, params):
        return jnp.zeros((1,), jnp.float32), state, self.settings["reward"], True, False, {}

    def expected_values(self, gamma):
        return np.zeros((1, 1), np.float32), np.array([self.settings["reward"]], np.float32)


class DiscountingProbe(ProbeEnv):
    """Probe of discounting: two steps; observation 0, then 1; reward 0, then 1; the second step terminates.

    V(1) = 1 and V(0) = gamma. Fails if targets are not discounted, or take the value of the wrong step.
    """

    def reset_env(self, key, params):
        return jnp.zeros((1,), jnp.float32), jnp.int32(0)

    def step_env(self, key, state, action, params):
        # `state` counts the steps before this one; the last observation is not seen.
        second = state == 1
        return jnp.ones((1,), jnp.float32), state + 1, jnp.where(second, 1.0, 0.0), second, False, {}

    def expected_values(self, gamma):
        return np.array([[0.0], [1.0]], np.float32), np.array([gamma, 1.0], np.float32)


class ActionRewardProbe(ProbeEnv):
    """Probe of the link from actions to rewards: one step, observation 0; action 1 pays +1, action 0 pays -1;
    terminated.

    The best policy always takes action 1; then V(0) = 1. In general V(0) = 2 pi(1) - 1. Fails if advantages
    reach the policy with the wrong sign, or belong to other actions.
    """

    def reset_env(self, key, params):
        return jnp.zeros((1,), jnp.float32), jnp.int32(0)

    def step_env(self, key, state, action, params):
        return jnp.zeros((1,), jnp.float32), state, jnp.where(action == 1, 1.0, -1.0), True, False, {}

    def expected_values(self, gamma):
        return np.zeros((1, 1), np.float32), np.ones((1,), np.float32)

    def optimal_actions(self):
        return np.array([1])


class ObservationProbe(ProbeEnv):
    """Probe of observations: one step; the observation is -1 or +1, half each, and is also the reward; terminated.

    V(-1) = -1 and V(+1) = +1. Fails if the value function does not see its input, or targets belong to other
    rows.
    """

    def reset_env(self, key, params):
        sign = jax.random.rademacher(key, (), jnp.float32)
        return sign[None], sign

    def step_env(self, key, state, action, params):
        return state[None], state, state, True, False, {}

    def expected_values(self, gamma):
        return np.array([[-1.0], [1.0]], np.float32), np.array([-1.0, 1.0], np.float32)


class TruncationBootstrapProbe(ProbeEnv):
    """Probe of the bootstrap value at truncations: observation 0 and reward 1 in each step; the episode never
    terminates, but is truncated.

    The length of an episode is drawn from {1, ..., `max_length`} at its reset. V(0) = 1 / (1 - gamma),
    exactly, if a truncated step bootstraps; taken for termination, V(0) stays below `max_length`.

    Settings: `max_length` (5), an int >= 1, the longest episode.
    """

    defaults = {"max_length": 5}

    def __init__(self, config=None, **settings):
        super().__init__(config, **settings)
        self._require("max_length", self.settings["max_length"] >= 1, "at least 1")

    def reset_env(self, key, params):
        remaining = jax.random.randint(key, (), 1, self.settings["max_length"] + 1)
        return jnp.zeros((1,), jnp.float32), remaining

    def step_env(self, key, state, action, params):
        remaining = state - 1
        return jnp.zeros((1,), jnp.float32), remaining, 1.0, False, remaining == 0, {}

    def expected_values(self, gamma):
        return np.zeros((1, 1), np.float32), np.array([1.0 / (1.0 - gamma)], np.float32)


class ContinuousActionProbe(ProbeEnv):
    """Probe of continuous actions with asymmetric bounds: one step; the observation is -1 or +1, half each; terminated.

    Actions are in [-1, 3]. The reward is minus the squared distance from 0 where the observation is -1, from 2 where it
    is +1. The best policy has V = 0. Fails if actions reach the environment unscaled, or the critic sees other
    actions than it.
    """

    @property
    def action_space(self) -> Box:
        return Box(-1.0, 3.0, (1,), np.float32)

    def reset_env(self, key, params):
        sign = jax.random.rademacher(key, (), jnp.float32)
        return sign[None], sign

    def step_env(self, key, state, action, params):
        return state[None], state, -jnp.square(action[0] - (1.0 + state)), True, False, {}

    def expected_values(self, gamma):
        return np.array([[-1.0], [1.0]], np.float32), np.zeros((2,), np.float32)

    def optimal_actions(self):
        return np.array([[0.0], [2.0]], np.float32)


PROBES: tuple[type[ProbeEnv], ...] = (
    ConstantValueProbe,
    DiscountingProbe,
    ActionRewardProbe,
    ObservationProbe,
    TruncationBootstrapProbe,
)
