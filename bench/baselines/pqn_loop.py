"""PQN on a JAX environment in one file, the way public scripts write it (Gallici et al., 2024, arXiv:2407.04811).

One network with layer normalisation, epsilon-greedy actions, lambda returns over the rollout, and epochs of shuffled
minibatches with rectified Adam; no replay buffer and no target network. A truncated episode counts as a terminated one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

from bench.baselines.sorting_loop import Loop, compiled, gymnax_environments, repeated


class QNetwork(nn.Module):
    """Action values of an MLP with layer normalisation before each relu."""

    hiddens: tuple[int, ...]
    num_actions: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for width in self.hiddens:
            x = nn.relu(nn.LayerNorm()(nn.Dense(width)(x)))
        return nn.Dense(self.num_actions)(x)


class Transition(NamedTuple):
    """Recorded columns, ``[T, B, ...]``."""

    obs: jax.Array
    action: jax.Array
    value: jax.Array
    reward: jax.Array
    ended: jax.Array


def lambda_returns(batch: Transition, last_value: jax.Array, gamma: float, lambda_: float) -> jax.Array:
    """Lambda returns ``[T, B]`` with the greedy values as bootstrap values.

    ``G[t] = r[t] + gamma (1 - ended[t]) ((1 - lambda) v[t + 1] + lambda G[t + 1])``, and ``G[T] = v[T]``.

    Args:
        batch: `value` contains the greedy value of each observation, ``max_a Q(obs[t], a)``.
        last_value: Greedy value after the last step, ``[B]``.
        gamma: Discount per step.
        lambda_: Trace decay.
    """

    def backward(carry: Any, t: Transition) -> tuple[Any, jax.Array]:
        following, next_value = carry
        mixed = (1.0 - lambda_) * next_value + lambda_ * following
        target = t.reward + gamma * (1.0 - t.ended) * mixed
        return (target, t.value), target

    _, targets = jax.lax.scan(backward, (last_value, last_value), batch, reverse=True)
    return targets


def make_loop(
    num_envs: int,
    num_steps: int = 32,
    num_epochs: int = 2,
    num_minibatches: int = 4,
    hiddens: tuple[int, ...] = (64, 64),
    seed: int = 0,
    *,
    env_name: str = "CartPole-v1",
    lr: float = 2.5e-4,
    gamma: float = 0.99,
    lambda_: float = 0.65,
    epsilon: float = 0.05,
    grad_clip: float = 10.0,
    num_iterations: int = 1,
) -> Loop:
    """Compiles the training loop.

    Args:
        num_envs: Environments stepped side by side.
        num_steps: Environment steps per iteration and environment.
        num_epochs: Passes over the batch per iteration.
        num_minibatches: Minibatches per pass.
        hiddens: Layer widths of the network.
        seed: Seed of network, environments and shuffles.
        env_name: A gymnax id, or a name of `make_environment`, with a discrete action space.
        lr: Step size of rectified Adam.
        gamma: Discount per step.
        lambda_: Trace decay of the lambda returns.
        epsilon: Probability of a random action.
        grad_clip: Largest global norm of the gradient.
        num_iterations: Iterations of one call, in one scan.

    Raises:
        ValueError: A batch that the minibatches do not divide.
    """
    num_rows = num_envs * num_steps
    if num_rows % num_minibatches:
        raise ValueError(f"num_minibatches={num_minibatches} does not divide the {num_rows} rows of a batch")
    environments = gymnax_environments(env_name, num_envs)
    network = QNetwork(tuple(hiddens), environments.num_actions)
    forward: Callable[..., Any] = network.apply
    key, init_key, reset_key = jax.random.split(jax.random.key(seed), 3)
    obs, env_state = environments.reset(reset_key)
    tx = optax.chain(optax.clip_by_global_norm(grad_clip), optax.radam(lr))
    train = TrainState.create(apply_fn=network.apply, params=network.init(init_key, obs), tx=tx)

    def env_step(carry: Any, _: None) -> tuple[Any, Any]:
        params, env_state, obs, running_return, key = carry
        key, explore_key, action_key, step_key = jax.random.split(key, 4)
        q = forward(params, obs)
        random = jax.random.randint(action_key, (num_envs,), 0, environments.num_actions)
        action = jnp.where(jax.random.uniform(explore_key, (num_envs,)) < epsilon, random, q.argmax(-1))
        next_obs, env_state, reward, ended = environments.step(step_key, env_state, action)
        running_return = running_return + reward
        recorded = Transition(obs, action, q.max(-1), reward, ended), jnp.where(ended, running_return, 0.0)
        return (params, env_state, next_obs, jnp.where(ended, 0.0, running_return), key), recorded

    def loss_fn(params: Any, obs: jax.Array, action: jax.Array, target: jax.Array) -> jax.Array:
        chosen = jnp.take_along_axis(forward(params, obs), action[:, None], axis=-1)[:, 0]
        return 0.5 * jnp.mean((chosen - target) ** 2)

    def update_minibatch(train: TrainState, minibatch: Any) -> tuple[TrainState, jax.Array]:
        loss, grads = jax.value_and_grad(loss_fn)(train.params, *minibatch)
        return train.apply_gradients(grads=grads), loss

    def iterate(train: TrainState, runner: Any) -> tuple[TrainState, Any, dict[str, jax.Array]]:
        (_, *runner), (batch, returns) = jax.lax.scan(env_step, (train.params, *runner), None, num_steps)
        targets = lambda_returns(batch, forward(train.params, runner[1]).max(-1), gamma, lambda_)
        columns = (batch.obs, batch.action, targets)
        rows = jax.tree.map(lambda x: x.reshape(num_rows, *x.shape[2:]), columns)

        def epoch(train: TrainState, key: jax.Array) -> tuple[TrainState, jax.Array]:
            permutation = jax.random.permutation(key, num_rows)
            minibatches = jax.tree.map(
                lambda x: jnp.take(x, permutation, axis=0).reshape(num_minibatches, -1, *x.shape[1:]), rows
            )
            return jax.lax.scan(update_minibatch, train, minibatches)

        key, shuffle_key = jax.random.split(runner[3])
        train, losses = jax.lax.scan(epoch, train, jax.random.split(shuffle_key, num_epochs))
        num_episodes = batch.ended.sum()
        metrics = {"num_episodes": num_episodes, "episode_return_mean": returns.sum() / num_episodes}
        return train, (*runner[:3], key), metrics | {"loss": losses.mean()}

    state = [train, (env_state, obs, jnp.zeros(num_envs), key)]
    program = jax.jit(repeated(iterate, num_iterations), donate_argnums=(0, 1))
    function, compile_s, temp_bytes = compiled(program, *state)

    def step() -> dict[str, float]:
        state[0], state[1], metrics = function(*state)
        return {name: float(value) for name, value in jax.device_get(metrics).items()}

    return Loop("pqn", step, num_iterations * num_rows, compile_s, temp_bytes)
