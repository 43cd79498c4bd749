"""Mistakes of JAX environments that nothing else shows: `check_jax_env` finds them, and building what it can."""

from __future__ import annotations

import random

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.env.jax_env import AutoResetJaxEnv, check_jax_env


class Plain(AutoResetJaxEnv):
    """Counts from 0 to 20; nothing is wrong with it."""

    observation_space = gym.spaces.Box(0.0, 20.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset_env(self, key, params):
        return jnp.zeros(1), jnp.int32(0)

    def step_env(self, key, state, action, params):
        count = state + 1
        return self.observe(count), count, self.reward(count), count == 20, False, {}

    def observe(self, count):
        return jnp.full(1, count, jnp.float32)

    def reward(self, count):
        return 1.0


class NanReward(Plain):
    def reward(self, count):
        return jnp.where(count == 7, jnp.nan, 1.0)


class Infinite(Plain):
    observation_space = gym.spaces.Box(0.0, np.inf, (1,), np.float32)

    def observe(self, count):
        return 1.0 / jnp.full(1, 12 - count, jnp.float32)


class Outside(Plain):
    observation_space = gym.spaces.Dict({"count": gym.spaces.Box(0.0, 10.0, (2,), np.float32)})

    def reset_env(self, key, params):
        return {"count": jnp.zeros(2)}, jnp.int32(0)

    def observe(self, count):
        return {"count": jnp.array([0.0, 1.0]) * count}


class DrawsFromNumpy(Plain):
    def reward(self, count):
        return count * np.random.default_rng().uniform()


class DrawsFromPython(Plain):
    """Inside of a function that is jitted itself."""

    def step_env(self, key, state, action, params):
        obs, state, _, *rest = super().step_env(key, state, action, params)
        return obs, state, jax.jit(drawn)(state), *rest


def drawn(count):
    return count * random.random()


class CountsOnSelf(Plain):
    def __init__(self, config=None):
        self.num_steps = 0

    def step_env(self, key, state, action, params):
        self.num_steps += 1
        return super().step_env(key, state, action, params)


class AppendsToSelf(Plain):
    def __init__(self, config=None):
        self.rewards = []

    def reward(self, count):
        self.rewards.append(1.0)
        return 1.0


class KeepsATracer(Plain):
    def observe(self, count):
        self.last = count
        return super().observe(count)


class Remembers(Plain):
    """Makes a table when it is needed first: nothing that changes."""

    table = None

    def reward(self, count):
        if self.table is None:
            self.table = np.arange(21.0, dtype=np.float32)
        return jnp.asarray(self.table)[count]


@pytest.mark.parametrize(
    ("env", "error", "said"),
    [
        (NanReward, ValueError, "NanReward: step's reward is nan, in step 6 of 100 with random actions"),
        (Infinite, ValueError, r"Infinite: step's final_obs has the value inf at \[0\], in step 11 .* not finite"),
        (Outside, ValueError, r"step's final_obs has the value 11.0 at \[1\], in step 10 .*outside of the observation"),
        (DrawsFromNumpy, TypeError, r"DrawsFromNumpy.step differs .* a constant was 0\..* Draw with jax.random"),
        (DrawsFromPython, TypeError, r"DrawsFromPython.step differs .* a constant was 0\..* Draw with jax.random"),
        (CountsOnSelf, TypeError, r"CountsOnSelf.step changes the attribute\(s\) \['num_steps'\]"),
        (AppendsToSelf, TypeError, r"AppendsToSelf.step changes the attribute\(s\) \['rewards'\]"),
        (KeepsATracer, TypeError, r"KeepsATracer.step changes the attribute\(s\) \['last'\]"),
    ],
)
def test_what_is_wrong_is_named(env, error, said):
    with pytest.raises(error, match=said):
        check_jax_env(env())


@pytest.mark.parametrize("env", [Plain, Remembers])
def test_what_is_right_passes(env):
    check_jax_env(env())


@pytest.mark.parametrize("env", [DrawsFromNumpy, CountsOnSelf])
def test_building_refuses_what_a_trace_shows_unless_checks_are_off(env):
    config = (
        PPOConfig()
        .environment(env)
        .env_runners(num_envs_per_env_runner=1)
        .training(train_batch_size_per_learner=8, minibatch_size=8, num_epochs=1)
        .rl_module(model_config={"fcnet_hiddens": [4]})
    )
    with pytest.raises(TypeError, match=rf"{env.__name__}\.step"):
        config.build_algo()
    config.environment(disable_env_checking=True).build_algo().stop()


def test_the_cheap_part_runs_and_compiles_nothing():
    check_jax_env(NanReward(), num_steps=0)
