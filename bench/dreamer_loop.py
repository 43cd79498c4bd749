"""DreamerV3 on one gymnax environment in one file: env step, windows and update, all of it one scan in one program.

Networks and terms of losses are this project's modules (`jaxrl_stack.algorithms.dreamerv3`), so that what is compared
is everything around them; optax's Adam, a ring of items, and what a plain script leaves out: no metrics but the loss,
no checkpoints, no evaluation, no state of learning rates, one environment, one update per env step.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from bench.baselines.dqn_loop import Loop
from bench.baselines.environments import PREFIX, make_environment
from jaxrl_stack.algorithms.dreamerv3 import losses
from jaxrl_stack.algorithms.dreamerv3.actor_critic import Actor, imagine, make_critic
from jaxrl_stack.algorithms.dreamerv3.sizes import MODEL_SIZES
from jaxrl_stack.algorithms.dreamerv3.world_model import Latent, WorldModel
from jaxrl_stack.ops.world_models import ReturnRange, update_range

GAMMA, LAMBDA, ENTROPY, DECAY, TAU = 0.997, 0.95, 3e-4, 0.99, 0.02
RATES = {"model": (1e-4, 1e-8, 1000.0), "actor": (3e-5, 1e-5, 100.0), "critic": (3e-5, 1e-5, 100.0)}
"""Adam's step size and epsilon, and the largest norm of gradients."""


class Networks(NamedTuple):
    """World model, actor and critic: modules, or their graphs or parameters."""

    model: Any
    actor: Any
    critic: Any

    @classmethod
    def make(cls, size: str, observation_space: Any, action_space: Any, seed: int) -> Networks:
        rngs, sizes = nnx.Rngs(seed), MODEL_SIZES[size]
        width = sizes.gru_units + sizes.num_categoricals * sizes.num_classes
        return cls(
            WorldModel(sizes, observation_space, int(action_space.n), rngs=rngs),
            Actor(sizes, width, action_space, rngs=rngs),
            make_critic(sizes, width, rngs=rngs),
        )


class Learned(NamedTuple):
    params: Networks
    slow_critic: Any
    opt_states: Any
    returns: ReturnRange


class State(NamedTuple):
    learned: Learned
    ring: Any
    place: jax.Array
    size: jax.Array
    env_state: Any
    obs: jax.Array
    is_first: jax.Array
    reward: jax.Array
    latent: Latent
    last_action: jax.Array
    key: jax.Array


class Script:
    """Functions of the training loop, with its environment, networks and settings."""

    def __init__(self, env_name: str, size: str, seed: int, batch: tuple[int, int], horizon: int, capacity: int):
        spaces: Any
        if env_name.startswith(PREFIX):
            from bench.jax_envs import jax_env_class

            spaces = jax_env_class(env_name)()
        else:
            from jaxrl_stack.env.jax_env import GymnaxEnv

            spaces = GymnaxEnv(env_name)
        self.env, self.env_params = make_environment(env_name)
        self.batch, self.horizon, self.capacity = batch, horizon, capacity
        networks = Networks.make(size, spaces.observation_space, spaces.action_space, seed)
        self.num_actions = int(spaces.action_space.n)
        graphs, params = zip(*map(nnx.split, networks), strict=True)
        self.graphs, self.params = Networks(*graphs), Networks(*params)
        self.optimizers = {
            name: optax.chain(optax.clip_by_global_norm(limit), optax.adam(rate, eps=eps))
            for name, (rate, eps, limit) in RATES.items()
        }

    def networks(self, params: Networks) -> Networks:
        """Builds the modules with the given parameters."""
        return Networks(*map(nnx.merge, self.graphs, params))

    def init(self, key: jax.Array) -> State:
        """Creates the state before the first step: environment, empty replay ring, optimizers."""
        key, reset_key = jax.random.split(key)
        obs, env_state = self.env.reset(reset_key, self.env_params)
        scalars = dict.fromkeys(("action", "reward", "first", "last", "terminated"), jnp.zeros(self.capacity))
        opt_states = {name: own.init(getattr(self.params, name)) for name, own in self.optimizers.items()}
        slow = jax.tree.map(jnp.copy, self.params.critic)
        learned = Learned(self.params, slow, opt_states, ReturnRange.init())
        latent = jax.tree.map(lambda x: x[None], self.networks(self.params).model.initial())
        ring = {"obs": jnp.zeros((self.capacity, *obs.shape)), **scalars}
        zero = jnp.int32(0)
        one_hot = jnp.zeros((1, self.num_actions))
        return State(learned, ring, zero, zero, env_state, obs, jnp.bool_(True), jnp.float32(0), latent, one_hot, key)

    def env_step(self, state: State, is_random: jax.Array) -> State:
        """Acts, steps the environment, and writes the step to the replay ring; at the end of an episode also the last
        observation.
        """
        key, z_key, act_key, random_key, step_key = jax.random.split(state.key, 5)
        networks = self.networks(state.learned.params)
        encoded = networks.model.encode(networks.model.normalised(state.obs[None]))
        z_noise, act_noise = networks.model.noise(z_key, (1,)), networks.actor.noise(act_key, (1,))
        latent, _ = networks.model.observe_step(state.latent, state.last_action, state.is_first[None], encoded, z_noise)
        chosen = jnp.argmax(networks.actor(latent.features).sample(act_noise)[0])
        action = jnp.where(is_random, jax.random.randint(random_key, (), 0, self.num_actions), chosen)
        obs, env_state, reward, terminated, truncated, info = self.env.step(
            step_key, state.env_state, action, self.env_params
        )
        ended = terminated | truncated
        item = {"obs": state.obs, "action": action, "reward": state.reward, "first": state.is_first}
        final = {"obs": info["final_observation"], "action": action, "reward": reward, "first": False}
        item |= {"last": False, "terminated": False}
        final |= {"last": True, "terminated": terminated}
        after = (state.place + 1) % self.capacity

        def written(name: str, x: jax.Array) -> jax.Array:
            return x.at[state.place].set(jnp.float32(item[name])).at[after].set(jnp.float32(final[name]))

        ring = {name: written(name, x) for name, x in state.ring.items()}
        num = 1 + ended.astype(jnp.int32)
        return State(
            state.learned,
            ring,
            (state.place + num) % self.capacity,
            jnp.minimum(state.size + num, self.capacity),
            env_state,
            obs,
            ended,
            jnp.where(ended, 0.0, reward),
            latent,
            jax.nn.one_hot(action, self.num_actions)[None],
            key,
        )

    def windows(self, state: State, key: jax.Array) -> dict[str, jax.Array]:
        """Draws windows of consecutive steps from the replay ring, ``[B, T, ...]``."""
        number, length = self.batch
        start = jax.random.randint(key, (number, 1), 0, state.size - length + 1)
        oldest = jnp.where(state.size < self.capacity, 0, state.place)
        rows = (oldest + start + jnp.arange(length)) % self.capacity
        return {name: x[rows] for name, x in state.ring.items()}

    def loss(self, params: Networks, learned: Learned, batch: Any, key: jax.Array) -> tuple[jax.Array, ReturnRange]:
        """Computes the sum of the losses of world model, actor and critic, each of which has a gradient only for its
        own network; returns also the updated range of returns.
        """
        fixed, networks = jax.lax.stop_gradient, self.networks(params)
        observe_key, dream_key = jax.random.split(key)
        model, normalised = networks.model, networks.model.normalised(batch["obs"])
        actions = jax.nn.one_hot(batch["action"].astype(jnp.int32), self.num_actions)
        terminated = batch["terminated"] > 0
        observed = model.observe(normalised, actions, batch["first"] > 0, observe_key)
        rows = losses.world_model_rows(model, observed, normalised, batch["reward"], terminated)
        still = self.networks(params._replace(model=fixed(params.model)))
        start = jax.tree.map(lambda x: fixed(x.reshape(-1, *x.shape[2:])), observed.states)
        dream = imagine(still.model, still.actor, start, self.horizon, dream_key, differentiable=False)
        settings = {"gamma": GAMMA, "lambda_": LAMBDA}
        judged = fixed(losses.judged(still.model, still.critic, dream, terminated.reshape(-1), **settings))
        returns = update_range(learned.returns, judged.targets, DECAY)
        slow = nnx.merge(self.graphs.critic, learned.slow_critic)
        critic = losses.critic_means(still.critic, slow, dream.features, judged)
        actor = losses.actor_means(
            still.actor, dream.features, dream.actions, judged, returns, ENTROPY, differentiable=False
        )
        return jnp.mean(rows["total"]) + critic["total"] + actor["total"], returns

    def update(self, learned: Learned, batch: Any, key: jax.Array) -> tuple[Learned, jax.Array]:
        """One gradient step of all networks, and one of the slow critic towards the critic."""
        (loss, returns), gradients = jax.value_and_grad(self.loss, has_aux=True)(learned.params, learned, batch, key)
        params, opt_states = {}, {}
        for name, optimizer in self.optimizers.items():
            updates, opt_states[name] = optimizer.update(getattr(gradients, name), learned.opt_states[name])
            params[name] = optax.apply_updates(getattr(learned.params, name), updates)
        slow = optax.incremental_update(params["critic"], learned.slow_critic, TAU)
        return Learned(Networks(**params), slow, opt_states, returns), loss

    def iteration(self, state: State, _: Any) -> tuple[State, jax.Array]:
        """One env step and one update."""
        state = self.env_step(state, jnp.bool_(False))
        key, window_key, update_key = jax.random.split(state.key, 3)
        learned, loss = self.update(state.learned, self.windows(state, window_key), update_key)
        return state._replace(learned=learned, key=key), loss


def make_loop(
    num_steps: int = 64,
    size: str = "nano",
    seed: int = 0,
    *,
    env_name: str = "CartPole-v1",
    batch: tuple[int, int] = (16, 64),
    horizon: int = 15,
    capacity: int = 100_000,
) -> Loop:
    """Compiles the training loop, and fills the replay ring with ``B T`` random steps.

    Args:
        num_steps: Env steps, and updates, of a call.
        size: See `jaxrl_stack.algorithms.dreamerv3.sizes`.
        seed: Of everything random.
        env_name: A gymnax id, or a name of `make_environment`, with vector observations and discrete actions.
        batch: ``(B, T)``: windows and their length.
        horizon: Imagined steps.
        capacity: Items in the ring.
    """
    script = Script(env_name, size, seed, batch, horizon, capacity)
    state = jax.jit(script.init)(jax.random.key(seed))
    fill = jax.jit(
        lambda state: jax.lax.scan(
            lambda state, _: (script.env_step(state, jnp.bool_(True)), None), state, length=batch[0] * batch[1]
        )[0]
    )
    run = jax.jit(lambda state: jax.lax.scan(script.iteration, state, length=num_steps), donate_argnums=0)
    held = [fill(state)]

    def step() -> dict[str, float]:
        held[0], loss = run(held[0])
        return {"loss": float(loss[-1])}

    started = time.perf_counter()
    step()
    return Loop(step, num_steps, num_steps, time.perf_counter() - started)
