"""Actor and critic alone, in rollouts of CartPole's true dynamics in the place of a world model's."""

from __future__ import annotations

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from bench.dreamer_true_dynamics import DYNAMICS, Settings, State, Training


def test_the_true_dynamics_are_gymnasiums():
    env = gym.make("CartPole-v1").unwrapped
    obs, _ = env.reset(seed=0)
    state = State(jnp.asarray(obs)[None])
    step = jax.jit(lambda state, actions: DYNAMICS.imagine_step(state, actions, None))
    for action in (1, 0, 0, 1, 1, 1):
        obs = env.step(action)[0]
        state = step(state, jax.nn.one_hot(jnp.array([action]), 2))
        np.testing.assert_allclose(state.values[0], obs, rtol=1e-4, atol=1e-6)


def test_the_actor_learns_to_balance_when_the_dynamics_are_known():
    faster = Settings(actor_lr=3e-3, critic_lr=3e-3, num_rows=64, interval=150)
    training = Training(faster)
    start = training.init()
    before = jax.jit(training.lengths)(start.params, jax.random.key(1))
    _, after, _ = training.advance(start, jax.random.key(0))
    assert jnp.mean(before) < 100
    assert after >= 400
