"""IPPO as JaxMARL trains it: one network for all agents, feed-forward, on environments of its MPE.

`mappo_loop` has what is otherwise in MAPPO, as a `Method`.

Written anew after ``baselines/IPPO/ippo_ff_mpe.py`` of FLAIROx/JaxMARL (Apache-2.0), with the values of
``baselines/IPPO/config/ippo_ff_mpe.yaml`` and without hydra, wandb and distrax. It computes what the script does:
environments that reset themselves in every step, agents stacked to rows, batches shuffled by a sorted permutation, the
value loss with clipped changes, advantages normalised per minibatch. An episode that time cuts off counts as
terminated, as there. All updates of a call are one program.
"""

# pyright: reportMissingImports=false
# JaxMARL need not be installed where this is checked.

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of JaxMARL's yaml file; only `total_timesteps` differs, the number of steps of the comparison.

    Attributes:
        env_id: Of JaxMARL; its agents have equal spaces.
        num_envs: Environments side by side.
        num_steps: Steps of each per update.
        num_epochs: Passes over these.
        num_minibatches: Minibatches per pass.
        total_timesteps: Env steps over which the learning rate falls to 0; the yaml has 1e7.
    """

    env_id: str = "MPE_simple_spread_v3"
    num_envs: int = 16
    num_steps: int = 128
    num_epochs: int = 4
    num_minibatches: int = 4
    total_timesteps: int = 1_000_000
    lr: float = 2.5e-4
    gamma: float = 0.99
    lambda_: float = 0.95
    clip: float = 0.2
    entropy_coeff: float = 0.01
    vf_coeff: float = 0.5
    max_grad_norm: float = 0.5

    @property
    def steps_per_update(self) -> int:
        return self.num_envs * self.num_steps

    @property
    def num_updates(self) -> int:
        return self.total_timesteps // self.steps_per_update


@dataclasses.dataclass(frozen=True)
class Loop:
    """Training loop; `step` makes the updates of one call and waits for them."""

    step: Callable[[], Mapping[str, float]]
    steps_per_iteration: int


class Rows(NamedTuple):
    """Recorded columns of a step, arrays ``[agents * envs, ...]``; `obs` is the result of `Method.see`."""

    obs: Any
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    reward: jax.Array
    done: jax.Array


class Returns(NamedTuple):
    """Returns of the running episode and of the last finished episode of each environment, ``[envs]``."""

    running: jax.Array
    finished: jax.Array


class ActorCritic(nn.Module):
    """Two layers of 64 with tanh for the policy, two for the value."""

    num_actions: int

    @nn.compact
    def __call__(self, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        def tower(outputs: int, scale: float) -> jax.Array:
            x = obs
            for _ in range(2):
                x = nn.tanh(nn.Dense(64, kernel_init=nn.initializers.orthogonal(np.sqrt(2)))(x))
            return nn.Dense(outputs, kernel_init=nn.initializers.orthogonal(scale))(x)

        return tower(self.num_actions, 0.01), tower(1, 1.0)[..., 0]


def log_prob_of(logits: jax.Array, action: jax.Array) -> jax.Array:
    """Log-probability of each row's action."""
    return jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], axis=-1)[..., 0]


def advantages_of(rows: Rows, last_value: jax.Array, s: Settings) -> jax.Array:
    """Advantages by GAE, ``[T, agents * envs]``."""

    def back(carry: Any, row: Rows) -> Any:
        after, next_value = carry
        goes_on = 1.0 - row.done
        delta = row.reward + s.gamma * next_value * goes_on - row.value
        advantage = delta + s.gamma * s.lambda_ * goes_on * after
        return (advantage, row.value), advantage

    return jax.lax.scan(back, (jnp.zeros_like(last_value), last_value), rows, reverse=True, unroll=8)[1]


def rows_of(by_agent: Mapping[str, jax.Array], agents: Sequence[str]) -> jax.Array:
    """Stacks arrays by agent to rows, one for each agent of each environment, ``[agents * envs, ...]``."""
    stacked = jnp.stack([by_agent[agent] for agent in agents])
    return stacked.reshape(-1, *stacked.shape[2:])


@dataclasses.dataclass(frozen=True)
class Method:
    """Differences between JaxMARL's scripts for IPPO and MAPPO.

    Attributes:
        network: ``(number of actions, settings)`` -> the module, ``(what is seen) -> (logits, values)``.
        see: ``(observations by agent, agents)`` -> what the module sees, leaves ``[agents * envs, ...]``.
        clipped: A settings' optimizer with its gradients clipped, from the optimizer without.
        shuffles_rows: Minibatches are drawn from all rows; else from the agents of all environments, with all of their
            steps.
    """

    network: Callable[[int, Any], Any]
    see: Callable[[Mapping[str, jax.Array], Sequence[str]], Any]
    clipped: Callable[[Settings, optax.GradientTransformation], optax.GradientTransformation]
    shuffles_rows: bool

    def minibatches(self, batch: Any, key: jax.Array, s: Settings) -> Any:
        """Shuffles a batch ``[T, R, ...]`` and splits it into minibatches, leaves ``[M, T * R / M, ...]``."""
        if self.shuffles_rows:
            flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)
            order = jax.random.permutation(key, len(jax.tree.leaves(flat)[0]))
            return jax.tree.map(lambda x: x[order].reshape(s.num_minibatches, -1, *x.shape[1:]), flat)
        order = jax.random.permutation(key, jax.tree.leaves(batch)[0].shape[1])

        def taken(x: jax.Array) -> jax.Array:
            return x[:, order].swapaxes(0, 1).reshape(s.num_minibatches, -1, *x.shape[2:])

        return jax.tree.map(taken, batch)


IPPO = Method(
    network=lambda num_actions, s: ActorCritic(num_actions),
    see=rows_of,
    clipped=lambda s, optimizer: optax.chain(optax.clip_by_global_norm(s.max_grad_norm), optimizer),
    shuffles_rows=True,
)


def make_env_step(env: Any, agents: Sequence[str], forward: Any, s: Settings, see: Any) -> Any:
    """Returns a function for `jax.lax.scan` that steps all environments."""

    def env_step(carry: Any, _: None) -> Any:
        params, env_state, obs, returns, key = carry
        key, action_key, step_key = jax.random.split(key, 3)
        seen = see(obs, agents)
        logits, value = forward(params, seen)
        action = jax.random.categorical(action_key, logits)
        actions = dict(zip(agents, action.reshape(len(agents), s.num_envs), strict=True))
        obs, env_state, reward, done, _ = jax.vmap(env.step)(jax.random.split(step_key, s.num_envs), env_state, actions)
        row = Rows(
            seen,
            action,
            log_prob_of(logits, action),
            value,
            rows_of(reward, agents),
            rows_of(done, agents).astype(jnp.float32),
        )
        earned, over = returns.running + sum(reward[agent] for agent in agents), done["__all__"]
        returns = Returns(jnp.where(over, 0.0, earned), jnp.where(over, earned, returns.finished))
        return (params, env_state, obs, returns, key), (row, returns.finished)

    return env_step


def make_minibatch_step(forward: Any, optimizer: Any, s: Settings) -> Any:
    """Returns a function for `jax.lax.scan` that makes a gradient step on a minibatch."""

    def loss(params: Any, rows: Rows, advantage: jax.Array, target: jax.Array) -> jax.Array:
        logits, value = forward(params, rows.obs)
        clipped = rows.value + jnp.clip(value - rows.value, -s.clip, s.clip)
        value_loss = 0.5 * jnp.maximum((value - target) ** 2, (clipped - target) ** 2).mean()
        ratio = jnp.exp(log_prob_of(logits, rows.action) - rows.log_prob)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        actor_loss = -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - s.clip, 1 + s.clip) * advantage).mean()
        log_probs = jax.nn.log_softmax(logits)
        entropy = -(jnp.exp(log_probs) * log_probs).sum(-1).mean()
        return actor_loss + s.vf_coeff * value_loss - s.entropy_coeff * entropy

    def minibatch_step(carry: Any, batch: Any) -> Any:
        params, opt_state = carry
        gradients = jax.grad(loss)(params, *batch)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), None

    return minibatch_step


def make_loop(s: Settings, seed: int, updates_per_call: int, method: Method = IPPO) -> Loop:
    """Creates the training loop of a seed, and resets its environments.

    Args:
        s: The settings.
        seed: Of parameters, environments and minibatches.
        updates_per_call: Updates of one call of `Loop.step`, in one program.
        method: IPPO or MAPPO.

    Returns:
        A loop whose `step` returns ``episode_return``: the mean over the call's last update of the sum over agents that
        the newest finished episode of each environment has earned.
    """
    # Its import starts JAX's backend, which fixes the number of CPU devices.
    from jaxmarl.registration import make

    env = make(s.env_id)
    agents = list(env.agents)
    network = method.network(env.action_space(agents[0]).n, s)
    forward: Any = network.apply
    steps_per_pass = s.num_minibatches * s.num_epochs
    schedule: Any = optax.linear_schedule(s.lr, 0.0, s.num_updates)
    adam = optax.adam(lambda count: schedule(jnp.asarray(count) // steps_per_pass), eps=1e-5)
    optimizer = method.clipped(s, adam)

    env_step = make_env_step(env, agents, forward, s, method.see)
    minibatch_step = make_minibatch_step(forward, optimizer, s)

    def update(carry: Any, _: None) -> Any:
        params, opt_state, env_state, obs, returns, key = carry
        runner = (params, env_state, obs, returns, key)
        (_, env_state, obs, returns, key), (rows, finished) = jax.lax.scan(env_step, runner, None, s.num_steps)
        advantages = advantages_of(rows, forward(params, method.see(obs, agents))[1], s)
        batch = (rows, advantages, advantages + rows.value)

        def epoch(carry: Any, epoch_key: jax.Array) -> Any:
            return jax.lax.scan(minibatch_step, carry, method.minibatches(batch, epoch_key, s))[0], None

        key, epoch_key = jax.random.split(key)
        (params, opt_state), _ = jax.lax.scan(epoch, (params, opt_state), jax.random.split(epoch_key, s.num_epochs))
        return (params, opt_state, env_state, obs, returns, key), finished.mean()

    def start() -> Any:
        params_key, env_key, key = jax.random.split(jax.random.PRNGKey(seed), 3)
        obs, env_state = jax.vmap(env.reset)(jax.random.split(env_key, s.num_envs))
        params = network.init(params_key, method.see(obs, agents))
        env_state = jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), env_state)
        zeros = jnp.zeros(s.num_envs)
        return params, optimizer.init(params), env_state, obs, Returns(zeros, zeros), key

    run = jax.jit(lambda carry: jax.lax.scan(update, carry, None, updates_per_call), donate_argnums=0)
    carry = jax.jit(start)()

    def step() -> dict[str, float]:
        nonlocal carry
        carry, means = run(carry)
        return {"episode_return": float(means[-1])}

    return Loop(step, updates_per_call * s.steps_per_update)
