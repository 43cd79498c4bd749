"""Probabilities of recorded actions under the policy of a module."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.default_observations import has_action_mask
from jaxrl_stack.policy.recorded_episodes import RecordedEpisodes

if TYPE_CHECKING:
    from jaxrl_stack.core.rl_module.rl_module import RLModule

ROWS_AT_ONCE = 4096
"""Rows that the module is called on at a time."""


class ActingBy(NamedTuple):
    """Way in which a policy chooses actions: exploring or greedy, and the probability of random actions.

    Attributes:
        explore: Whether it draws actions from its distribution, as in training; else it takes the greedy one.
        epsilon_greedy: Probability of a random action instead, of Discrete actions.
    """

    explore: bool = True
    epsilon_greedy: float = 0.0


class ActionProbabilities(NamedTuple):
    """Probabilities of a module's policy for the R rows of a table of recorded steps.

    Attributes:
        log_probs: float32 ``[R]``, log of the probability, or density, of the recorded action.
        probs: float32 ``[R, n]``, probabilities of all n Discrete actions; None for other action spaces.
        samples: ``[R, S, ...]``, S actions that the policy draws per row, or ``[R, 1, ...]``, its greedy action; None
            for Discrete actions or if S is 0.
    """

    log_probs: np.ndarray
    probs: np.ndarray | None
    samples: Any | None


def action_probabilities(
    module: RLModule,
    columns: dict[str, Any],
    episodes: RecordedEpisodes,
    acting: ActingBy,
    *,
    num_samples: int = 0,
    seed: int = 0,
) -> ActionProbabilities:
    """Computes the probabilities of recorded actions under a module's policy.

    Args:
        module: Module with its weights.
        columns: ``{column: [R, ...]}``, ``OBS`` as the module takes them and ``ACTIONS`` at least.
        episodes: Episodes of these rows. Modules with a recurrent state run over them from their beginnings.
        acting: Exploration mode of the module.
        num_samples: S, number of actions to draw per row, if actions are not Discrete.
        seed: Seed of these draws.

    Raises:
        ValueError: If the probabilities of the policy's actions are unknown, or `acting` does not fit its spaces.
    """
    _check_acting(module, acting)
    key, epsilon = jax.random.key(seed), jnp.float32(acting.epsilon_greedy)
    number = int(module.action_space.n) if isinstance(module.action_space, gym.spaces.Discrete) else None
    of_rows = _compiled(distribution_class(module, acting), acting.explore, number, num_samples)
    found: dict[str, Any] = {}
    for n, (rows, is_own, batch) in enumerate(_batches(module, columns, episodes)):
        actions = jax.tree.map(lambda x: np.asarray(x)[rows], columns[Columns.ACTIONS])  # noqa: B023
        own = jax.device_get(of_rows(_outputs(module, batch, acting), actions, epsilon, jax.random.fold_in(key, n)))
        for name, tree in own.items():
            if name not in found:
                shape = (len(columns[Columns.REWARDS]),)
                found[name] = jax.tree.map(lambda x: np.zeros(shape + x.shape[rows.ndim :], x.dtype), tree)  # noqa: B023
            for whole, part in zip(jax.tree.leaves(found[name]), jax.tree.leaves(tree), strict=True):
                whole[rows[is_own]] = part[is_own]
    return ActionProbabilities(found["log_probs"], found.get("probs"), found.get("samples"))


def distribution_class(module: RLModule, acting: ActingBy) -> Any:
    """Returns the class of the module's action distribution: for exploration if `acting.explore` is True, otherwise for
    inference.
    """
    if acting.explore:
        return module.get_exploration_action_dist_cls()
    return module.get_inference_action_dist_cls()


def _check_acting(module: RLModule, acting: ActingBy) -> None:
    space, epsilon = module.action_space, acting.epsilon_greedy
    if not 0 <= epsilon <= 1:
        raise ValueError(f"epsilon_greedy={epsilon} must be a probability from 0 to 1.")
    if epsilon and (not isinstance(space, gym.spaces.Discrete) or has_action_mask(module.observation_space)):
        raise ValueError(
            f"epsilon_greedy={epsilon} is only for Discrete actions without a mask; the spaces are "
            f"{module.observation_space} and {space}. Leave it at 0."
        )
    if not acting.explore and not is_countable(space):
        raise ValueError(
            f"explore=False: a greedy policy over {space} has no probability densities, which probability "
            "ratios need. Set explore=True to estimate the policy that draws its actions."
        )


def is_countable(space: Any) -> bool:
    """Whether actions of a space have probabilities (discrete spaces) instead of densities."""
    countable = gym.spaces.Discrete | gym.spaces.MultiDiscrete | gym.spaces.MultiBinary
    if isinstance(space, gym.spaces.Dict):
        return all(map(is_countable, space.spaces.values()))
    if isinstance(space, gym.spaces.Tuple):
        return all(map(is_countable, space.spaces))
    return isinstance(space, countable)


def _batches(
    module: RLModule, columns: dict[str, Any], episodes: RecordedEpisodes
) -> Iterator[tuple[np.ndarray, np.ndarray, dict[str, Any]]]:
    """Yields batches of recorded observations for the module, all of equal shape: ``(row indices into the columns, mask
    of valid rows, batch)``.
    """

    def observations(rows: np.ndarray) -> Any:
        return jax.tree.map(lambda x: np.asarray(x)[rows], columns[Columns.OBS])

    if not module.is_stateful():
        num_rows = len(columns[Columns.REWARDS])
        size = min(ROWS_AT_ONCE, num_rows)
        for start in range(0, num_rows, size):
            rows = np.minimum(np.arange(start, start + size), num_rows - 1)
            yield rows, np.ones(size, bool), {Columns.OBS: observations(rows)}
        return
    # The steps of an episode and the row behind them, and then whatever fills the shape.
    all_rows = np.concatenate([episodes.rows, episodes.final_rows[:, None]], axis=1)
    np.put_along_axis(all_rows, episodes.lengths[:, None], episodes.final_rows[:, None], axis=1)
    is_own = np.arange(all_rows.shape[1]) <= episodes.lengths[:, None]
    size = max(1, min(ROWS_AT_ONCE // all_rows.shape[1], len(all_rows)))
    initial = jax.device_get(module.get_initial_state())
    state = jax.tree.map(lambda x: np.broadcast_to(x, (size, *np.shape(x))), initial)
    for start in range(0, len(all_rows), size):
        own = np.minimum(np.arange(start, start + size), len(all_rows) - 1)
        yield all_rows[own], is_own[own], {Columns.OBS: observations(all_rows[own]), Columns.STATE_IN: state}


def _outputs(module: RLModule, batch: dict[str, Any], acting: ActingBy) -> dict[str, Any]:
    outputs = module.forward_exploration(batch) if acting.explore else module.forward_inference(batch)
    if Columns.ACTION_DIST_INPUTS in outputs or (not acting.explore and Columns.ACTIONS in outputs):
        return outputs
    if not acting.explore:
        raise ValueError(
            f"forward_inference() of {type(module).__name__} returns neither {Columns.ACTIONS!r} nor "
            f"{Columns.ACTION_DIST_INPUTS!r}. Return one of them."
        )
    raise ValueError(
        f"forward_exploration() of {type(module).__name__} returns no {Columns.ACTION_DIST_INPUTS!r}, so the "
        "probabilities of its actions are unknown. Estimate the greedy policy with explore=False. If the policy takes "
        "a random action instead of the greedy one with probability p, also set epsilon_greedy=p."
    )


@functools.lru_cache(maxsize=32)
def _compiled(distribution_cls: Any, explore: bool, num_actions: int | None, num_samples: int) -> Any:
    """Returns a compiled function that computes the fields of `ActionProbabilities`.

    The function is ``(module outputs, recorded actions, probability of random actions, key) -> {field: array}``. The
    function is cached, so that all batches use one compiled program.
    """
    if num_actions is not None:
        return jax.jit(functools.partial(_of_discrete, distribution_cls, explore, num_actions))
    return jax.jit(functools.partial(_of_others, distribution_cls, explore, num_samples))


def _of_discrete(
    distribution_cls: Any,
    explore: bool,
    num_actions: int,
    outputs: dict[str, Any],
    actions: jax.Array,
    epsilon: jax.Array,
    key: jax.Array,
) -> dict[str, jax.Array]:
    if explore:
        distribution = distribution_cls.from_logits(outputs[Columns.ACTION_DIST_INPUTS])
        every = jnp.arange(num_actions, dtype=actions.dtype)
        logp = jax.vmap(lambda action: distribution.logp(jnp.broadcast_to(action, actions.shape)), out_axes=-1)(every)
        probs = jnp.exp(logp.astype(jnp.float32))
    else:
        probs = jax.nn.one_hot(_greedy(distribution_cls, outputs), num_actions)
    probs = (1 - epsilon) * probs + epsilon / num_actions
    of_action = jnp.take_along_axis(probs, actions[..., None].astype(jnp.int32), axis=-1)[..., 0]
    return {"log_probs": jnp.log(of_action), "probs": probs}


def _of_others(
    distribution_cls: Any,
    explore: bool,
    num_samples: int,
    outputs: dict[str, Any],
    actions: Any,
    epsilon: jax.Array,
    key: jax.Array,
) -> dict[str, Any]:
    if not explore:
        greedy = _greedy(distribution_cls, outputs)
        batch_axes = outputs[Columns.ACTION_DIST_INPUTS].ndim - 1
        pairs = zip(jax.tree.leaves(greedy), jax.tree.leaves(actions), strict=True)
        equal = [(a == b).reshape(*b.shape[:batch_axes], -1).all(axis=-1) for a, b in pairs]
        log_probs = jnp.log(functools.reduce(jnp.logical_and, equal).astype(jnp.float32))
        samples = jax.tree.map(lambda x: jnp.expand_dims(x, batch_axes), greedy)
        return {"log_probs": log_probs, **({"samples": samples} if num_samples else {})}
    distribution = distribution_cls.from_logits(outputs[Columns.ACTION_DIST_INPUTS])
    found: dict[str, Any] = {"log_probs": distribution.logp(actions).astype(jnp.float32)}
    if num_samples:
        batch_axes = found["log_probs"].ndim
        drawn = distribution.sample(key=key, sample_shape=(num_samples,))
        found["samples"] = jax.tree.map(lambda x: jnp.moveaxis(x, 0, batch_axes), drawn)
    return found


def _greedy(distribution_cls: Any, outputs: dict[str, Any]) -> Any:
    if Columns.ACTION_DIST_INPUTS not in outputs:
        return outputs[Columns.ACTIONS]
    distribution = distribution_cls.from_logits(outputs[Columns.ACTION_DIST_INPUTS])
    return distribution.to_deterministic().sample(key=jax.random.key(0))
