"""Behaviour cloning of recorded steps in one file, as a good user writes it: many updates are a scan, in one program.

A flax network and optax's Adam; the data lies on the device, an epoch is a permutation of it, an update a minibatch of
that. It imports nothing of jaxrl_stack. Steps that do not fill a minibatch at the end of an epoch are left out.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState


@dataclasses.dataclass(frozen=True)
class Loop:
    """A compiled training loop.

    Args:
        step: Runs a number of updates, waits for them, returns their metrics as floats.
        steps_per_iteration: Rows that one call of `step` trains on.
        compile_s: Seconds spent on tracing and compiling.
    """

    step: Callable[[], dict[str, float]]
    steps_per_iteration: int
    compile_s: float


class Policy(nn.Module):
    """MLP with tanh that returns action logits."""

    hiddens: tuple[int, ...]
    num_actions: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for width in self.hiddens:
            x = nn.tanh(nn.Dense(width)(x))
        return nn.Dense(self.num_actions)(x)


def update(network: Policy, train: TrainState, minibatch: tuple[jax.Array, jax.Array]) -> tuple[TrainState, jax.Array]:
    """One step of Adam on the negative mean log-probability of a minibatch, and that loss."""

    def loss_of(params):
        rows, taken = minibatch
        logits = jnp.asarray(network.apply(params, rows))
        return optax.softmax_cross_entropy_with_integer_labels(logits, taken).mean()

    loss, gradients = jax.value_and_grad(loss_of)(train.params)
    return train.apply_gradients(grads=gradients), loss


def make_loop(
    obs: jax.Array,
    actions: jax.Array,
    *,
    batch_size: int = 1024,
    num_updates: int = 500,
    hiddens: tuple[int, ...] = (64, 64),
    lr: float = 1e-3,
    seed: int = 0,
) -> Loop:
    """Creates the training loop over the rows of a data set.

    Args:
        obs: float32 ``[N, d]``.
        actions: int32 ``[N]``, from 0 on.
        batch_size: Rows of an update.
        num_updates: Updates in one call of `step`, in whole epochs: at least so many.
        hiddens: Widths of the network.
        lr: Of Adam.
        seed: Of weights and permutations.
    """
    per_epoch = len(obs) // batch_size
    num_epochs = math.ceil(num_updates / per_epoch)
    network = Policy(hiddens, int(actions.max()) + 1)
    key, weights_key = jax.random.split(jax.random.key(seed))
    train = TrainState.create(
        apply_fn=network.apply, params=network.init(weights_key, jnp.asarray(obs[:1])), tx=optax.adam(lr)
    )

    def epoch(carry, key):
        train, data = carry
        order = jax.random.permutation(key, len(obs))[: per_epoch * batch_size].reshape(per_epoch, batch_size)

        def of_rows(train, rows):
            return update(network, train, jax.tree.map(lambda x: x[rows], data))

        train, losses = jax.lax.scan(of_rows, train, order)
        return (train, data), losses[-1]

    @jax.jit
    def run(train, data, key):
        key, own = jax.random.split(key)
        (train, _), losses = jax.lax.scan(epoch, (train, data), jax.random.split(own, num_epochs))
        return train, key, losses[-1]

    data = (jnp.asarray(obs), jnp.asarray(actions))
    started = time.perf_counter()
    compiled = run.lower(train, data, key).compile()
    compile_s = time.perf_counter() - started
    state = (train, key)

    def step() -> dict[str, float]:
        nonlocal state
        train, key, loss = compiled(state[0], data, state[1])
        state = (train, key)
        return {"loss": float(loss)}

    return Loop(step, num_epochs * per_epoch * batch_size, compile_s)
