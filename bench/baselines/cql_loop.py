"""CQL on recorded steps in one file, as a good user writes it: many updates are a scan, in one program.

Flax networks and optax's Adam; the data lies on the device, an epoch is a permutation of it, an update a minibatch of
that (Kumar et al., 2020, "Conservative Q-learning for offline reinforcement learning"). Networks are RLlib's: a critic
encodes observation and action by themselves and joins them, and an observation is encoded once for all of its actions.
It imports nothing of jaxrl_stack. Steps that do not fill a minibatch at the end of an epoch are left out.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

LOG_STD_RANGE = (-5.0, 2.0)


@dataclasses.dataclass(frozen=True)
class Loop:
    """A compiled training loop.

    Args:
        step: Runs a number of updates, waits for them, returns their metrics as floats.
        steps_per_iteration: Updates that one call of `step` makes.
        flops: Floating point operations of an update, as XLA counts them.
        compile_s: Seconds spent on tracing and compiling.
    """

    step: Callable[[], dict[str, float]]
    steps_per_iteration: int
    flops: float
    compile_s: float


class MLP(nn.Module):
    """Layers with tanh after each."""

    hiddens: tuple[int, ...]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for width in self.hiddens:
            x = nn.tanh(nn.Dense(width)(x))
        return x


class Actor(nn.Module):
    """Mean and log standard deviation of a Gaussian, before tanh."""

    hiddens: tuple[int, ...]
    action_dim: int

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        mean, log_std = jnp.split(nn.Dense(2 * self.action_dim)(MLP(self.hiddens)(x)), 2, axis=-1)
        return mean, jnp.clip(log_std, *LOG_STD_RANGE)


class Critic(nn.Module):
    """Values of actions ``[..., n]`` at observations whose axes are broadcast against those of the actions."""

    hiddens: tuple[int, ...]

    @nn.compact
    def __call__(self, obs: jax.Array, action: jax.Array) -> jax.Array:
        of_obs, of_action = MLP(self.hiddens)(obs), MLP(self.hiddens)(action)
        both = jnp.concatenate([of_action, jnp.broadcast_to(of_obs, of_action.shape)], axis=-1)
        x = nn.tanh(nn.Dense(self.hiddens[0])(both))
        for width in (*self.hiddens[1:], self.hiddens[-1]):
            x = nn.tanh(nn.Dense(width)(jnp.concatenate([x, both], axis=-1)))
        return nn.Dense(1)(x)[..., 0]


def sample(parameters: tuple[jax.Array, jax.Array], key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """An action in [-1, 1] and its log-probability there."""
    mean, log_std = parameters
    noise = jax.random.normal(key, mean.shape)
    return jnp.tanh(mean + jnp.exp(log_std) * noise), log_prob_of(mean + jnp.exp(log_std) * noise, noise, log_std)


def log_prob_of(raw: jax.Array, noise: jax.Array, log_std: jax.Array) -> jax.Array:
    """Log-probability of ``tanh(raw)``, ``[...]``."""
    log_prob = -0.5 * noise**2 - log_std - 0.5 * jnp.log(2.0 * jnp.pi)
    return (log_prob - 2.0 * (jnp.log(2.0) - raw - nn.softplus(-2.0 * raw))).sum(-1)


def recorded_log_prob(parameters: tuple[jax.Array, jax.Array], action: jax.Array) -> jax.Array:
    """Log-probability of a recorded action in [-1, 1]."""
    mean, log_std = parameters
    raw = jnp.arctanh(jnp.clip(action, -1 + 1e-6, 1 - 1e-6))
    return log_prob_of(raw, (raw - mean) / jnp.exp(log_std), log_std)


class State(NamedTuple):
    params: dict[str, Any]
    targets: Any
    optimizers: dict[str, Any]
    num_updates: jax.Array


def compiled_loop(
    update: Callable[[State, Mapping[str, jax.Array], jax.Array], tuple[State, jax.Array]],
    state: State,
    data: Mapping[str, np.ndarray],
    *,
    batch_size: int,
    num_updates: int,
    seed: int,
) -> Loop:
    """Compiles a program of at least `num_updates` updates, in whole epochs, on minibatches of permuted data."""
    num_rows = len(data["obs"])
    per_epoch = num_rows // batch_size
    num_epochs = math.ceil(num_updates / per_epoch)
    on_device = {name: jnp.asarray(column) for name, column in data.items()}

    def epoch(carry: Any, key: jax.Array) -> Any:
        state, data = carry
        order_key, own = jax.random.split(key)
        order = jax.random.permutation(order_key, num_rows)[: per_epoch * batch_size].reshape(per_epoch, batch_size)

        def of_rows(state: State, rows_and_key: Any) -> tuple[State, jax.Array]:
            rows, key = rows_and_key
            return update(state, jax.tree.map(lambda x: x[rows], data), key)

        state, losses = jax.lax.scan(of_rows, state, (order, jax.random.split(own, per_epoch)))
        return (state, data), losses[-1]

    def run(state: State, data: Any, key: jax.Array) -> Any:
        key, own = jax.random.split(key)
        (state, _), losses = jax.lax.scan(epoch, (state, data), jax.random.split(own, num_epochs))
        return state, key, losses[-1]

    key = jax.random.key(seed)
    minibatch = {name: column[:batch_size] for name, column in on_device.items()}
    flops: Any = jax.jit(update).lower(state, minibatch, key).compile().cost_analysis()
    started = time.perf_counter()
    compiled = jax.jit(run, donate_argnums=0).lower(state, on_device, key).compile()
    compile_s = time.perf_counter() - started
    held: list[Any] = [(state, key)]

    def step() -> dict[str, float]:
        state, key, loss = compiled(held[0][0], on_device, held[0][1])
        held[0] = (state, key)
        return {"loss": float(loss)}

    return Loop(step, num_epochs * per_epoch, float(flops["flops"]), compile_s)


def critics_of(critic: Any, params: Any, obs: jax.Array, action: jax.Array) -> jax.Array:
    """Values of both critics, ``[2, ...]``."""
    return jax.vmap(critic.apply, in_axes=(0, None, None))(params, obs, action)


@dataclasses.dataclass(frozen=True, eq=False)
class Update:
    """Function that makes one update from a minibatch; `make_loop` documents the numbers."""

    actor: Any
    critic: Any
    optimizers: Mapping[str, Any]
    action_dim: int
    num_actions: int
    bc_iters: int
    min_q_weight: float
    gamma: float
    tau: float

    def __call__(self, state: State, batch: Mapping[str, jax.Array], key: jax.Array) -> tuple[State, jax.Array]:
        now_key, next_key, *keys = jax.random.split(key, 5)
        params = state.params
        next_actor = self.actor.apply(params["actor"], batch["next_obs"])
        next_action, _ = sample(next_actor, next_key)
        next_q = critics_of(self.critic, state.targets, batch["next_obs"], next_action).min(0)
        target = batch["rewards"] + self.gamma * jnp.where(batch["terminateds"], 0.0, next_q)
        of_actor = jax.value_and_grad(functools.partial(self.actor_loss, state, batch, now_key), has_aux=True)
        (_, (current, log_prob)), actor_grads = of_actor(params["actor"])
        drawn, densities = self.drawn(next_actor, current, len(target), keys)

        def critic_loss(own: Any) -> jax.Array:
            q = critics_of(self.critic, own, batch["obs"], batch["actions"])
            others = critics_of(self.critic, own, batch["obs"][:, None], drawn)
            gap = jax.nn.logsumexp(others - densities, axis=-1) - q
            return jnp.mean(jnp.square(q - target) + self.min_q_weight * gap, axis=-1).sum()

        loss, critic_grads = jax.value_and_grad(critic_loss)(params["critics"])
        alpha_grad = -jnp.mean(jax.lax.stop_gradient(log_prob) - self.action_dim)
        grads = {"actor": actor_grads, "critics": critic_grads, "log_alpha": alpha_grad}
        steps = {name: self.optimizers[name].update(grads[name], state.optimizers[name]) for name in grads}
        new = {name: optax.apply_updates(params[name], step) for name, (step, _) in steps.items()}
        targets = optax.incremental_update(new["critics"], state.targets, self.tau)
        return State(new, targets, {name: own for name, (_, own) in steps.items()}, state.num_updates + 1), loss

    def actor_loss(
        self, state: State, batch: Mapping[str, jax.Array], key: jax.Array, own: Any
    ) -> tuple[jax.Array, tuple[Any, jax.Array]]:
        """Computes the actor loss of the parameters `own`; returns also the actor's outputs and the log-probabilities
        of its actions.
        """
        of_actor = self.actor.apply(own, batch["obs"])
        action, log_prob = sample(of_actor, key)
        q = critics_of(self.critic, state.params["critics"], batch["obs"], action).min(0)
        is_cloning = state.num_updates < self.bc_iters
        maximised = jnp.where(is_cloning, recorded_log_prob(of_actor, batch["actions"]), q)
        alpha = jnp.exp(state.params["log_alpha"])
        return jnp.mean(alpha * log_prob - maximised), (of_actor, log_prob)

    def drawn(self, after: Any, current: Any, number: int, keys: Sequence[jax.Array]) -> tuple[jax.Array, jax.Array]:
        """Draws K random actions, and K actions of the policy at each of two observations; returns actions ``[N, 3 K,
        n]`` and their log densities.
        """

        def repeated(of_actor: Any, key: jax.Array) -> tuple[jax.Array, jax.Array]:
            each = jax.tree.map(lambda x: jnp.repeat(x[:, None], self.num_actions, axis=1), of_actor)
            return sample(each, key)

        shape = (number, self.num_actions, self.action_dim)
        random = jax.random.uniform(keys[0], shape, minval=-1.0, maxval=1.0)
        density = jnp.full(shape[:2], self.action_dim * jnp.log(0.5))
        of_both = repeated(after, keys[1]), repeated(current, keys[2])
        actions, densities = zip((random, density), *of_both, strict=True)
        together = (jnp.concatenate(actions, axis=1), jnp.concatenate(densities, axis=1))
        return jax.lax.stop_gradient(together)


def make_loop(
    data: Mapping[str, np.ndarray],
    *,
    hiddens: tuple[int, ...] = (256, 256),
    batch_size: int = 256,
    num_updates: int = 100,
    num_actions: int = 10,
    bc_iters: int = 20_000,
    min_q_weight: float = 5.0,
    rates: Mapping[str, float] | None = None,
    gamma: float = 0.99,
    tau: float = 0.005,
    seed: int = 0,
) -> Loop:
    """Creates the training loop over the rows of a data set, by default with RLlib's settings.

    Args:
        data: ``obs``, ``next_obs`` float32 ``[N, d]``, ``actions`` float32 ``[N, n]`` in [-1, 1], ``rewards`` float32
            ``[N]``, ``terminateds`` bool ``[N]``.
        hiddens: Widths of all networks.
        batch_size: Rows of an update.
        num_updates: Updates in one call of `step`, in whole epochs: at least so many.
        num_actions: Actions drawn for each row and source.
        bc_iters: Updates in which the actor clones.
        min_q_weight: Weight of the conservative term.
        rates: Of Adam, for ``actor``, ``critics`` and ``log_alpha``.
        gamma: Discount per step.
        tau: Step of the target critics towards the critics after each update.
        seed: Of weights, permutations and draws.
    """
    action_dim = data["actions"].shape[-1]
    rates = rates or {"actor": 1e-4, "critics": 1e-3, "log_alpha": 1e-3}
    actor: Any = Actor(hiddens, action_dim)
    critic: Any = Critic(hiddens)
    optimizers = {name: optax.adam(rate, eps=1e-7) for name, rate in rates.items()}
    row = {name: jnp.asarray(column[:1]) for name, column in data.items()}
    actor_key, critic_key = jax.random.split(jax.random.key(seed + 1))
    critics = jax.vmap(critic.init, in_axes=(0, None, None))(
        jax.random.split(critic_key, 2), row["obs"], row["actions"]
    )
    params = {"actor": actor.init(actor_key, row["obs"]), "critics": critics, "log_alpha": jnp.float32(0)}
    states = {name: optimizers[name].init(own) for name, own in params.items()}
    state = State(params, jax.tree.map(jnp.copy, critics), states, jnp.int32(0))

    update = Update(actor, critic, optimizers, action_dim, num_actions, bc_iters, min_q_weight, gamma, tau)
    return compiled_loop(update, state, data, batch_size=batch_size, num_updates=num_updates, seed=seed)
