"""SAC on a gymnax environment in one file, as a good user writes it: the whole of it is a scan, in one program.

Flax networks, optax, and flashbax's item buffer; every iteration steps all environments, adds what they saw, and,
once there is enough, takes one gradient step of both critics, the actor and the temperature on a sampled batch
(Haarnoja et al., 2018, "Soft actor-critic algorithms and applications"). It imports nothing of jaxrl_stack and leaves
out what public scripts leave out, too: the next observation of an ended episode is the first of the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

from bench.baselines.dqn_loop import Loop
from bench.baselines.environments import make_environment

LOG_STD_RANGE = (-5.0, 2.0)


class Actor(nn.Module):
    """Mean and log standard deviation of a Gaussian, before tanh."""

    hiddens: tuple[int, ...]
    action_dim: int

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        for width in self.hiddens:
            x = nn.relu(nn.Dense(width)(x))
        mean, log_std = nn.Dense(self.action_dim)(x), nn.Dense(self.action_dim)(x)
        return mean, jnp.clip(log_std, *LOG_STD_RANGE)


class Critic(nn.Module):
    """Value of an observation and an action."""

    hiddens: tuple[int, ...]

    @nn.compact
    def __call__(self, obs: jax.Array, action: jax.Array) -> jax.Array:
        x = jnp.concatenate([obs, action], axis=-1)
        for width in self.hiddens:
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(1)(x)[..., 0]


class Networks(NamedTuple):
    actor: TrainState
    critics: TrainState
    target_params: Any
    log_alpha: Any
    alpha_opt_state: Any


class State(NamedTuple):
    networks: Networks
    buffer: Any
    env_state: Any
    obs: jax.Array
    running_return: jax.Array
    num_steps: jax.Array
    key: jax.Array


def make_loop(
    num_envs: int = 1,
    num_steps: int = 200,
    hiddens: tuple[int, ...] = (256, 256),
    seed: int = 0,
    *,
    env_name: str = "Pendulum-v1",
    lr: float = 3e-4,
    gamma: float = 0.99,
    tau: float = 0.005,
    batch_size: int = 256,
    capacity: int = 100_000,
    learning_starts: int = 300,
    make_buffer: Callable[..., Any] | None = None,
) -> Loop:
    """Compiles the training loop.

    Args:
        num_envs: Environments stepped side by side.
        num_steps: Environment steps of one call, over all environments.
        hiddens: Layer widths of all networks.
        seed: Seed of everything random.
        env_name: A gymnax id, or a name of `make_environment`, with vector observations and a bounded action space.
        lr: Adam's step size, for all parameters.
        gamma: Discount per step.
        tau: Step of the target critics towards the critics after each update.
        batch_size: Rows of one update; there is one update per step of all environments.
        capacity: Transitions in the buffer.
        learning_starts: Environment steps before the first update.
        make_buffer: Function with the arguments of flashbax's `make_item_buffer`, such as `item_ring.make_item_ring`;
            None: flashbax's.

    Raises:
        ValueError: `num_steps` is no multiple of `num_envs`.
    """
    if num_steps % num_envs:
        raise ValueError(f"num_steps={num_steps} must be a multiple of num_envs={num_envs}")
    env, env_params = make_environment(env_name)
    space: Any = env.action_space(env_params)
    (action_dim,) = space.shape
    scale, centre = (space.high - space.low) / 2.0, (space.high + space.low) / 2.0
    actor: Any = Actor(hiddens, action_dim)
    critic: Any = Critic(hiddens)
    alpha_tx = optax.adam(lr)
    if make_buffer is None:
        import flashbax

        make_buffer = flashbax.make_item_buffer
    buffer = make_buffer(max_length=capacity, min_length=batch_size, sample_batch_size=batch_size, add_batches=True)
    vmap_reset = jax.vmap(env.reset, in_axes=(0, None))
    vmap_step = jax.vmap(env.step, in_axes=(0, 0, 0, None))

    def critics_of(params: Any, obs: jax.Array, action: jax.Array) -> jax.Array:
        return jax.vmap(critic.apply, in_axes=(0, None, None))(params, obs, action)

    def sample_action(params: Any, obs: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """An action in [-1, 1] and its log-probability there."""
        mean, log_std = actor.apply(params, obs)
        noise = jax.random.normal(key, mean.shape)
        raw = mean + jnp.exp(log_std) * noise
        log_prob = -0.5 * noise**2 - log_std - 0.5 * jnp.log(2.0 * jnp.pi)
        log_prob -= 2.0 * (jnp.log(2.0) - raw - nn.softplus(-2.0 * raw))
        return jnp.tanh(raw), log_prob.sum(-1)

    key, reset_key, actor_key, critic_key = jax.random.split(jax.random.key(seed), 4)
    obs, env_state = vmap_reset(jax.random.split(reset_key, num_envs), env_params)
    actor_params = actor.init(actor_key, obs)
    critic_params = jax.vmap(critic.init, in_axes=(0, None, None))(
        jax.random.split(critic_key, 2), obs, jnp.zeros((num_envs, action_dim))
    )
    log_alpha = jnp.float32(0)
    networks = Networks(
        TrainState.create(apply_fn=actor.apply, params=actor_params, tx=optax.adam(lr)),
        TrainState.create(apply_fn=critic.apply, params=critic_params, tx=optax.adam(lr)),
        jax.tree.map(jnp.copy, critic_params),
        log_alpha,
        alpha_tx.init(log_alpha),
    )
    example = {
        "obs": obs[0],
        "action": jnp.zeros(action_dim),
        "reward": jnp.float32(0),
        "terminated": jnp.bool_(False),
        "next_obs": obs[0],
    }
    state = State(networks, buffer.init(example), env_state, obs, jnp.zeros(num_envs), jnp.int32(0), key)

    def update(networks: Networks, batch: Any, key: jax.Array) -> tuple[Networks, jax.Array]:
        next_key, new_key = jax.random.split(key)
        alpha = jnp.exp(networks.log_alpha)
        next_action, next_log_prob = sample_action(networks.actor.params, batch["next_obs"], next_key)
        next_q = critics_of(networks.target_params, batch["next_obs"], next_action).min(0)
        target = batch["reward"] + gamma * (1.0 - batch["terminated"]) * (next_q - alpha * next_log_prob)

        def critic_loss(params: Any) -> jax.Array:
            q = critics_of(params, batch["obs"], batch["action"])
            return 0.5 * jnp.mean((q - target) ** 2, axis=-1).sum()

        loss, grads = jax.value_and_grad(critic_loss)(networks.critics.params)
        critics = networks.critics.apply_gradients(grads=grads)

        def actor_loss(params: Any) -> tuple[jax.Array, jax.Array]:
            action, log_prob = sample_action(params, batch["obs"], new_key)
            q = critics_of(critics.params, batch["obs"], action).min(0)
            return jnp.mean(alpha * log_prob - q), log_prob

        grads, log_prob = jax.grad(actor_loss, has_aux=True)(networks.actor.params)
        new_actor = networks.actor.apply_gradients(grads=grads)
        alpha_grad = -jnp.mean(log_prob - action_dim)
        alpha_update, alpha_opt_state = alpha_tx.update(alpha_grad, networks.alpha_opt_state)
        target_params = optax.incremental_update(critics.params, networks.target_params, tau)
        log_alpha = networks.log_alpha + alpha_update
        return Networks(new_actor, critics, target_params, log_alpha, alpha_opt_state), loss

    def iteration(state: State, _: None) -> tuple[State, Any]:
        key, action_key, step_key, sample_key, update_key = jax.random.split(state.key, 5)
        action = sample_action(state.networks.actor.params, state.obs, action_key)[0]
        obs, env_state, reward, terminated, truncated, _ = vmap_step(
            jax.random.split(step_key, num_envs), state.env_state, centre + scale * action, env_params
        )
        ended = terminated | truncated
        rows = {"obs": state.obs, "action": action, "reward": reward, "terminated": terminated, "next_obs": obs}
        buffer_state = buffer.add(state.buffer, rows)
        steps = state.num_steps + num_envs

        def learn() -> tuple[Networks, jax.Array]:
            return update(state.networks, buffer.sample(buffer_state, sample_key).experience, update_key)

        networks, loss = jax.lax.cond(
            (steps > learning_starts) & buffer.can_sample(buffer_state), learn, lambda: (state.networks, jnp.float32(0))
        )
        running_return = state.running_return + reward
        episode_returns = jnp.where(ended, running_return, 0.0)
        running_return = jnp.where(ended, 0.0, running_return)
        state = State(networks, buffer_state, env_state, obs, running_return, steps, key)
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
