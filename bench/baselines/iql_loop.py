"""IQL on recorded steps in one file, as a good user writes it: many updates are a scan, in one program.

As `bench.baselines.cql_loop`, from which networks and the loop over minibatches are (Kostrikov et al., 2021, "Offline
reinforcement learning with implicit Q-learning"). All losses are for the parameters of before the update, as RLlib has
it. It imports nothing of jaxrl_stack.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from bench.baselines.cql_loop import MLP, Actor, Critic, Loop, State, compiled_loop, critics_of, recorded_log_prob


class Value(nn.Module):
    """Value of an observation."""

    hiddens: tuple[int, ...]

    @nn.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        return nn.Dense(1)(MLP(self.hiddens)(obs))[..., 0]


def make_loop(
    data: Mapping[str, np.ndarray],
    *,
    hiddens: tuple[int, ...] = (256, 256),
    batch_size: int = 256,
    num_updates: int = 100,
    rate: float = 3e-4,
    expectile: float = 0.8,
    beta: float = 0.1,
    gamma: float = 0.99,
    tau: float = 1.0,
    seed: int = 0,
) -> Loop:
    """Creates the training loop over the rows of a data set, by default with RLlib's settings except the batch size.

    Args:
        data: As in `bench.baselines.cql_loop.make_loop`, like `hiddens`, `batch_size`, `num_updates`, `gamma`, `tau`
            and `seed`.
        rate: Of Adam, for all networks.
        expectile: Which one the value function learns.
        beta: Weight of advantages in the exponent.
    """
    actor: Any = Actor(hiddens, data["actions"].shape[-1])
    critic: Any = Critic(hiddens)
    value: Any = Value(hiddens)
    row = {name: jnp.asarray(column[:1]) for name, column in data.items()}
    actor_key, critic_key, value_key = jax.random.split(jax.random.key(seed + 1), 3)
    critics = jax.vmap(critic.init, in_axes=(0, None, None))(
        jax.random.split(critic_key, 2), row["obs"], row["actions"]
    )
    optimizer = optax.adam(rate, eps=1e-7)
    params = {
        "actor": actor.init(actor_key, row["obs"]),
        "critics": critics,
        "value": value.init(value_key, row["obs"]),
    }
    state = State(params, jax.tree.map(jnp.copy, critics), {"all": optimizer.init(params)}, jnp.int32(0))

    def update(state: State, batch: Mapping[str, jax.Array], key: jax.Array) -> tuple[State, jax.Array]:
        del key  # nothing is drawn
        target_q = critics_of(critic, state.targets, batch["obs"], batch["actions"]).min(0)
        after = jnp.where(batch["terminateds"], 0.0, value.apply(state.params["value"], batch["next_obs"]))
        target = batch["rewards"] + gamma * after

        def loss_of(params: Any) -> jax.Array:
            advantage = target_q - value.apply(params["value"], batch["obs"])
            weight = jax.lax.stop_gradient(jnp.minimum(jnp.exp(beta * advantage), 100.0))
            log_prob = recorded_log_prob(actor.apply(params["actor"], batch["obs"]), batch["actions"])
            q = critics_of(critic, params["critics"], batch["obs"], batch["actions"])
            of_value = jnp.where(advantage > 0, expectile, 1.0 - expectile) * jnp.square(advantage)
            return jnp.mean(of_value - weight * log_prob + 0.5 * jnp.square(q - target).sum(0))

        loss, grads = jax.value_and_grad(loss_of)(state.params)
        steps, own = optimizer.update(grads, state.optimizers["all"])
        new: Any = optax.apply_updates(state.params, steps)
        targets = optax.incremental_update(new["critics"], state.targets, tau)
        return State(new, targets, {"all": own}, state.num_updates + 1), loss

    return compiled_loop(update, state, data, batch_size=batch_size, num_updates=num_updates, seed=seed)
