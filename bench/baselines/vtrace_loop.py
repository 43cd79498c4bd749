"""IMPALA's update on a gymnax environment, as tight as one can write it by hand: rollout, V-trace, gradient steps.

It is `tight_loop` with another update, and has its devices for speed, where they apply: the gradient of the one pass
over the batch is summed over chunks of environments that fit the cache of a core, the values that V-trace needs come
out of the pass that the gradient needs, and under pmap there is one all-reduce of one flat vector.

What it leaves out: a truncated episode counts as a terminated one (no bootstrap from the state before the reset),
there are no connectors, checkpoints or evaluation.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from bench.baselines.environments import make_environment
from bench.baselines.sorting_loop import compiled, repeated
from bench.baselines.tight_loop import AXIS, Learner, Loop, Runner, Transition, cpu_dense, num_chunks_of

ADAM_B1, ADAM_B2, ADAM_EPS = 0.9, 0.999, 1e-8
LR, GAMMA, VF_LOSS_COEFF, ENTROPY_COEFF, GRAD_CLIP = 5e-4, 0.99, 0.5, 0.01, 40.0
METRICS = ("num_episodes", "episode_return_sum", "policy_loss", "vf_loss", "entropy")


def vtrace(
    log_rhos: jax.Array, discounts: jax.Array, rewards: jax.Array, values: jax.Array, last_value: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Targets and advantages ``[T, B]`` (Espeholt et al., 2018, equation 1), all thresholds 1."""
    rhos = jnp.minimum(jnp.exp(log_rhos), 1.0)
    next_values = jnp.concatenate([values[1:], last_value[None]])
    deltas = rhos * (rewards + discounts * next_values - values)

    def backward(correction: jax.Array, xs: Any) -> tuple[jax.Array, jax.Array]:
        delta, decay = xs
        correction = delta + decay * correction
        return correction, correction

    _, corrections = jax.lax.scan(backward, jnp.zeros_like(last_value), (deltas, discounts * rhos), reverse=True)
    targets = values + corrections
    next_targets = jnp.concatenate([targets[1:], last_value[None]])
    return targets, rhos * (rewards + discounts * next_targets - values)


def init_mlp(key: jax.Array, sizes: tuple[int, ...], last_scale: float) -> list[dict[str, jax.Array]]:
    scales = [2**0.5] * (len(sizes) - 2) + [last_scale]
    keys = jax.random.split(key, len(scales))
    return [
        {"w": jax.nn.initializers.orthogonal(scale)(k, (n_in, n_out)), "b": jnp.zeros(n_out)}
        for k, n_in, n_out, scale in zip(keys, sizes[:-1], sizes[1:], scales, strict=True)
    ]


def mlp(layers: list[dict[str, jax.Array]], x: jax.Array, *, on_cpu: bool = True) -> jax.Array:
    def dense(x: jax.Array, layer: dict[str, jax.Array]) -> jax.Array:
        return cpu_dense(x, layer["w"], layer["b"]) if on_cpu else x @ layer["w"] + layer["b"]

    for layer in layers[:-1]:
        x = jnp.tanh(dense(x, layer))
    return dense(x, layers[-1])


def log_prob_of(log_probs: jax.Array, action: jax.Array) -> jax.Array:
    """Actions along the first axis of `log_probs`; a masked sum, because gathers are slow."""
    actions = jnp.arange(log_probs.shape[0], dtype=action.dtype).reshape(-1, *[1] * action.ndim)
    return jnp.where(actions == action, log_probs, 0.0).sum(0)


def adam(learner: Learner, grads: jax.Array) -> Learner:
    count = learner.count + 1
    norm = jnp.sqrt(jnp.sum(grads * grads))
    grads = grads * jnp.where(norm < GRAD_CLIP, 1.0, GRAD_CLIP / norm)
    mu = ADAM_B1 * learner.mu + (1.0 - ADAM_B1) * grads
    nu = ADAM_B2 * learner.nu + (1.0 - ADAM_B2) * grads * grads
    mu_hat, nu_hat = mu / (1.0 - ADAM_B1**count), nu / (1.0 - ADAM_B2**count)
    return Learner(learner.params - LR * mu_hat / (jnp.sqrt(nu_hat) + ADAM_EPS), mu, nu, count)


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """Training iteration of one device: rollout, V-trace and gradient steps.

    Args:
        env: The gymnax environment.
        env_params: Its parameters.
        unflatten: A flat vector of parameters -> ``{"actor": layers, "critic": layers}``.
        num_envs: Environments of this device.
        num_steps: Steps of each in an iteration.
        num_chunks: Parts that the gradient is summed over.
        num_devices: Devices of the axis; 1 for none.
        on_cpu: False for an accelerator: plain dense layers, and a select in place of a branch on ended episodes, for
            which the host would wait in each step.
        num_updates: Gradient steps on a batch; each computes V-trace again.
    """

    env: Any
    env_params: Any
    unflatten: Callable[[jax.Array], Any]
    num_envs: int
    num_steps: int
    num_chunks: int
    num_devices: int
    on_cpu: bool = True
    num_updates: int = 1

    def __call__(self, learner: Learner, runner: Runner) -> tuple[Learner, Runner, jax.Array]:
        next_key, key = jax.random.split(runner.key)
        if self.num_devices > 1:
            key = jax.random.fold_in(key, jax.lax.axis_index(AXIS))
        runner, batch = self.rollout(learner.params, runner._replace(key=next_key), key)
        learner, losses = self.update(learner, batch, runner.obs)
        counts = jnp.stack([batch.ended.sum(dtype=jnp.float32), batch.episode_return.sum()])
        metrics = jnp.concatenate([counts, losses / self.num_devices])
        return learner, runner, jax.lax.psum(metrics, AXIS) if self.num_devices > 1 else metrics

    def reset(self, keys: jax.Array) -> tuple[jax.Array, Any]:
        return jax.vmap(self.env.reset_env, in_axes=(0, None))(keys, self.env_params)

    def rollout(self, params: jax.Array, runner: Runner, key: jax.Array) -> tuple[Runner, Transition]:
        actor = self.unflatten(params)["actor"]
        action_key, step_key, reset_key = jax.random.split(key, 3)
        uniforms = jax.random.uniform(action_key, (self.num_steps, self.num_envs))
        step_keys = jax.random.split(step_key, (self.num_steps, self.num_envs))
        reset_keys = jax.random.split(reset_key, self.num_steps)
        step_envs = jax.vmap(self.env.step_env, in_axes=(0, 0, 0, None))

        def env_step(carry: Any, xs: Any) -> tuple[Any, Transition]:
            env_state, obs, running_return = carry
            uniform, step_keys, reset_key = xs
            log_probs = jax.nn.log_softmax(mlp(actor, obs, on_cpu=self.on_cpu).T, axis=0)
            action = (uniform >= jnp.cumsum(jnp.exp(log_probs[:-1]), axis=0)).sum(0)
            next_obs, next_state, reward, terminated, _ = step_envs(step_keys, env_state, action, self.env_params)
            truncated = jax.vmap(self.env.is_truncated, in_axes=(0, None))(next_state, self.env_params)
            ended = jnp.logical_or(terminated, truncated)

            def reset_ended() -> tuple[jax.Array, Any]:
                fresh = self.reset(jax.random.split(reset_key, self.num_envs))
                return jax.tree.map(
                    lambda a, b: jnp.where(ended.reshape(-1, *[1] * (a.ndim - 1)), a, b), fresh, (next_obs, next_state)
                )

            if self.on_cpu:
                next_obs, next_state = jax.lax.cond(jnp.any(ended), reset_ended, lambda: (next_obs, next_state))
            else:
                next_obs, next_state = reset_ended()
            running_return = running_return + reward
            transition = Transition(
                obs, action, log_prob_of(log_probs, action), reward, ended, jnp.where(ended, running_return, 0.0)
            )
            return (next_state, next_obs, jnp.where(ended, 0.0, running_return)), transition

        carry = (runner.env_state, runner.obs, runner.running_return)
        carry, batch = jax.lax.scan(env_step, carry, (uniforms, step_keys, reset_keys))
        return Runner(carry[0], carry[1], carry[2], runner.key), batch

    def loss(self, params: jax.Array, batch: Transition, last_obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        networks = self.unflatten(params)
        rows, shape = batch.obs.reshape(-1, batch.obs.shape[-1]), batch.action.shape
        logits = jax.lax.optimization_barrier(mlp(networks["actor"], rows, on_cpu=self.on_cpu).T)
        log_probs = jax.nn.log_softmax(logits, axis=0).reshape(-1, *shape)
        values = mlp(networks["critic"], rows, on_cpu=self.on_cpu)[:, 0].reshape(shape)
        last_value = mlp(jax.lax.stop_gradient(networks["critic"]), last_obs, on_cpu=self.on_cpu)[:, 0]
        log_prob = log_prob_of(log_probs, batch.action)
        discounts = GAMMA * (1.0 - batch.ended)
        targets, advantages = jax.lax.stop_gradient(
            vtrace(log_prob - batch.log_prob, discounts, batch.reward, values, last_value)
        )
        policy_loss = -(log_prob * advantages).mean()
        vf_loss = 0.5 * jnp.square(values - targets).mean()
        entropy = -(jnp.exp(log_probs) * log_probs).sum(0).mean()
        total = policy_loss + VF_LOSS_COEFF * vf_loss - ENTROPY_COEFF * entropy
        return total, jnp.stack([policy_loss, vf_loss, entropy])

    def update(self, learner: Learner, batch: Transition, last_obs: jax.Array) -> tuple[Learner, jax.Array]:
        def chunks(x: jax.Array, axis: int) -> jax.Array:
            return jnp.moveaxis(x.reshape(*x.shape[:axis], self.num_chunks, -1, *x.shape[axis + 1 :]), axis, 0)

        def add_chunk(params: jax.Array, total: Any, own: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, jax.grad(self.loss, has_aux=True)(params, *own)), None

        parts = jax.tree.map(lambda x: chunks(x, 1), batch), chunks(last_obs, 0)
        losses = jnp.zeros(3)
        for _ in range(self.num_updates):
            add = functools.partial(add_chunk, learner.params)
            (grads, losses), _ = jax.lax.scan(add, (jnp.zeros_like(learner.params), jnp.zeros(3)), parts)
            grads, losses = grads / self.num_chunks, losses / self.num_chunks
            learner = adam(learner, jax.lax.pmean(grads, AXIS) if self.num_devices > 1 else grads)
        return learner, losses


def make_loop(
    num_envs: int,
    num_steps: int = 50,
    hiddens: tuple[int, ...] = (64, 64),
    num_devices: int = 1,
    seed: int = 0,
    *,
    env_name: str = "CartPole-v1",
    rows_per_chunk: int | None = None,
    num_updates: int = 1,
    num_iterations: int = 1,
) -> Loop:
    """Compiles the training loop.

    Args:
        num_envs: Environments stepped side by side, over all devices; a multiple of `num_devices`.
        num_steps: Environment steps per iteration and environment.
        hiddens: Layer widths of both networks.
        num_devices: Devices to shard over: the first ones of the backend.
        seed: Seed of networks and environments.
        env_name: A gymnax id, or a name of `make_environment`, with vector observations and a discrete action space.
        rows_per_chunk: Most rows in one network pass of the update; None picks by core count, and all on an
            accelerator.
        num_updates: Gradient steps per batch.
        num_iterations: Iterations of one call, in one scan.
    """
    on_cpu = jax.devices()[0].platform == "cpu"
    if rows_per_chunk is None:
        one_core_each = num_devices >= (os.cpu_count() or 1)
        rows_per_chunk = (1024 if one_core_each else 4096) if on_cpu else num_envs * num_steps
    local_envs = num_envs // num_devices
    num_chunks = num_chunks_of(local_envs, max(rows_per_chunk // num_steps, 1))
    env, env_params = make_environment(env_name)
    key, actor_key, critic_key, reset_key = jax.random.split(jax.random.key(seed), 4)
    obs_size = env.observation_space(env_params).shape[0]
    networks = {
        "actor": init_mlp(actor_key, (obs_size, *hiddens, env.num_actions), 0.01),
        "critic": init_mlp(critic_key, (obs_size, *hiddens, 1), 1.0),
    }
    params, unflatten = ravel_pytree(networks)
    program = Program(env, env_params, unflatten, local_envs, num_steps, num_chunks, num_devices, on_cpu, num_updates)
    obs, env_state = program.reset(jax.random.split(reset_key, num_envs))
    learner = Learner(params, jnp.zeros_like(params), jnp.zeros_like(params), jnp.int32(0))
    envs = (env_state, obs, jnp.zeros(num_envs))
    if num_devices > 1:
        envs = jax.tree.map(lambda x: x.reshape(num_devices, local_envs, *x.shape[1:]), envs)
    runner = Runner(envs[0], envs[1], envs[2], key)
    state = [learner, runner]
    function, compile_s, temp_bytes = compiled(_mapped(program, num_iterations), *state)

    def step() -> dict[str, float]:
        state[0], state[1], metrics = function(*state)
        return dict(zip(METRICS, jax.device_get(metrics).tolist(), strict=True))

    return Loop("vtrace", step, num_iterations * num_envs * num_steps, compile_s, temp_bytes)


def _mapped(program: Program, num_iterations: int) -> Any:
    """Compiles `num_iterations` iterations for all devices."""
    call = repeated(program, num_iterations)
    if program.num_devices == 1:
        return jax.jit(call, donate_argnums=(0, 1))
    axes = Runner(0, 0, 0, None)
    return jax.pmap(
        call,
        axis_name=AXIS,
        in_axes=(None, axes),
        out_axes=(None, axes, None),
        donate_argnums=(0, 1),
        devices=jax.devices()[: program.num_devices],
    )
