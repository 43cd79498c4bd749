"""DreamerV3's three losses (Hafner et al., 2023, arXiv:2301.04104, equations 4, 5 and 7 to 11)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxrl_stack.algorithms.dreamerv3.actor_critic import Actor, Imagined
from jaxrl_stack.algorithms.dreamerv3.networks import MLP
from jaxrl_stack.algorithms.dreamerv3.world_model import LAYERS_PER_ROW, Observed, WorldModel, atoms, mean_in_symlog
from jaxrl_stack.ops.chunking import mean_of_rows
from jaxrl_stack.ops.returns import lambda_returns
from jaxrl_stack.ops.world_models import ReturnRange, balanced_kl, imagined_weights, symexp, symlog, two_hot_rows

DYNAMICS_SCALE, REPRESENTATION_SCALE = 0.5, 0.1


def world_model_rows(
    model: WorldModel,
    observed: Observed,
    normalised: dict[str, jax.Array],
    rewards: jax.Array,
    is_terminated: jax.Array,
) -> dict[str, jax.Array]:
    """Computes the terms of the world model's loss for each step, float32 ``[B, T]`` each.

    The terms are prediction losses of observations, rewards and continuation, KL losses of dynamics and representation,
    and their weighted ``total``.

    Args:
        model: The world model.
        observed: States that `WorldModel.observe` returned.
        normalised: Observations of these states.
        rewards: float32 ``[B, T]``, rewards of the observations.
        is_terminated: bool ``[B, T]``.

    Returns:
        ``decoder`` (squared errors summed over an observation), ``reward``, ``continue``, their sum ``prediction``,
        ``dynamics``, ``representation``, and ``total``.
    """
    features = observed.states.features
    decoded = model.decode(features)
    lead = features.ndim - 1
    rows = {
        "decoder": sum(
            jnp.sum(jnp.square(decoded[name] - x), axis=tuple(range(lead, x.ndim))) for name, x in normalised.items()
        ),
        "reward": two_hot_rows(model.reward(features), symlog(rewards), atoms()),
    }
    logits = model.continue_logits(features)
    rows["continue"] = -jax.nn.log_sigmoid(jnp.where(is_terminated, -logits, logits))
    rows["prediction"] = rows["decoder"] + rows["reward"] + rows["continue"]
    kl = balanced_kl(observed.posterior, observed.prior)
    rows |= {"dynamics": kl.dynamics, "representation": kl.representation}
    scaled = DYNAMICS_SCALE * kl.dynamics + REPRESENTATION_SCALE * kl.representation
    return rows | {"total": rows["prediction"] + scaled}


class Judged(NamedTuple):
    """Values, lambda-returns and loss weights of imagined rollouts.

    Attributes:
        values: float32 ``[H + 1, N]``.
        targets: float32 ``[H, N]``, lambda-returns.
        weights: float32 ``[H, N]``, weights of the states.
    """

    values: jax.Array
    targets: jax.Array
    weights: jax.Array


def judged(
    model: WorldModel,
    critic: MLP,
    imagined: Imagined,
    is_terminated: jax.Array,
    *,
    gamma: jax.Array | float,
    lambda_: jax.Array | float,
) -> Judged:
    """Computes values and lambda-returns of imagined rollouts (Hafner et al., 2023, equation 7). Critic, reward head
    and continuation head each run once over all states.

    Args:
        model: The world model.
        critic: The critic: logits over `world_model.atoms` for features.
        imagined: The rollouts.
        is_terminated: bool ``[N]``, whether the episode ended in the start state.
        gamma: Discount.
        lambda_: Trace decay.
    """

    def of_all_states(head: Callable[[jax.Array], jax.Array]) -> jax.Array:
        return jnp.concatenate([head(imagined.features), head(imagined.last.features[None])])

    # A state that is more likely an end than not is taken for one, as in RLlib.
    continues = (of_all_states(model.continue_logits) > 0).astype(jnp.float32)
    continues = continues.at[0].set(1.0 - is_terminated.astype(jnp.float32))
    values = symexp(of_all_states(functools.partial(mean_in_symlog, critic)))
    rewards = of_all_states(model.reward_of)
    targets = lambda_returns(
        rewards=rewards[1:], discounts=gamma * continues[1:], next_values=values[1:], lambda_=lambda_
    )
    return Judged(values, targets, imagined_weights(continues, gamma)[:-1])


def critic_means(critic: MLP, slow_critic: MLP, features: jax.Array, judged: Judged) -> dict[str, jax.Array]:
    """Computes the terms of the critic's loss as scalar means over imagined states.

    The terms are ``targets`` (loss on the lambda-returns), ``slow`` (loss on the slow critic's values), and ``total``
    (their sum, weighted by the loss weights of the states).

    Args:
        critic: The trained critic; the total has only its gradient.
        slow_critic: Slow copy of the critic, towards which the critic is regularised.
        features: float32 ``[H, N, F]``, of all imagined states except the last.
        judged: Values and returns of the rollouts.
    """
    graph, params = nnx.split(critic)

    def terms(params: Any, rows: tuple[jax.Array, ...]) -> tuple[jax.Array, dict[str, jax.Array]]:
        features, targets, of_slow, weights = rows
        logits = nnx.merge(graph, params).padded_logits(features)
        terms = {"targets": two_hot_rows(logits, targets, atoms()), "slow": two_hot_rows(logits, of_slow, atoms())}
        return (terms["targets"] + terms["slow"]) * weights, terms

    of_slow = mean_in_symlog(slow_critic, features)
    rows = _flat((features, symlog(judged.targets), of_slow, judged.weights))
    total, means = mean_of_rows(terms, params, rows, size=LAYERS_PER_ROW)
    return means | {"total": total}


def actor_means(
    actor: Actor,
    features: jax.Array,
    actions: jax.Array,
    judged: Judged,
    returns: ReturnRange,
    entropy_scale: jax.Array | float,
    *,
    differentiable: bool,
) -> dict[str, jax.Array]:
    """Computes the terms of DreamerV3's actor loss (Hafner et al., 2023, equation 11) as scalar means over imagined
    states: ``advantage``, ``entropy``, and their weighted ``total``.

    Args:
        actor: The trained actor.
        features: float32 ``[H, N, F]``, of all imagined states except the last.
        actions: float32 ``[H, N, A]``, actions of the rollouts.
        judged: Values and returns of the rollouts.
        returns: Moving percentiles, with these rollouts included.
        entropy_scale: Weight of the entropy.
        differentiable: Whether to use the gradient of the advantage through the model instead of REINFORCE.

    Returns:
        ``advantage``, with the sign of a loss and, for REINFORCE, times the log-probability; ``entropy``; the weighted
        ``total``.
    """
    graph, params = nnx.split(actor)

    def terms(params: Any, rows: tuple[jax.Array, ...]) -> tuple[jax.Array, dict[str, jax.Array]]:
        features, actions, advantages, weights, entropy_scale = rows
        policy = nnx.merge(graph, params)(features)
        gained = jnp.zeros_like(advantages) if differentiable else policy.logp(actions) * advantages
        entropy = policy.entropy()
        return (-gained - entropy_scale * entropy) * weights, {"advantage": -gained, "entropy": entropy}

    advantages = (judged.targets - judged.values[:-1]) / jax.lax.stop_gradient(returns.scale)
    scale = jnp.broadcast_to(jnp.asarray(entropy_scale, jnp.float32), advantages.shape)
    rows = _flat((features, actions, advantages, judged.weights, scale))
    total, means = mean_of_rows(terms, params, rows, size=LAYERS_PER_ROW)
    if differentiable:
        total -= jnp.mean(advantages * judged.weights)
        means["advantage"] = -jnp.mean(advantages)
    return means | {"total": total}


def _flat(rows: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    """Merges the first two axes of arrays, H steps of N imagined rollouts: ``[H, N, ...]`` to ``[H * N, ...]``."""
    return tuple(x.reshape(-1, *x.shape[2:]) for x in rows)
