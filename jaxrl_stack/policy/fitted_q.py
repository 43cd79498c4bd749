"""Fitted Q evaluation: learns the Q-values of a fixed policy from recorded steps, in one compiled program."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.models.configs import MLPHeadConfig
from jaxrl_stack.policy.recorded_actions import ActionProbabilities
from jaxrl_stack.utils.spaces import flatten_observation

_ROWS_AT_ONCE = 8192


@dataclasses.dataclass(frozen=True)
class FittedQConfig:
    """Settings of fitted Q evaluation (Le, Voloshin and Yue, 2019, algorithm 3), with a slowly updated target network.

    Attributes:
        fcnet_hiddens: Widths of the network's layers.
        fcnet_activation: Activation of these layers.
        lr: Learning rate of Adam at the beginning; it falls to 0 along a half cosine.
        num_updates: Number of gradient steps.
        minibatch_size: Recorded steps per gradient step.
        tau: Step of the target network towards the network, per update. None: ``10 h / num_updates``, at most 1,
            with the horizon of the discount ``h = 1 / (1 - gamma)``, at most 1000.
        num_action_samples: Actions of the policy that values are means over, where actions are not Discrete.
    """

    fcnet_hiddens: Sequence[int] = (128, 128)
    fcnet_activation: str = "relu"
    lr: float = 2e-3
    num_updates: int = 4000
    minibatch_size: int = 512
    tau: float | None = None
    num_action_samples: int = 8

    @classmethod
    def of(cls, settings: Mapping[str, Any] | None) -> FittedQConfig:
        """Creates a `FittedQConfig` from the dict in the argument ``q_model_config={...}``. Missing entries have their
        default values; None selects all defaults.

        Raises:
            ValueError: For an unknown name or a value out of range.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        unknown = sorted((settings or {}).keys() - set(names))
        if unknown:
            raise ValueError(f"q_model_config has no entry {unknown}. Valid entries are {names}.")
        config = cls(**(settings or {}))
        config = dataclasses.replace(config, fcnet_hiddens=tuple(config.fcnet_hiddens))
        for name in ("lr", "num_updates", "minibatch_size", "tau", "num_action_samples"):
            value = getattr(config, name)
            if value is not None and not (value > 0 and (name != "tau" or value <= 1)):
                raise ValueError(
                    f"q_model_config={{{name!r}: {getattr(config, name)!r}}} is out of range: all numbers must be "
                    "above 0, and 'tau' at most 1."
                )
        return config


class QValues(NamedTuple):
    """Learned Q-values and state values for all R rows of a table of recorded steps.

    Attributes:
        q_values: float32 ``[R]``, of the recorded action; without meaning in final rows.
        values: float32 ``[R]``, mean over the policy's actions.
        loss: Mean squared error of the last updates, in the units of the scaled rewards.
    """

    q_values: np.ndarray
    values: np.ndarray
    loss: float


class _Table(NamedTuple):
    """Training data of fitted Q evaluation, as arrays with R rows.

    `actions` are indices ``[R]`` or vectors ``[R, d]``; `policy` contains the probabilities ``[R, n]`` of n actions, or
    S sampled actions per row, ``[R, S, d]``.
    """

    observations: Any
    actions: Any
    rewards: Any
    terminateds: Any
    policy: Any


def fitted_q_evaluation(
    columns: Mapping[str, Any],
    rows: np.ndarray,
    found: ActionProbabilities,
    spaces: tuple[gym.Space, gym.Space],
    *,
    gamma: float,
    config: FittedQConfig,
    seed: int = 0,
) -> QValues:
    """Learns the Q-values of a fixed policy from recorded steps.

    ``Q(s_t, a_t) <- r_t + gamma (1 - terminated_t) mean_{a ~ pi} Q'(s_{t+1}, a)``; the next state of the step in row i
    is the one of row i + 1, also where an episode was truncated. Observations and rewards are scaled by the data.

    Args:
        columns: ``{column: [R, ...]}``: OBS, ACTIONS, REWARDS, TERMINATEDS.
        rows: int32 ``[N]``, the rows to learn from.
        found: Actions of the policy in these rows.
        spaces: Spaces of the module's observations and actions.
        gamma: Discount.
        config: Settings.
        seed: Seed of the network and minibatches.
    """
    if config.tau is None:
        copies = 10.0 / max(1.0 - gamma, 1e-3)
        config = dataclasses.replace(config, tau=min(1.0, copies / config.num_updates))
    table, scale = _table(columns, rows, found, spaces, gamma)
    is_discrete = found.probs is not None
    width = 0 if is_discrete else table.actions.shape[-1]
    network = MLPHeadConfig(
        input_dims=[table.observations.shape[-1] + width],
        hidden_layer_dims=list(config.fcnet_hiddens),
        hidden_layer_activation=config.fcnet_activation,
        output_layer_dim=table.policy.shape[-1] if is_discrete else 1,
    ).build(rngs=nnx.Rngs(seed))
    graphdef, params = nnx.split(network)
    key = jax.random.fold_in(jax.random.key(seed), 1)
    program = _program(graphdef, is_discrete, config)
    q_values, values, loss = jax.device_get(program(params, table, jnp.asarray(rows), jnp.float32(gamma), key))
    return QValues(q_values * scale, values * scale, float(loss))


def _table(
    columns: Mapping[str, Any],
    rows: np.ndarray,
    found: ActionProbabilities,
    spaces: tuple[gym.Space, gym.Space],
    gamma: float,
) -> tuple[_Table, np.float32]:
    """Builds the training data of fitted Q evaluation, with scaled observations and rewards; also returns the number by
    which rewards were divided.
    """
    observation_space, action_space = spaces
    shapes = [np.shape(x)[1:] for x in jax.tree.leaves(columns[Columns.OBS])]
    if any(len(shape) > 1 for shape in shapes):
        raise ValueError(
            f"'dm' and 'dr' need vector observations, but the recorded observations have the shapes {shapes}. Set "
            "methods=('is', 'pdis', 'wis')."
        )
    observations = np.asarray(flatten_observation(observation_space, columns[Columns.OBS], 1))
    mean, std = observations[rows].mean(axis=0), observations[rows].std(axis=0)
    rewards = np.asarray(columns[Columns.REWARDS], np.float32)
    # Values are about 1 then, however long episodes are.
    scale = np.float32(max(np.sqrt(np.mean(np.square(rewards[rows]))) / max(1 - gamma, 0.05), 1e-6))
    if found.probs is not None:
        actions, policy = np.asarray(columns[Columns.ACTIONS], np.int32), found.probs
    else:
        actions = np.asarray(flatten_observation(action_space, columns[Columns.ACTIONS], 1))
        policy = np.asarray(flatten_observation(action_space, found.samples, 2))
    table = _Table(
        observations=(observations - mean) / np.maximum(std, 1e-3),
        actions=actions,
        rewards=rewards / scale,
        terminateds=np.asarray(columns[Columns.TERMINATEDS], bool),
        policy=policy,
    )
    return jax.tree.map(jnp.asarray, table), scale


def _q_of(network: Any, table: _Table, rows: jax.Array, is_discrete: bool) -> jax.Array:
    """Returns the Q-values of the recorded actions in the given rows, float32 ``[N]``."""
    observations, actions = table.observations[rows], table.actions[rows]
    if is_discrete:
        return jnp.take_along_axis(network(observations), actions[:, None], axis=-1)[:, 0]
    return network(jnp.concatenate([observations, actions], axis=-1))[:, 0]


def _value_of(network: Any, table: _Table, rows: jax.Array, is_discrete: bool) -> jax.Array:
    """Returns the state values in the given rows, the mean of Q over the policy's actions, float32 ``[N]``."""
    observations, policy = table.observations[rows], table.policy[rows]
    if is_discrete:
        return jnp.sum(network(observations) * policy, axis=-1)
    repeated = jnp.broadcast_to(observations[:, None], (*policy.shape[:2], observations.shape[-1]))
    return jnp.mean(network(jnp.concatenate([repeated, policy], axis=-1))[..., 0], axis=-1)


@functools.lru_cache(maxsize=8)
def _program(graphdef: Any, is_discrete: bool, config: FittedQConfig) -> Any:
    """Builds the compiled program of fitted Q evaluation, ``(params, table, rows, gamma, key) -> (Q [R], V [R],
    loss)``.

    The program trains the Q-network on the given rows of `table`, then computes the Q-values and state values of all R
    rows of `table`. ``loss`` is the mean loss of the last 100 updates.
    """
    optimizer = optax.adam(optax.cosine_decay_schedule(config.lr, config.num_updates))
    tau = config.tau
    assert tau is not None, "worked out from the discount"
    merged = functools.partial(nnx.merge, graphdef)

    def run(params: Any, table: _Table, rows: jax.Array, gamma: jax.Array, key: jax.Array) -> Any:
        def update(carry: tuple[Any, Any, Any], key: jax.Array) -> tuple[Any, jax.Array]:
            params, target, state = carry
            own = rows[jax.random.randint(key, (config.minibatch_size,), 0, len(rows))]
            following = _value_of(merged(target), table, own + 1, is_discrete)
            goals = table.rewards[own] + gamma * jnp.where(table.terminateds[own], 0.0, following)

            def loss_of(params: Any) -> jax.Array:
                return jnp.mean(jnp.square(_q_of(merged(params), table, own, is_discrete) - goals))

            loss, gradients = jax.value_and_grad(loss_of)(params)
            changes, state = optimizer.update(gradients, state, params)
            params = optax.apply_updates(params, changes)
            target = optax.incremental_update(params, target, tau)
            return (params, target, state), loss

        carry, losses = jax.lax.scan(
            update, (params, params, optimizer.init(params)), jax.random.split(key, config.num_updates)
        )
        network = merged(carry[0])
        every = jnp.arange(len(table.rewards))
        q_values, values = jax.lax.map(
            lambda row: (
                _q_of(network, table, row[None], is_discrete)[0],
                _value_of(network, table, row[None], is_discrete)[0],
            ),
            every,
            batch_size=_ROWS_AT_ONCE,
        )
        return q_values, values, jnp.mean(losses[-100:])

    return jax.jit(run)
