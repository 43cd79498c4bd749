"""PPO on a gymnax environment, as tight as one can write it by hand: the yardstick for "what XLA can do here".

What it does that the public scripts do not, most valuable first (figures: 512 CartPole environments, 2 CPU cores):

* Shuffling is a Feistel network evaluated at the rows that a chunk needs, so nothing is sorted (a third of the time).
* The gradient of a minibatch is summed over chunks that fit the cache of a core (a quarter of what is left).
* The dense layer's weight gradient is spelled so that the CPU's matrix kernel gets it in its fast operand order (a
  fifth); x @ w and g @ w.T are at the machine's peak as they are.
* `num_devices` runs it under pmap: environments and rows sharded, parameters replicated, one all-reduce of one flat
  gradient vector per minibatch; parameters, moments and gradients are flat vectors throughout.
* One network pass over the whole block gives the values, instead of one small pass per step.
* All random numbers of a rollout are drawn at once; on CPUs, environments are reset only in steps that end an episode.
* State is donated; an iteration is one program and one small transfer of metrics.

What it leaves out: a truncated episode counts as a terminated one (no bootstrap from the state before the reset),
there are no connectors, checkpoints or evaluation. Advantages are normalised over the batch, not per minibatch.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from bench.baselines.environments import make_environment
from bench.baselines.sorting_loop import compiled, repeated

STAGES = ("rollout", "advantages", "update")
ADAM_B1, ADAM_B2, ADAM_EPS = 0.9, 0.999, 1e-5
AXIS = "devices"


@dataclasses.dataclass(frozen=True)
class Loop:
    """A compiled training loop.

    Args:
        name: What to call it in tables.
        step: Runs one iteration (rollout and update), waits for it, returns its metrics as floats.
        steps_per_iteration: Environment steps in one iteration, over all environments.
        compile_s: Seconds spent on tracing and compiling.
        temp_bytes: Scratch memory of the compiled program, or None where the backend does not say.
    """

    name: str
    step: Callable[[], dict[str, float]]
    steps_per_iteration: int
    compile_s: float
    temp_bytes: int | None


class Learner(NamedTuple):
    """Flat parameters, Adam's moments and the number of updates."""

    params: jax.Array
    mu: jax.Array
    nu: jax.Array
    count: jax.Array


class Runner(NamedTuple):
    """Environments of one device, returns so far of their running episodes, and the key that all devices share."""

    env_state: Any
    obs: Any
    running_return: Any
    key: Any


class Transition(NamedTuple):
    obs: jax.Array
    action: jax.Array
    log_prob: jax.Array
    reward: jax.Array
    ended: jax.Array
    episode_return: jax.Array


def permute(position: jax.Array, num_rows: int, round_keys: jax.Array) -> jax.Array:
    """Applies a random permutation of [0, num_rows) to `position`, without computing the whole permutation.

    A Feistel network on the next power of two; positions that land outside the range walk on along their cycle
    (Black and Rogaway, 2002, "Ciphers with arbitrary finite domains"). An even number of rounds lets the two halves
    differ by one bit.

    Args:
        position: uint32 [n], values below num_rows.
        num_rows: Size of the permuted range.
        round_keys: uint32 [rounds], rounds even.
    """
    bits = max(2, (num_rows - 1).bit_length())
    widths = (bits // 2, bits - bits // 2)

    def network(x: jax.Array) -> jax.Array:
        left, right = x >> widths[1], x & ((1 << widths[1]) - 1)
        for i in range(round_keys.shape[0]):
            mixed = right * jnp.uint32(0x9E3779B1) + round_keys[i]
            mixed = (mixed ^ (mixed >> 15)) * jnp.uint32(0x85EBCA6B)
            mixed = mixed ^ (mixed >> 13)
            left, right = right, (left ^ mixed) & ((1 << widths[i % 2]) - 1)
        return (left << widths[1]) | right

    x = network(position)
    if num_rows == 1 << bits:
        return x
    return jax.lax.while_loop(lambda x: jnp.any(x >= num_rows), lambda x: jnp.where(x >= num_rows, network(x), x), x)


@jax.custom_vjp
def cpu_dense(x: jax.Array, w: jax.Array, b: jax.Array) -> jax.Array:
    """x @ w + b, with a weight gradient that the CPU's matrix kernel runs at full speed.

    x.T @ g takes 1.5 (64 outputs) to 8 times (2 outputs) as long as the same product with the transpose taken
    first, or taken last; the barriers keep XLA from folding the transposes back in.
    """
    return x @ w + b


def _cpu_dense_forward(x: jax.Array, w: jax.Array, b: jax.Array) -> tuple[jax.Array, Any]:
    return cpu_dense(x, w, b), (x, w)


def _cpu_dense_backward(residuals: Any, g: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    x, w = residuals
    if w.shape[1] <= 16:
        dw = jax.lax.optimization_barrier(g.T @ x).T
    elif w.shape[0] <= 16:
        dw = x.T @ g
    else:
        dw = jax.lax.optimization_barrier(x.T) @ g
    return g @ w.T, dw, g.sum(0)


cpu_dense.defvjp(_cpu_dense_forward, _cpu_dense_backward)


def num_chunks_of(num_rows: int, rows_per_chunk: int) -> int:
    """Smallest number of equal chunks with at most `rows_per_chunk` rows each."""
    num_chunks = -(-num_rows // rows_per_chunk)
    while num_rows % num_chunks:
        num_chunks += 1
    return num_chunks


def make_loop(
    num_envs: int,
    num_steps: int = 128,
    num_epochs: int = 4,
    num_minibatches: int = 4,
    hiddens: tuple[int, ...] = (64, 64),
    num_devices: int = 1,
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
    rows_per_chunk: int | None = None,
    until: str = "update",
    num_iterations: int = 1,
) -> Loop:
    """Compiles the training loop.

    Args:
        num_envs: Environments stepped side by side, over all devices.
        num_steps: Environment steps per iteration and environment.
        num_epochs: Passes over the batch per iteration.
        num_minibatches: Minibatches per pass.
        hiddens: Layer widths of both networks.
        num_devices: Devices to shard over: the first ones of the default backend.
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
        rows_per_chunk: Most rows in one network pass of the update; None picks by backend and core count.
        until: Last stage that runs, one of `STAGES`; differences between the three time the stages.
        num_iterations: Iterations of one call, in one scan.

    Raises:
        ValueError: An unknown stage, more devices than there are, or sizes that do not divide evenly.
    """
    if until not in STAGES:
        raise ValueError(f"until={until!r}: use one of {STAGES}")
    devices = jax.devices()[:num_devices]
    if len(devices) < num_devices:
        raise ValueError(f"num_devices={num_devices}: the backend has {len(devices)}")
    if num_envs % num_devices:
        raise ValueError(f"num_envs={num_envs} must be a multiple of num_devices={num_devices}")
    local_envs = num_envs // num_devices
    num_rows = local_envs * num_steps
    minibatch_rows = num_rows // num_minibatches
    if num_rows % num_minibatches:
        raise ValueError(f"num_minibatches={num_minibatches} does not divide the {num_rows} rows of a device")

    on_cpu = devices[0].platform == "cpu"
    if rows_per_chunk is None:
        one_core_each = num_devices >= (os.cpu_count() or 1)
        rows_per_chunk = (1024 if one_core_each else 4096) if on_cpu else minibatch_rows
    num_chunks = num_chunks_of(minibatch_rows, rows_per_chunk)
    num_value_chunks = num_chunks_of(num_rows, 8192 if on_cpu else num_rows)

    def dense(x: jax.Array, layer: dict[str, jax.Array]) -> jax.Array:
        return cpu_dense(x, layer["w"], layer["b"]) if on_cpu else x @ layer["w"] + layer["b"]

    def mlp(layers: list[dict[str, jax.Array]], x: jax.Array) -> jax.Array:
        for layer in layers[:-1]:
            x = jnp.tanh(dense(x, layer))
        return dense(x, layers[-1])

    def init_mlp(key: jax.Array, sizes: tuple[int, ...], last_scale: float) -> list[dict[str, jax.Array]]:
        scales = [2**0.5] * (len(sizes) - 2) + [last_scale]
        return [
            {"w": jax.nn.initializers.orthogonal(scale)(k, (n_in, n_out)), "b": jnp.zeros(n_out)}
            for k, n_in, n_out, scale in zip(
                jax.random.split(key, len(scales)), sizes[:-1], sizes[1:], scales, strict=True
            )
        ]

    env, env_params = make_environment(env_name)
    num_actions = env.num_actions
    reset_envs = jax.vmap(env.reset_env, in_axes=(0, None))
    step_envs = jax.vmap(env.step_env, in_axes=(0, 0, 0, None))
    key, actor_key, critic_key, reset_key = jax.random.split(jax.random.key(seed), 4)
    obs, env_state = reset_envs(jax.random.split(reset_key, num_envs), env_params)
    params, unflatten = ravel_pytree(
        {
            "actor": init_mlp(actor_key, (obs.shape[-1], *hiddens, num_actions), 0.01),
            "critic": init_mlp(critic_key, (obs.shape[-1], *hiddens, 1), 1.0),
        }
    )

    def over_devices(reduce: Callable[[Any, str], Any], x: Any) -> Any:
        return reduce(x, AXIS) if num_devices > 1 else x

    def log_prob_of(log_probs: jax.Array, action: jax.Array) -> jax.Array:
        """Actions along the first axis of `log_probs`; a masked sum, because gathers are slow."""
        chosen = jnp.arange(num_actions, dtype=action.dtype)[:, None] == action
        return jnp.where(chosen, log_probs, 0.0).sum(0)

    def rollout(params: jax.Array, runner: Runner, key: jax.Array) -> tuple[Runner, Transition]:
        actor = unflatten(params)["actor"]
        action_key, step_key, reset_key = jax.random.split(key, 3)
        uniforms = jax.random.uniform(action_key, (num_steps, local_envs))
        step_keys = jax.random.split(step_key, (num_steps, local_envs))
        reset_keys = jax.random.split(reset_key, num_steps)

        def env_step(carry: Any, xs: Any) -> tuple[Any, Transition]:
            env_state, obs, running_return = carry
            uniform, step_keys, reset_key = xs
            log_probs = jax.nn.log_softmax(mlp(actor, obs).T, axis=0)
            action = (uniform >= jnp.cumsum(jnp.exp(log_probs[:-1]), axis=0)).sum(0)
            next_obs, next_state, reward, terminated, _ = step_envs(step_keys, env_state, action, env_params)
            truncated = jax.vmap(env.is_truncated, in_axes=(0, None))(next_state, env_params)
            ended = jnp.logical_or(terminated, truncated)

            def reset_ended() -> tuple[jax.Array, Any]:
                fresh = reset_envs(jax.random.split(reset_key, local_envs), env_params)
                return jax.tree.map(
                    lambda a, b: jnp.where(ended.reshape(-1, *[1] * (a.ndim - 1)), a, b), fresh, (next_obs, next_state)
                )

            # On an accelerator, the host would wait for the branch in each step.
            if on_cpu:
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

    def gae(params: jax.Array, batch: Transition, last_obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        critic = unflatten(params)["critic"]
        chunks = batch.obs.reshape(num_value_chunks, -1, last_obs.shape[-1])
        values = jax.lax.map(lambda x: mlp(critic, x)[:, 0], chunks).reshape(num_steps, local_envs)
        next_values = jnp.concatenate([values[1:], mlp(critic, last_obs)[None, :, 0]])
        discounts = gamma * (1.0 - batch.ended)
        deltas = batch.reward + discounts * next_values - values

        def backward(advantage: jax.Array, xs: Any) -> tuple[jax.Array, jax.Array]:
            delta, discount = xs
            advantage = delta + lambda_ * discount * advantage
            return advantage, advantage

        _, advantages = jax.lax.scan(backward, jnp.zeros(local_envs), (deltas, discounts), reverse=True)
        return advantages, values

    def loss_fn(params: jax.Array, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
        networks = unflatten(params)
        obs = rows[:, :-5]
        # One transpose of the narrow columns, and none in every column's use.
        columns = jax.lax.optimization_barrier(rows[:, -5:].T)
        action, old_log_prob, old_value, advantage, target = columns
        log_probs = jax.nn.log_softmax(jax.lax.optimization_barrier(mlp(networks["actor"], obs).T), axis=0)
        value = mlp(networks["critic"], obs)[:, 0]
        ratio = jnp.exp(log_prob_of(log_probs, action) - old_log_prob)
        clipped_ratio = jnp.clip(ratio, 1.0 - clip_param, 1.0 + clip_param)
        policy_loss = -jnp.minimum(ratio * advantage, clipped_ratio * advantage).mean()
        clipped_value = old_value + jnp.clip(value - old_value, -vf_clip_param, vf_clip_param)
        vf_loss = 0.5 * jnp.maximum((value - target) ** 2, (clipped_value - target) ** 2).mean()
        entropy = -(jnp.exp(log_probs) * log_probs).sum(0).mean()
        loss = policy_loss + vf_loss_coeff * vf_loss - entropy_coeff * entropy
        return loss, jnp.stack([policy_loss, vf_loss, entropy])

    def adam(learner: Learner, grads: jax.Array) -> Learner:
        count = learner.count + 1
        norm = jnp.sqrt(jnp.sum(grads * grads))
        grads = grads * jnp.where(norm < grad_clip, 1.0, grad_clip / norm)
        mu = ADAM_B1 * learner.mu + (1.0 - ADAM_B1) * grads
        nu = ADAM_B2 * learner.nu + (1.0 - ADAM_B2) * grads * grads
        mu_hat, nu_hat = mu / (1.0 - ADAM_B1**count), nu / (1.0 - ADAM_B2**count)
        return Learner(learner.params - lr * mu_hat / (jnp.sqrt(nu_hat) + ADAM_EPS), mu, nu, count)

    def update(
        learner: Learner, batch: Transition, advantages: jax.Array, values: jax.Array, key: jax.Array
    ) -> tuple[Learner, jax.Array]:
        moments = jnp.stack([advantages.mean(), (advantages * advantages).mean()])
        mean, mean_square = over_devices(jax.lax.pmean, moments)
        normalised = (advantages - mean) / (jnp.sqrt(mean_square - mean * mean) + 1e-8)
        columns = (batch.action.astype(jnp.float32), batch.log_prob, values, normalised, advantages + values)
        rows = jnp.concatenate([batch.obs, jnp.stack(columns, -1)], -1).reshape(num_rows, -1)
        round_keys = jax.random.bits(key, (num_epochs, 4))

        def update_minibatch(learner: Learner, index: jax.Array) -> tuple[Learner, jax.Array]:
            epoch_keys = round_keys[index // num_minibatches]
            start = (index % num_minibatches) * minibatch_rows

            def chunk_grads(positions: jax.Array) -> tuple[jax.Array, jax.Array]:
                chunk = rows[permute(positions.astype(jnp.uint32), num_rows, epoch_keys)]
                return jax.grad(loss_fn, has_aux=True)(learner.params, chunk)

            def add_chunk(total: Any, positions: jax.Array) -> tuple[Any, None]:
                return jax.tree.map(jnp.add, total, chunk_grads(positions)), None

            positions = start + jnp.arange(minibatch_rows).reshape(num_chunks, -1)
            if num_chunks == 1:
                grads, losses = chunk_grads(positions[0])
            else:
                zeros = (jnp.zeros_like(learner.params), jnp.zeros(3))
                (grads, losses), _ = jax.lax.scan(add_chunk, zeros, positions)
            grads = over_devices(jax.lax.pmean, grads / num_chunks)
            return adam(learner, grads), losses / num_chunks

        learner, losses = jax.lax.scan(update_minibatch, learner, jnp.arange(num_epochs * num_minibatches))
        return learner, losses.mean(0)

    def iterate(learner: Learner, runner: Runner) -> tuple[Learner, Runner, jax.Array]:
        next_key, key = jax.random.split(runner.key)
        if num_devices > 1:
            key = jax.random.fold_in(key, jax.lax.axis_index(AXIS))
        rollout_key, update_key = jax.random.split(key)
        runner, batch = rollout(learner.params, runner._replace(key=next_key), rollout_key)
        metrics = [batch.ended.sum(dtype=jnp.float32), batch.episode_return.sum()]
        if until == "rollout":
            # Sums over what was computed keep XLA from dropping it.
            metrics += [sum(jnp.sum(column) for column in batch)] * 3
        else:
            advantages, values = gae(learner.params, batch, runner.obs)
            if until == "advantages":
                metrics += [sum(jnp.sum(column) for column in batch) + (advantages + values).sum()] * 3
            else:
                learner, losses = update(learner, batch, advantages, values, update_key)
                metrics += list(losses / num_devices)
        return learner, runner, over_devices(jax.lax.psum, jnp.stack(metrics))

    learner = Learner(params, jnp.zeros_like(params), jnp.zeros_like(params), jnp.int32(0))
    runner = Runner(env_state, obs, jnp.zeros(num_envs), key)
    call = repeated(iterate, num_iterations)
    if num_devices > 1:
        envs = jax.tree.map(lambda x: x.reshape(num_devices, local_envs, *x.shape[1:]), runner[:3])
        runner = Runner(envs[0], envs[1], envs[2], key)
        runner_axes = Runner(0, 0, 0, None)
        program = jax.pmap(
            call,
            axis_name=AXIS,
            in_axes=(None, runner_axes),
            out_axes=(None, runner_axes, None),
            donate_argnums=(0, 1),
            devices=devices,
        )
    else:
        program = jax.jit(call, donate_argnums=(0, 1))
    state = [learner, runner]
    function, compile_s, temp_bytes = compiled(program, *state)

    def step() -> dict[str, float]:
        state[0], state[1], metrics = function(*state)
        num_episodes, return_sum, policy_loss, vf_loss, entropy = jax.device_get(metrics).tolist()
        return {
            "num_episodes": num_episodes,
            "episode_return_mean": return_sum / num_episodes if num_episodes else float("nan"),
            "policy_loss": policy_loss,
            "vf_loss": vf_loss,
            "entropy": entropy,
        }

    return Loop("tight", step, num_iterations * num_envs * num_steps, compile_s, temp_bytes)
