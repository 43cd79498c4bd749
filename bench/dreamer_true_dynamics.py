"""DreamerV3's actor and critic alone, in rollouts of CartPole's true dynamics instead of a world model's.

    python -m bench.dreamer_true_dynamics --json bench/dreamer_true_dynamics.jsonl

If returns fall in such a run, the world model is not the cause. The command trains networks of size "micro" for 30,000
updates, with the settings of `VARIANTS`, which add one change after the other, and reports the mean length of 20 greedy
episodes after every 500 updates. An update follows every two env steps, as with a training ratio of 512.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from bench import harness
from bench.journal import Journal
from jaxrl_stack.algorithms.dreamerv3 import losses
from jaxrl_stack.algorithms.dreamerv3.actor_critic import Actor, imagine, make_critic
from jaxrl_stack.algorithms.dreamerv3.sizes import MODEL_SIZES
from jaxrl_stack.ops.masks import where_rows
from jaxrl_stack.ops.world_models import ReturnRange, update_range

SIZE = MODEL_SIZES["micro"]
RANGES = np.array([2.4, 3.0, 0.21, 3.0], np.float32)
HORIZON, NUM_EPISODES, MAX_LENGTH = 15, 20, 500
STEPS_PER_UPDATE, NUM_RANDOM, CAPACITY = 2, 1024, 100_000


class State(NamedTuple):
    """Positions and velocities of cart and pole, float32 ``[N, 4]``."""

    values: jax.Array

    @property
    def features(self) -> jax.Array:
        return self.values / RANGES


class TrueDynamics:
    """gymnasium's CartPole-v1 as a world model without errors."""

    def noise(self, key: jax.Array, lead: Any) -> None:
        return None

    def imagine_step(self, state: State, actions: jax.Array, noise: Any) -> State:
        _, velocity, angle, spin = jnp.moveaxis(state.values, -1, 0)
        force = 10.0 * (2 * actions[..., 1] - 1)
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        pushed = (force + 0.05 * spin**2 * sin) / 1.1
        turned = (9.8 * sin - cos * pushed) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        moved = pushed - 0.05 * turned * cos / 1.1
        changes = jnp.stack([velocity, moved, spin, turned], -1)
        return State(state.values + 0.02 * changes)

    def has_ended(self, features: jax.Array) -> jax.Array:
        position, angle = features[..., 0] * RANGES[0], features[..., 2] * RANGES[2]
        return (jnp.abs(position) > 2.4) | (jnp.abs(angle) > np.deg2rad(12))

    def continue_logits(self, features: jax.Array) -> jax.Array:
        return jnp.where(self.has_ended(features), -10.0, 10.0)

    def reward_of(self, features: jax.Array) -> jax.Array:
        return jnp.ones(features.shape[:-1])


DYNAMICS: Any = TrueDynamics()


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of actor and critic, with the default values of `DreamerV3Config`.

    Args:
        actor_lr: Learning rate of the actor.
        critic_lr: Learning rate of the critic.
        entropy_scale: Weight of the entropy.
        gamma: Discount.
        num_rows: Rollouts of an update.
        updates: Number of updates.
        interval: Number of updates from one evaluation to the next.
        seed: Of everything random.
    """

    actor_lr: float = 3e-5
    critic_lr: float = 3e-5
    entropy_scale: float = 3e-4
    gamma: float = 0.997
    num_rows: int = 256
    updates: int = 30_000
    interval: int = 500
    seed: int = 0


VARIANTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "critic_lr=1e-3": {"critic_lr": 1e-3},
    "critic_lr=1e-3, actor_lr=3e-4": {"critic_lr": 1e-3, "actor_lr": 3e-4},
    "critic_lr=1e-3, actor_lr=3e-4, entropy_scale=3e-3": {"critic_lr": 1e-3, "actor_lr": 3e-4, "entropy_scale": 3e-3},
}


class Carry(NamedTuple):
    """State of a training.

    Attributes:
        params: Parameters of actor and critic.
        slow: Slow copy of the parameters.
        moments: State of the optimizers.
        recorded: float32 ``[CAPACITY, 4]``, visited states.
        number: Number of visited states.
        env: float32 ``[1, 4]``, state of the environment.
        step: int ``[1]``, step of the episode.
        returns: Moving percentiles of returns.
    """

    params: Any
    slow: Any
    moments: Any
    recorded: jax.Array
    number: jax.Array
    env: jax.Array
    step: jax.Array
    returns: ReturnRange


def fresh(key: jax.Array, number: int) -> State:
    """States after a reset."""
    return State(jax.random.uniform(key, (number, 4), minval=-0.05, maxval=0.05))


class Training:
    """Training of actor and critic on states that the policy itself visits.

    Args:
        settings: See `Settings`.
    """

    def __init__(self, settings: Settings):
        self.settings = settings
        rngs = nnx.Rngs(settings.seed)
        nets = nnx.Dict(actor=Actor(SIZE, 4, gym.spaces.Discrete(2), rngs=rngs), critic=make_critic(SIZE, 4, rngs=rngs))
        self._graph, self._params = nnx.split(nets)
        rates = {"actor": settings.actor_lr, "critic": settings.critic_lr}
        self._optimizer = optax.multi_transform(
            {
                name: optax.chain(optax.clip_by_global_norm(100.0), optax.adam(lr, eps=1e-5))
                for name, lr in rates.items()
            },
            lambda params: {name: jax.tree.map(lambda _, name=name: name, params[name]) for name in rates},
        )
        self.advance = jax.jit(self._advance)

    def init(self) -> Carry:
        """Returns the start: untrained networks, and `NUM_RANDOM` random states."""
        params = {name: self._params[name] for name in ("actor", "critic")}
        for_states, for_env = jax.random.split(jax.random.key(self.settings.seed))
        spread = jax.random.uniform(for_states, (NUM_RANDOM, 4), minval=-0.5, maxval=0.5) * RANGES
        recorded = jnp.zeros((CAPACITY, 4)).at[:NUM_RANDOM].set(spread)
        return Carry(
            params, params, self._optimizer.init(params), recorded, jnp.int32(NUM_RANDOM), fresh(for_env, 1).values,
            jnp.zeros(1, int), ReturnRange.init(),
        )  # fmt: skip

    def _nets(self, params: Any) -> Any:
        return nnx.merge(self._graph, nnx.State(params))

    def _loss(self, params: Any, slow: Any, start: Any, returns: ReturnRange, key: jax.Array) -> Any:
        own, slow, settings = self._nets(params), self._nets(slow), self.settings
        imagined = imagine(DYNAMICS, own.actor, start, HORIZON, key, differentiable=False)
        has_ended = DYNAMICS.has_ended(start.features)
        judged = losses.judged(DYNAMICS, own.critic, imagined, has_ended, gamma=settings.gamma, lambda_=0.95)
        returns = update_range(returns, judged.targets, 0.99)
        features = imagined.features
        of_critic = losses.critic_means(own.critic, slow.critic, features, judged)
        of_actor = losses.actor_means(
            own.actor, features, imagined.actions, judged, returns, settings.entropy_scale, differentiable=False
        )
        numbers = {"value": jnp.mean(judged.values), "return_range": returns.scale, "entropy": of_actor["entropy"]}
        return of_actor["total"] + of_critic["total"], (returns, numbers)

    def _env_step(self, actor: Actor, carry: Carry, key: jax.Array) -> Carry:
        for_action, for_reset = jax.random.split(key)
        actions = actor(State(carry.env).features).sample(jax.random.uniform(for_action, (1,)))
        state = DYNAMICS.imagine_step(State(carry.env), actions, None)
        recorded = jax.lax.dynamic_update_slice(carry.recorded, state.values, (carry.number % CAPACITY, 0))
        is_over = DYNAMICS.has_ended(state.features) | (carry.step >= MAX_LENGTH - 1)
        env = where_rows(is_over, fresh(for_reset, 1), state).values
        return carry._replace(
            recorded=recorded, number=carry.number + 1, env=env, step=jnp.where(is_over, 0, carry.step + 1)
        )

    def _update(self, carry: Carry, key: jax.Array) -> tuple[Carry, dict[str, jax.Array]]:
        *for_steps, for_rows, for_loss = jax.random.split(key, STEPS_PER_UPDATE + 2)
        actor = self._nets(carry.params).actor
        for for_step in for_steps:
            carry = self._env_step(actor, carry, for_step)
        stored = jnp.minimum(carry.number, CAPACITY)
        start = State(carry.recorded[jax.random.randint(for_rows, (self.settings.num_rows,), 0, stored)])
        gradients, (returns, numbers) = jax.grad(self._loss, has_aux=True)(
            carry.params, carry.slow, start, carry.returns, for_loss
        )
        changes, moments = self._optimizer.update(gradients, carry.moments, carry.params)
        params = optax.apply_updates(carry.params, changes)
        slow = jax.tree.map(functools.partial(optax.incremental_update, step_size=0.02), params, carry.slow)
        return carry._replace(params=params, slow=slow, moments=moments, returns=returns), numbers

    def _advance(self, carry: Carry, key: jax.Array) -> tuple[Carry, jax.Array, dict[str, jax.Array]]:
        """Makes `interval` updates. Returns the mean length of greedy episodes and numbers of the last update, too."""
        for_updates, for_episodes = jax.random.split(key)
        carry, numbers = jax.lax.scan(self._update, carry, jax.random.split(for_updates, self.settings.interval))
        last = jax.tree.map(lambda x: x[-1], numbers)
        return carry, jnp.mean(self.lengths(carry.params, for_episodes)), last

    def lengths(self, params: Any, key: jax.Array) -> jax.Array:
        """Returns the lengths of greedy episodes, int ``[NUM_EPISODES]``, of at most `MAX_LENGTH` steps."""
        actor = self._nets(params).actor

        def step(carry: Any, _: Any) -> Any:
            state, is_running = carry
            state = DYNAMICS.imagine_step(state, actor(state.features).sample(None), None)
            return (state, is_running & ~DYNAMICS.has_ended(state.features)), is_running

        start = fresh(key, NUM_EPISODES), jnp.ones(NUM_EPISODES, bool)
        return jnp.sum(jax.lax.scan(step, start, None, length=MAX_LENGTH)[1], axis=0)


def trained(settings: Settings) -> dict[str, Any]:
    """Trains actor and critic.

    Returns:
        ``curve``: mean greedy length at every interval; ``first``: updates after which it was at least
        475; ``lowest``: the lowest length from then on; ``value``, ``return_range`` and ``entropy`` of the last update.
    """
    training = Training(settings)
    carry, curve, numbers = training.init(), [], {}
    for i in range(settings.updates // settings.interval):
        key = jax.random.fold_in(jax.random.key(settings.seed + 1), i)
        carry, length, numbers = training.advance(carry, key)
        curve.append(round(float(length), 1))
    first = next((i for i, length in enumerate(curve) if length >= 475), None)
    own = {name: round(float(x), 3) for name, x in numbers.items()}
    reached = {"first": None, "lowest": None}
    if first is not None:
        reached = {"first": (first + 1) * settings.interval, "lowest": min(curve[first:])}
    return {**reached, **own, "curve": curve}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=Settings.updates)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="append each run to FILE; skip runs that it has")
    args = parser.parse_args(arguments)
    journal = Journal(args.json, harness.commit())
    for name, changed in VARIANTS.items():
        for seed in range(args.seeds):
            settings = Settings(updates=args.updates, seed=seed, **changed)
            line = journal.once(dataclasses.asdict(settings), functools.partial(trained, settings))
            shown = {key: line[key] for key in ("first", "lowest", "value", "return_range", "entropy")}
            print(f"{name}, seed {seed}: {shown}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
