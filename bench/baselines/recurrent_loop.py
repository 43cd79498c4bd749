"""Recurrent PPO on a JAX environment the way public single-file JAX scripts write it.

One device, one jitted function per iteration. Policy and value share a dense layer and a library LSTM cell, which a
scan carries over time and in which the state is reset where an episode began. Both heads run in every rollout step;
minibatches are whole environments, in the order of a `jax.random.permutation` per epoch, and gradients flow through the
whole rollout. A truncated episode counts as a terminated one.

The manner is PureJaxRL's (Lu et al., 2022, "Discovered Policy Optimisation"), with its LSTM or GRU in place of dense
layers; the code is this project's own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

from bench.baselines.sorting_loop import Loop, compiled, gae, gymnax_environments, log_prob_of, ppo_loss, repeated


class Memory(nn.Module):
    """An LSTM over time, ``[T, B, ...]``, whose state is zeros again where an episode begins."""

    @functools.partial(nn.scan, variable_broadcast="params", in_axes=0, out_axes=0, split_rngs={"params": False})
    @nn.compact
    def __call__(self, state: Any, inputs: tuple[jax.Array, jax.Array]) -> tuple[Any, jax.Array]:
        x, begins = inputs
        fresh = jax.tree.map(jnp.zeros_like, state)
        state = jax.tree.map(lambda new, old: jnp.where(begins[:, None], new, old), fresh, state)
        return nn.OptimizedLSTMCell(x.shape[-1])(state, x)


class ActorCritic(nn.Module):
    """A dense layer, the LSTM and two linear heads."""

    num_actions: int
    width: int

    @nn.compact
    def __call__(self, state: Any, obs: jax.Array, begins: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
        x = jnp.tanh(nn.Dense(self.width, kernel_init=nn.initializers.orthogonal(2**0.5))(obs))
        state, x = Memory()(state, (x, begins))
        logits = nn.Dense(self.num_actions, kernel_init=nn.initializers.orthogonal(0.01))(x)
        return state, logits, nn.Dense(1, kernel_init=nn.initializers.orthogonal(1.0))(x)[..., 0]


class Transition(NamedTuple):
    obs: jax.Array
    begins: jax.Array
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    reward: jax.Array
    ended: jax.Array
    episode_return: jax.Array


def make_loop(
    num_envs: int,
    num_steps: int = 128,
    num_epochs: int = 4,
    num_minibatches: int = 4,
    width: int = 64,
    seed: int = 0,
    *,
    env_name: str = "CartPole-v1",
    lr: float = 2.5e-4,
    gamma: float = 0.99,
    lambda_: float = 0.95,
    clip_param: float = 0.2,
    vf_clip_param: float = 0.2,
    vf_loss_coeff: float = 0.5,
    entropy_coeff: float = 0.01,
    grad_clip: float = 0.5,
    num_iterations: int = 1,
) -> Loop:
    """Compiles the training loop.

    Args:
        num_envs: Environments stepped side by side.
        num_steps: Environment steps per iteration and environment.
        num_epochs: Passes over the batch per iteration.
        num_minibatches: Minibatches per pass.
        width: Of the dense layer and of the LSTM.
        seed: Seed of networks, environments and shuffles.
        env_name: A gymnax id, or a name of `make_environment`, with vector observations and a discrete action space.
        lr: Adam's step size.
        gamma: Discount per step.
        lambda_: GAE's lambda.
        clip_param: Clip range of the probability ratio.
        vf_clip_param: Clip range of the change in value.
        vf_loss_coeff: Weight of the value loss.
        entropy_coeff: Weight of the entropy bonus.
        grad_clip: Largest global norm of the gradient.
        num_iterations: Iterations of one call, in one scan.

    Raises:
        ValueError: The minibatches do not divide the environments.
    """
    if num_envs % num_minibatches:
        raise ValueError(f"num_minibatches={num_minibatches} does not divide the {num_envs} environments")
    environments = gymnax_environments(env_name, num_envs)
    network = ActorCritic(environments.num_actions, width)
    forward: Callable[..., Any] = network.apply
    key, init_key, reset_key = jax.random.split(jax.random.key(seed), 3)
    obs, env_state = environments.reset(reset_key)
    begins, zeros = jnp.ones(num_envs, bool), (jnp.zeros((num_envs, width)), jnp.zeros((num_envs, width)))
    train_state = TrainState.create(
        apply_fn=network.apply,
        params=network.init(init_key, zeros, obs[None], begins[None]),
        tx=optax.chain(optax.clip_by_global_norm(grad_clip), optax.adam(lr, eps=1e-5)),
    )

    def env_step(carry: Any, _: None) -> tuple[Any, Transition]:
        params, memory, env_state, obs, begins, running_return, key = carry
        key, action_key, step_key = jax.random.split(key, 3)
        memory, logits, value = forward(params, memory, obs[None], begins[None])
        logits, value = logits[0], value[0]
        action = jax.random.categorical(action_key, logits)
        log_prob = log_prob_of(jax.nn.log_softmax(logits), action)
        next_obs, env_state, reward, ended = environments.step(step_key, env_state, action)
        running_return = running_return + reward
        episode_return = jnp.where(ended, running_return, 0.0)
        transition = Transition(obs, begins, action, log_prob, value, reward, ended, episode_return)
        return (params, memory, env_state, next_obs, ended, jnp.where(ended, 0.0, running_return), key), transition

    def loss_fn(
        params: Any, memory: Any, batch: Transition, advantages: jax.Array, targets: jax.Array
    ) -> tuple[jax.Array, Any]:
        _, logits, value = forward(params, jax.tree.map(lambda x: x[0], memory), batch.obs, batch.begins)
        return ppo_loss(
            logits,
            value,
            batch,
            advantages,
            targets,
            clip_param=clip_param,
            vf_clip_param=vf_clip_param,
            vf_loss_coeff=vf_loss_coeff,
            entropy_coeff=entropy_coeff,
        )

    def update_minibatch(train_state: TrainState, minibatch: Any) -> tuple[TrainState, Any]:
        (_, losses), grads = jax.value_and_grad(loss_fn, has_aux=True)(train_state.params, *minibatch)
        return train_state.apply_gradients(grads=grads), losses

    def iterate(train_state: TrainState, runner: Any) -> tuple[TrainState, Any, dict[str, jax.Array]]:
        before = runner[0]
        (_, *runner), batch = jax.lax.scan(env_step, (train_state.params, *runner), None, num_steps)
        num_episodes = batch.ended.sum()
        metrics: dict[str, Any] = {
            "num_episodes": num_episodes,
            "episode_return_mean": batch.episode_return.sum() / num_episodes,
        }
        memory, _, obs, begins, _, key = runner
        _, _, last_value = forward(train_state.params, memory, obs[None], begins[None])
        columns = (jax.tree.map(lambda x: x[None], before), batch, *gae(batch, last_value[0], gamma, lambda_))

        def epoch(train_state: TrainState, key: jax.Array) -> tuple[TrainState, Any]:
            permutation = jax.random.permutation(key, num_envs)

            def minibatches(x: jax.Array) -> jax.Array:
                shuffled = jnp.take(x, permutation, axis=1)
                return jnp.swapaxes(shuffled.reshape(x.shape[0], num_minibatches, -1, *x.shape[2:]), 0, 1)

            return jax.lax.scan(update_minibatch, train_state, jax.tree.map(minibatches, columns))

        key, shuffle_key = jax.random.split(key)
        train_state, losses = jax.lax.scan(epoch, train_state, jax.random.split(shuffle_key, num_epochs))
        losses = jax.tree.map(jnp.mean, losses)
        metrics |= dict(zip(("policy_loss", "vf_loss", "entropy"), losses, strict=True))
        return train_state, (*runner[:-1], key), metrics

    runner = (zeros, env_state, obs, begins, jnp.zeros(num_envs), key)
    state = [train_state, runner]
    program = jax.jit(repeated(iterate, num_iterations), donate_argnums=(0, 1))
    function, compile_s, temp_bytes = compiled(program, *state)

    def step() -> dict[str, float]:
        state[0], state[1], metrics = function(*state)
        return {name: float(value) for name, value in jax.device_get(metrics).items()}

    return Loop("recurrent", step, num_iterations * num_envs * num_steps, compile_s, temp_bytes)
