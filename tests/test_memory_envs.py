"""Environments that need memory: what a policy without it can reach is what they say, and memory reaches the best."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.env.jax_env import check_jax_env
from jaxrl_stack.examples.envs.classes import stateless_cartpole, stateless_pendulum
from jaxrl_stack.examples.envs.memory import RepeatFirst, StatelessCartPole, StatelessPendulum, TMaze


def mean_returns(env, policy, parameters, *, num_episodes, num_steps):
    """Of ``policy(parameters, obs, first obs, last obs)``: returns of the same episodes for all parameters, and the
    first observations ``[N, D]``."""

    def episode(parameters, key):
        first, state = env.reset_env(key, env.params)

        def body(carry, _):
            obs, last, state, alive, total = carry
            action = policy(parameters, obs, first, last)
            after, state, reward, terminated, truncated, _ = env.step_env(key, state, action, env.params)
            total += jnp.where(alive, reward, 0.0)
            return (after, obs, state, alive & ~(terminated | truncated), total), None

        last, _ = jax.lax.scan(body, (first, first, state, True, 0.0), length=num_steps)
        return first, last[-1]

    keys = jax.random.split(jax.random.key(0), num_episodes)
    first, returns = jax.jit(jax.vmap(jax.vmap(episode, (None, 0)), (0, None)))(parameters, keys)
    return np.asarray(first)[0], np.asarray(returns)


def over_cues(first, returns):
    """Means in which each of the first observations counts the same: ``[...]`` of ``[..., N]``."""
    cues = np.unique(first, axis=0)
    return np.mean([returns[..., (first == cue).all(-1)].mean(-1) for cue in cues], axis=0), len(cues)


@pytest.mark.parametrize(
    ("env", "num_cues", "remembered", "told"),
    [
        (RepeatFirst(length=3), 2, 0.5, lambda cue, obs: jnp.argmax(cue)),
        (RepeatFirst(length=4, num_symbols=3, every_step=True), 3, 0.5, lambda cue, obs: jnp.argmax(cue)),
        (TMaze(length=2), 2, 0.0, lambda cue, obs: jnp.where(obs[1] == 1, jnp.int32(cue[0] > 0), 2)),
    ],
)
def test_no_policy_without_memory_beats_the_bound_and_one_with_memory_is_perfect(env, num_cues, remembered, told):
    check_jax_env(env)
    assert env.memoryless_return == pytest.approx(remembered)
    observations = jnp.asarray(env.observations())
    tables = list(itertools.product(range(env.action_space.n), repeat=len(observations)))

    def looked_up(table, obs, first, last):
        return table[jnp.argmax((observations == obs).all(-1))]

    sizes = {"num_episodes": 24, "num_steps": 12}
    means, found = over_cues(*mean_returns(env, looked_up, jnp.array(tables), **sizes))
    assert found == num_cues
    assert max(means) == pytest.approx(env.memoryless_return)
    _, returns = mean_returns(env, lambda _, obs, first, last: told(first, obs), jnp.zeros(1), **sizes)
    np.testing.assert_allclose(returns, 1.0, rtol=1e-6)


def test_an_episode_in_the_maze_ends_with_minus_one():
    env = TMaze(length=2, max_steps=4)
    _, returns = mean_returns(env, lambda action, *_: action, jnp.arange(3), num_episodes=8, num_steps=4)
    np.testing.assert_array_equal(returns, -1.0)
    for wrong in ({"length": 0}, {"length": 3, "max_steps": 3}):
        with pytest.raises(ValueError, match="must be"):
            TMaze(wrong)
    for wrong in ({"length": 1}, {"num_symbols": 1}):
        with pytest.raises(ValueError, match="must be at least 2"):
            RepeatFirst(wrong)


def pushed(weights, obs, first, last):
    velocity = (obs - last) / 0.02
    return jnp.int32(weights @ jnp.stack([obs[0], velocity[0], obs[1], velocity[1]]) > 0)


def swung(uses_velocity, obs, first, last):
    cos, sin = obs
    velocity = uses_velocity * (sin * last[0] - cos * last[1]) / 0.05
    energy = velocity**2 / 2 + 15 * (cos - 1)  # 0 at the top, at rest
    torque = jnp.where(cos > 0.8, -12 * jnp.arctan2(sin, cos) - 3 * velocity, -0.3 * velocity * energy)
    return jnp.clip(torque, -2.0, 2.0)[None]


def test_two_observations_in_a_row_solve_what_one_does_not():
    angles = np.linspace(0, 2 * np.pi, 32, endpoint=False)
    no_velocities = np.stack([np.cos(angles), 0 * angles, np.sin(angles), 0 * angles], -1)
    weights = np.array([*no_velocities, [0.1, 0.2, 1.0, 0.5]], np.float32)
    returns = mean_returns(StatelessCartPole(), pushed, weights, num_episodes=16, num_steps=500)[1].mean(-1)
    assert max(returns[:-1]) < 60 and returns[-1] == 500
    with_out = mean_returns(StatelessPendulum(), swung, jnp.array([1.0, 0.0]), num_episodes=32, num_steps=200)[1]
    assert with_out[0].mean() > -200 and with_out[1].mean() < -900


def test_they_move_as_gymnasiums_without_velocities_do():
    cases = [
        (StatelessCartPole(), stateless_cartpole.StatelessCartPole(), ["x", "x_dot", "theta", "theta_dot"], [0, 1, 1]),
        (StatelessPendulum(), stateless_pendulum.StatelessPendulum(), ["theta", "theta_dot"], [[0.5], [-2.0], [1.0]]),
    ]
    for env, twin, names, actions in cases:
        check_jax_env(env)
        np.testing.assert_allclose(env.observation_space.low, twin.observation_space.low)
        key = jax.random.key(3)
        obs, state = jax.jit(env.reset)(key, env.params)
        twin.reset(seed=0)
        twin.state = np.array([getattr(state, name) for name in names])
        step = jax.jit(env.step)
        for action in actions:
            after = step(key, state, jnp.asarray(action), env.params)
            obs, reward, *_ = twin.step(np.asarray(action))
            np.testing.assert_allclose(after.obs, obs, rtol=1e-4, atol=1e-5)
            assert after.reward == pytest.approx(float(reward), rel=1e-4)
            state = after.state
    assert StatelessCartPole({"max_steps_in_episode": 20}).params.max_steps_in_episode == 20
