"""PPO on JAX environments the way public single-file JAX scripts write it.

One device, one jitted function per iteration: the policy and the value network run in every rollout step, keys
are split step by step, environments reset by themselves, every epoch sorts a fresh `jax.random.permutation`, advantages
are normalised per minibatch, and a truncated episode counts as a terminated one. Nothing is left out to make it
slow and nothing is added to make it fast: this is the yardstick for "what a user would otherwise copy".

The manner is PureJaxRL's (Lu et al., 2022, "Discovered Policy Optimisation"); the code is this project's own.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

from bench.baselines.environments import make_environment

STAGES = ("rollout", "advantages", "update")


class Environments(NamedTuple):
    """Batch of environments of a training loop, with automatic resets.

    Attributes:
        num_actions: Size of the discrete action space.
        reset: ``key -> (obs, state)``.
        step: ``(key, state, action) -> (obs, state, reward, ended)``, leaves ``[num_envs, ...]``.
    """

    num_actions: int
    reset: Callable[[jax.Array], tuple[jax.Array, Any]]
    step: Callable[[jax.Array, Any, jax.Array], tuple[jax.Array, Any, jax.Array, jax.Array]]


def gymnax_environments(env_name: str, num_envs: int) -> Environments:
    """Creates a batch of `num_envs` copies of an environment of gymnax or of `baselines.environments`; see
    `make_environment`.
    """
    env, env_params = make_environment(env_name)

    def reset(key: jax.Array) -> tuple[jax.Array, Any]:
        return jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(key, num_envs), env_params)

    def step(key: jax.Array, state: Any, action: jax.Array) -> tuple[jax.Array, Any, jax.Array, jax.Array]:
        obs, state, reward, terminated, truncated, _info = jax.vmap(env.step, in_axes=(0, 0, 0, None))(
            jax.random.split(key, num_envs), state, action, env_params
        )
        return obs, state, reward, jnp.logical_or(terminated, truncated)

    return Environments(env.num_actions, reset, step)


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


class ActorCritic(nn.Module):
    """Separate tanh MLPs for the action logits and the state value."""

    num_actions: int
    hiddens: tuple[int, ...]

    @nn.compact
    def __call__(self, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        def mlp(num_outputs: int, scale: float) -> jax.Array:
            x = obs
            for width in self.hiddens:
                x = jnp.tanh(nn.Dense(width, kernel_init=nn.initializers.orthogonal(2**0.5))(x))
            return nn.Dense(num_outputs, kernel_init=nn.initializers.orthogonal(scale))(x)

        return mlp(self.num_actions, 0.01), mlp(1, 1.0)[..., 0]


class ConvActorCritic(nn.Module):
    """Separate networks for action logits and state value of images: convolutions (channels, kernel, stride) and dense
    layers, with relu.
    """

    num_actions: int
    filters: tuple[tuple[int, int, int], ...]
    hiddens: tuple[int, ...]

    @nn.compact
    def __call__(self, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        def cnn(num_outputs: int, scale: float) -> jax.Array:
            x = obs.astype(jnp.float32)
            for channels, size, stride in self.filters:
                x = nn.relu(nn.Conv(channels, (size, size), (stride, stride))(x))
            x = x.reshape(x.shape[0], -1)
            for width in self.hiddens:
                x = nn.relu(nn.Dense(width, kernel_init=nn.initializers.orthogonal(2**0.5))(x))
            return nn.Dense(num_outputs, kernel_init=nn.initializers.orthogonal(scale))(x)

        return cnn(self.num_actions, 0.01), cnn(1, 1.0)[..., 0]


class Transition(NamedTuple):
    obs: jax.Array
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    reward: jax.Array
    ended: jax.Array
    episode_return: jax.Array


def log_prob_of(log_probs: jax.Array, action: jax.Array) -> jax.Array:
    return jnp.take_along_axis(log_probs, action[..., None], axis=-1)[..., 0]


def gae(batch: Any, last_value: jax.Array, gamma: float, lambda_: float) -> tuple[jax.Array, jax.Array]:
    """Advantages and value targets ``[T, B]`` of transitions with reward, ended and value ``[T, B]``."""

    def backward(carry: Any, t: Any) -> tuple[Any, jax.Array]:
        advantage, next_value = carry
        alive = 1.0 - t.ended
        delta = t.reward + gamma * next_value * alive - t.value
        advantage = delta + gamma * lambda_ * alive * advantage
        return (advantage, t.value), advantage

    _, advantages = jax.lax.scan(backward, (jnp.zeros_like(last_value), last_value), batch, reverse=True, unroll=16)
    return advantages, advantages + batch.value


def ppo_loss(
    logits: jax.Array,
    value: jax.Array,
    batch: Any,
    advantages: jax.Array,
    targets: jax.Array,
    *,
    clip_param: float,
    vf_clip_param: float,
    vf_loss_coeff: float,
    entropy_coeff: float,
) -> tuple[jax.Array, tuple[jax.Array, jax.Array, jax.Array]]:
    """The clipped surrogate loss of a minibatch, and its parts: policy, value and entropy."""
    log_probs = jax.nn.log_softmax(logits)
    ratio = jnp.exp(log_prob_of(log_probs, batch.action) - batch.log_prob)
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    clipped_ratio = jnp.clip(ratio, 1.0 - clip_param, 1.0 + clip_param)
    policy_loss = -jnp.minimum(ratio * advantages, clipped_ratio * advantages).mean()
    clipped_value = batch.value + jnp.clip(value - batch.value, -vf_clip_param, vf_clip_param)
    vf_loss = 0.5 * jnp.maximum((value - targets) ** 2, (clipped_value - targets) ** 2).mean()
    entropy = -(jnp.exp(log_probs) * log_probs).sum(-1).mean()
    return policy_loss + vf_loss_coeff * vf_loss - entropy_coeff * entropy, (policy_loss, vf_loss, entropy)


def repeated(iterate: Callable[..., Any], num_iterations: int) -> Callable[..., Any]:
    """Returns a function that repeats a training iteration in one scan.

    Args:
        iterate: ``(learner, runner) -> (learner, runner, metrics)``.
        num_iterations: Number of iterations.

    Returns:
        Function with the same arguments and results; its metrics describe the last iteration.
    """
    if num_iterations == 1:
        return iterate

    def call(learner: Any, runner: Any) -> tuple[Any, Any, Any]:
        def one(carry: Any, _: None) -> tuple[Any, Any]:
            *carry, metrics = iterate(*carry)
            return tuple(carry), metrics

        (learner, runner), metrics = jax.lax.scan(one, (learner, runner), None, num_iterations)
        return learner, runner, jax.tree.map(lambda x: x[-1], metrics)

    return call


def begun(
    program: Callable[..., Any], start: Callable[[int], Any], seed: int, num_members: int | None
) -> tuple[Callable[..., Any], list[Any]]:
    """Returns a training program and its first state, or for `num_members` seeds the program under vmap and the stacked
    states.

    Networks are made one by one: orthogonal matrices are not made under vmap.
    """
    if num_members is None:
        return program, list(start(seed))
    # Compiled once: operation by operation, a thousand members take minutes.
    start = jax.jit(start)
    starts = [start(seed + i) for i in range(num_members)]
    return jax.vmap(program), list(jax.tree.map(lambda *leaves: jnp.stack(leaves), *starts))


def compiled(program: Any, *arguments: Any) -> tuple[Any, float, int | None]:
    """Compiles a jitted function for arguments of certain shapes.

    Returns:
        ``(compiled function, seconds of tracing and compiling, bytes of its temporary arrays)``; None instead of bytes
        that the backend does not count.
    """
    started = time.perf_counter()
    function = program.lower(*arguments).compile()
    seconds = time.perf_counter() - started
    memory = function.memory_analysis()
    return function, seconds, memory.temp_size_in_bytes if memory else None


def make_loop(
    num_envs: int,
    num_steps: int = 128,
    num_epochs: int = 4,
    num_minibatches: int = 4,
    hiddens: tuple[int, ...] = (64, 64),
    num_devices: int = 1,
    seed: int = 0,
    *,
    environments: Environments | None = None,
    filters: tuple[tuple[int, int, int], ...] = (),
    lr: float = 2.5e-4,
    gamma: float = 0.99,
    lambda_: float = 0.95,
    clip_param: float = 0.2,
    vf_clip_param: float = 0.2,
    vf_loss_coeff: float = 0.5,
    entropy_coeff: float = 0.01,
    grad_clip: float = 0.5,
    until: str = "update",
    num_iterations: int = 1,
    num_members: int | None = None,
) -> Loop:
    """Compiles the training loop.

    Args:
        num_envs: Environments stepped side by side.
        num_steps: Environment steps per iteration and environment.
        num_epochs: Passes over the batch per iteration.
        num_minibatches: Minibatches per pass.
        hiddens: Layer widths of both networks.
        num_devices: Must be 1.
        seed: Seed of networks, environments and shuffles.
        environments: `num_envs` of them; None: gymnax's CartPole.
        filters: Of convolutions before the layers, for images: (channels, kernel, stride) of each.
        lr: Adam's step size.
        gamma: Discount per step.
        lambda_: GAE's lambda.
        clip_param: Clip range of the probability ratio.
        vf_clip_param: Clip range of the change in value.
        vf_loss_coeff: Weight of the value loss.
        entropy_coeff: Weight of the entropy bonus.
        grad_clip: Largest global norm of the gradient.
        until: Last stage that runs, one of `STAGES`; differences between the three time the stages.
        num_iterations: Iterations of one call, in one scan.
        num_members: Runs of so many seeds, from `seed` on, under vmap; None for one without.

    Raises:
        ValueError: More than one device, an unknown stage, or a batch that the minibatches do not divide.
    """
    if num_devices != 1:
        raise ValueError(f"num_devices={num_devices}: the sorting loop runs on one device; use 1")
    if until not in STAGES:
        raise ValueError(f"until={until!r}: use one of {STAGES}")
    num_rows = num_envs * num_steps
    if num_rows % num_minibatches:
        raise ValueError(f"num_minibatches={num_minibatches} does not divide the {num_rows} rows of a batch")

    environments = environments or gymnax_environments("CartPole-v1", num_envs)
    if filters:
        network: nn.Module = ConvActorCritic(environments.num_actions, tuple(filters), tuple(hiddens))
    else:
        network = ActorCritic(environments.num_actions, tuple(hiddens))
    forward: Callable[..., Any] = network.apply
    optimizer = optax.chain(optax.clip_by_global_norm(grad_clip), optax.adam(lr, eps=1e-5))

    def start(seed: int) -> tuple[TrainState, Any]:
        key, init_key, reset_key = jax.random.split(jax.random.key(seed), 3)
        obs, env_state = environments.reset(reset_key)
        params = network.init(init_key, obs)
        train_state = TrainState.create(apply_fn=network.apply, params=params, tx=optimizer)
        return train_state, (env_state, obs, jnp.zeros(num_envs), key)

    def env_step(carry: Any, _: None) -> tuple[Any, Transition]:
        params, env_state, obs, running_return, key = carry
        key, action_key, step_key = jax.random.split(key, 3)
        logits, value = forward(params, obs)
        action = jax.random.categorical(action_key, logits)
        log_prob = log_prob_of(jax.nn.log_softmax(logits), action)
        next_obs, env_state, reward, ended = environments.step(step_key, env_state, action)
        running_return = running_return + reward
        transition = Transition(obs, action, log_prob, value, reward, ended, jnp.where(ended, running_return, 0.0))
        return (params, env_state, next_obs, jnp.where(ended, 0.0, running_return), key), transition

    def loss_fn(params: Any, batch: Transition, advantages: jax.Array, targets: jax.Array) -> tuple[jax.Array, Any]:
        logits, value = forward(params, batch.obs)
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
        (_, *runner), batch = jax.lax.scan(env_step, (train_state.params, *runner), None, num_steps)
        num_episodes = batch.ended.sum()
        metrics: dict[str, Any] = {
            "num_episodes": num_episodes,
            "episode_return_mean": batch.episode_return.sum() / num_episodes,
        }
        if until == "rollout":
            # Sums over what was computed keep XLA from dropping it.
            metrics["checksum"] = sum(jnp.sum(column) for column in batch)
            return train_state, tuple(runner), metrics
        advantages, targets = gae(batch, forward(train_state.params, runner[1])[1], gamma, lambda_)
        if until == "advantages":
            metrics["checksum"] = sum(jnp.sum(column) for column in batch) + advantages.sum() + targets.sum()
            return train_state, tuple(runner), metrics
        rows = jax.tree.map(lambda x: x.reshape(num_rows, *x.shape[2:]), (batch, advantages, targets))

        def epoch(train_state: TrainState, key: jax.Array) -> tuple[TrainState, Any]:
            permutation = jax.random.permutation(key, num_rows)
            minibatches = jax.tree.map(
                lambda x: jnp.take(x, permutation, axis=0).reshape(num_minibatches, -1, *x.shape[1:]), rows
            )
            return jax.lax.scan(update_minibatch, train_state, minibatches)

        key, shuffle_key = jax.random.split(runner[3])
        train_state, losses = jax.lax.scan(epoch, train_state, jax.random.split(shuffle_key, num_epochs))
        losses = jax.tree.map(jnp.mean, losses)
        metrics |= dict(zip(("policy_loss", "vf_loss", "entropy"), losses, strict=True))
        return train_state, (*runner[:3], key), metrics

    program, state = begun(repeated(iterate, num_iterations), start, seed, num_members)
    function, compile_s, temp_bytes = compiled(jax.jit(program, donate_argnums=(0, 1)), *state)

    def step() -> dict[str, float]:
        state[0], state[1], metrics = function(*state)
        return {name: float(value.mean()) for name, value in jax.device_get(metrics).items()}

    return Loop("sorting", step, num_iterations * num_rows * (num_members or 1), compile_s, temp_bytes)
