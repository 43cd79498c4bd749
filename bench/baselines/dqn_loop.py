"""DQN on a gymnax environment in one file, as a good user writes it: the whole of it is a scan, in one program.

A flax network, optax, and flashbax's item buffer; every iteration steps all environments, adds what they saw, and,
once there is enough, takes one gradient step on a sampled batch (Mnih et al., 2015, "Human-level control through deep
reinforcement learning"). It imports nothing of jaxrl_stack and leaves out what public scripts leave out, too: a
truncated episode counts as a terminated one, and the next observation of an ended episode is the first of the next.
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


@dataclasses.dataclass(frozen=True)
class Loop:
    """A compiled training loop.

    Args:
        step: Runs a number of iterations, waits for them, returns their metrics as floats.
        steps_per_iteration: Environment steps in one call of `step`.
        updates_per_iteration: Gradient steps in one call of `step`.
        compile_s: Seconds spent on tracing and compiling.
    """

    step: Callable[[], dict[str, float]]
    steps_per_iteration: int
    updates_per_iteration: int
    compile_s: float


class QNetwork(nn.Module):
    """Action values of an MLP with relu."""

    hiddens: tuple[int, ...]
    num_actions: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for width in self.hiddens:
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(self.num_actions)(x)


class Transition(NamedTuple):
    obs: jax.Array
    action: jax.Array
    reward: jax.Array
    ended: jax.Array


class State(NamedTuple):
    train: TrainState
    target_params: Any
    buffer: Any
    env_state: Any
    obs: jax.Array
    running_return: jax.Array
    num_steps: jax.Array
    key: jax.Array


def make_loop(
    num_envs: int = 10,
    num_steps: int = 10_000,
    hiddens: tuple[int, ...] = (120, 84),
    seed: int = 0,
    *,
    env_name: str = "CartPole-v1",
    lr: float = 2.5e-4,
    gamma: float = 0.99,
    batch_size: int = 128,
    capacity: int = 10_000,
    learning_starts: int = 10_000,
    target_update_every: int = 500,
    epsilon: tuple[float, float, int] = (1.0, 0.05, 250_000),
    make_buffer: Callable[..., Any] | None = None,
) -> Loop:
    """Compiles the training loop.

    Args:
        num_envs: Environments stepped side by side.
        num_steps: Environment steps of one call, over all environments.
        hiddens: Layer widths of the network.
        seed: Seed of everything random.
        env_name: A gymnax id, or a name of `make_environment`, with vector observations and a discrete action space.
        lr: Adam's step size.
        gamma: Discount per step.
        batch_size: Rows of one update; there is one update per step of all environments.
        capacity: Transitions in the buffer.
        learning_starts: Environment steps before the first update.
        target_update_every: Environment steps between copies of the parameters to the target network.
        epsilon: First and last share of random actions, and the environment steps in between.
        make_buffer: Function with the arguments of flashbax's `make_item_buffer`, such as `item_ring.make_item_ring`;
            None: flashbax's.

    Raises:
        ValueError: `num_steps` is no multiple of `num_envs`.
    """
    if num_steps % num_envs:
        raise ValueError(f"num_steps={num_steps} must be a multiple of num_envs={num_envs}")
    env, env_params = make_environment(env_name)
    network: Any = QNetwork(hiddens, env.num_actions)
    if make_buffer is None:
        import flashbax

        make_buffer = flashbax.make_item_buffer
    buffer = make_buffer(max_length=capacity, min_length=batch_size, sample_batch_size=batch_size, add_batches=True)
    first_epsilon, last_epsilon, epsilon_steps = epsilon
    vmap_reset = jax.vmap(env.reset, in_axes=(0, None))
    vmap_step = jax.vmap(env.step, in_axes=(0, 0, 0, None))

    key, reset_key, init_key = jax.random.split(jax.random.key(seed), 3)
    obs, env_state = vmap_reset(jax.random.split(reset_key, num_envs), env_params)
    params = network.init(init_key, obs)
    train = TrainState.create(apply_fn=network.apply, params=params, tx=optax.adam(lr))
    example = {
        "obs": obs[0],
        "action": jnp.int32(0),
        "reward": jnp.float32(0),
        "ended": jnp.bool_(False),
        "next_obs": obs[0],
    }
    state = State(
        train,
        jax.tree.map(jnp.copy, params),
        buffer.init(example),
        env_state,
        obs,
        jnp.zeros(num_envs),
        jnp.int32(0),
        key,
    )

    def update(train: TrainState, target_params: Any, batch: Any) -> tuple[TrainState, jax.Array]:
        next_value = network.apply(target_params, batch["next_obs"]).max(-1)
        target = batch["reward"] + gamma * (1.0 - batch["ended"]) * next_value

        def loss_fn(params: Any) -> jax.Array:
            q = network.apply(params, batch["obs"])
            chosen = jnp.take_along_axis(q, batch["action"][:, None], axis=-1)[:, 0]
            return jnp.mean((chosen - target) ** 2)

        loss, grads = jax.value_and_grad(loss_fn)(train.params)
        return train.apply_gradients(grads=grads), loss

    def iteration(state: State, _: None) -> tuple[State, Any]:
        key, explore_key, action_key, step_key, sample_key = jax.random.split(state.key, 5)
        share = jnp.clip(state.num_steps / epsilon_steps, 0.0, 1.0)
        epsilon = first_epsilon + share * (last_epsilon - first_epsilon)
        greedy = network.apply(state.train.params, state.obs).argmax(-1)
        random = jax.random.randint(action_key, (num_envs,), 0, env.num_actions)
        action = jnp.where(jax.random.uniform(explore_key, (num_envs,)) < epsilon, random, greedy)
        obs, env_state, reward, terminated, truncated, _ = vmap_step(
            jax.random.split(step_key, num_envs), state.env_state, action, env_params
        )
        ended = terminated | truncated
        rows = {"obs": state.obs, "action": action, "reward": reward, "ended": ended, "next_obs": obs}
        buffer_state = buffer.add(state.buffer, rows)
        steps = state.num_steps + num_envs

        def learn() -> tuple[TrainState, jax.Array]:
            batch = buffer.sample(buffer_state, sample_key).experience
            return update(state.train, state.target_params, batch)

        train, loss = jax.lax.cond(
            (steps > learning_starts) & buffer.can_sample(buffer_state), learn, lambda: (state.train, jnp.float32(0))
        )
        target_params = jax.lax.cond(
            steps % target_update_every == 0, lambda: train.params, lambda: state.target_params
        )
        running_return = state.running_return + reward
        episode_returns = jnp.where(ended, running_return, 0.0)
        running_return = jnp.where(ended, 0.0, running_return)
        state = State(train, target_params, buffer_state, env_state, obs, running_return, steps, key)
        return state, (ended.sum(), episode_returns.sum(), loss)

    def run(state: State) -> tuple[State, jax.Array]:
        state, (num_episodes, return_sum, loss) = jax.lax.scan(iteration, state, None, length=num_steps // num_envs)
        return state, jnp.stack([num_episodes.sum().astype(jnp.float32), return_sum.sum(), loss.mean()])

    started = time.perf_counter()
    compiled = jax.jit(run, donate_argnums=0).lower(state).compile()
    compile_s = time.perf_counter() - started
    held = [state]

    def step() -> dict[str, float]:
        held[0], metrics = compiled(held[0])
        num_episodes, return_sum, loss = jax.device_get(metrics).tolist()
        return {
            "num_episodes": num_episodes,
            "episode_return_mean": return_sum / num_episodes if num_episodes else float("nan"),
            "loss": loss,
        }

    return Loop(step, num_steps, num_steps // num_envs, compile_s)
