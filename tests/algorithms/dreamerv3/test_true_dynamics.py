"""Actor and critic alone, in rollouts of CartPole's true dynamics in the place of a world model's."""

from __future__ import annotations

import functools
from typing import NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jaxrl_stack.algorithms.dreamerv3 import losses
from jaxrl_stack.algorithms.dreamerv3.actor_critic import Actor, imagine, make_critic
from jaxrl_stack.algorithms.dreamerv3.sizes import MODEL_SIZES
from jaxrl_stack.ops.masks import where_rows
from jaxrl_stack.ops.world_models import ReturnRange, update_range

NUM_ROWS, HORIZON, NUM_UPDATES, NUM_EPISODES = 64, 15, 150, 20
SIZE = MODEL_SIZES["micro"]
RANGES = np.array([2.4, 3.0, 0.21, 3.0], np.float32)


class State(NamedTuple):
    """Positions and velocities of cart and pole, ``[N, 4]``."""

    values: jax.Array

    @property
    def features(self):
        return self.values / RANGES


class TrueDynamics:
    """gymnasium's CartPole-v1 as a world model that knows everything."""

    def noise(self, key, lead):
        return None

    def imagine_step(self, state, actions, noise):
        _, velocity, angle, spin = jnp.moveaxis(state.values, -1, 0)
        force = 10.0 * (2 * actions[..., 1] - 1)
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        pushed = (force + 0.05 * spin**2 * sin) / 1.1
        turned = (9.8 * sin - cos * pushed) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        moved = pushed - 0.05 * turned * cos / 1.1
        changes = jnp.stack([velocity, moved, spin, turned], -1)
        return State(state.values + 0.02 * changes)

    def has_ended(self, features):
        position, angle = features[..., 0] * RANGES[0], features[..., 2] * RANGES[2]
        return (jnp.abs(position) > 2.4) | (jnp.abs(angle) > np.deg2rad(12))

    def continue_logits(self, features):
        return jnp.where(self.has_ended(features), -10.0, 10.0)

    def reward_of(self, features):
        return jnp.ones(features.shape[:-1])


DYNAMICS = TrueDynamics()


def fresh(key, number):
    return State(jax.random.uniform(key, (number, 4), minval=-0.05, maxval=0.05))


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
    rngs = nnx.Rngs(0)
    nets = nnx.Dict(actor=Actor(SIZE, 4, gym.spaces.Discrete(2), rngs=rngs), critic=make_critic(SIZE, 4, rngs=rngs))
    graph, params = nnx.split(nets)
    optimizer = optax.chain(
        optax.clip_by_global_norm(100.0), optax.adam(optax.linear_schedule(3e-3, 0.0, NUM_UPDATES), eps=1e-5)
    )

    def loss(params, slow, start, returns, key):
        own, slow = nnx.merge(graph, params), nnx.merge(graph, slow)
        imagined = imagine(DYNAMICS, own.actor, start, HORIZON, key, differentiable=False)
        judged = losses.judged(DYNAMICS, own.critic, imagined, jnp.zeros(NUM_ROWS, bool), gamma=0.997, lambda_=0.95)
        returns = update_range(returns, judged.targets, 0.99)
        features = imagined.features
        of_critic = losses.critic_means(own.critic, slow.critic, features, judged)
        of_actor = losses.actor_means(
            own.actor, features, imagined.actions, judged, returns, 3e-4, differentiable=False
        )
        return of_actor["total"] + of_critic["total"], (imagined, returns)

    def update(carry, key):
        params, slow, moments, start, returns = carry
        for_loss, for_start = jax.random.split(key)
        gradients, (imagined, returns) = jax.grad(loss, has_aux=True)(params, slow, start, returns, for_loss)
        changes, moments = optimizer.update(gradients, moments, params)
        params = optax.apply_updates(params, changes)
        slow = jax.tree.map(functools.partial(optax.incremental_update, step_size=0.02), params, slow)
        # Rollouts continue where the last ones were, and begin anew where these had ended.
        last = imagined.last
        ended = jnp.any(DYNAMICS.has_ended(imagined.features), axis=0) | DYNAMICS.has_ended(last.features)
        start = where_rows(ended, fresh(for_start, NUM_ROWS), last)
        return (params, slow, moments, start, returns), None

    def lengths(params, key):
        """Of greedy episodes, of at most 500 steps."""
        actor = nnx.merge(graph, params).actor

        def step(carry, _):
            state, goes_on = carry
            state = DYNAMICS.imagine_step(state, actor(state.features).sample(None), None)
            return (state, goes_on & ~DYNAMICS.has_ended(state.features)), goes_on

        start = fresh(key, NUM_EPISODES), jnp.ones(NUM_EPISODES, bool)
        return jnp.sum(jax.lax.scan(step, start, None, length=500)[1], axis=0)

    @jax.jit
    def run(params, key):
        for_start, for_updates, for_episodes = jax.random.split(key, 3)
        start = (params, params, optimizer.init(params), fresh(for_start, NUM_ROWS), ReturnRange.init())
        (params, *_), _ = jax.lax.scan(update, start, jax.random.split(for_updates, NUM_UPDATES))
        return lengths(params, for_episodes)

    before = jax.jit(lengths)(params, jax.random.key(1))
    after = run(params, jax.random.key(0))
    assert jnp.mean(before) < 100
    assert jnp.mean(after) >= 400
