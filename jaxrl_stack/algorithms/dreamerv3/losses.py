"""DreamerV3's three losses, row by row (Hafner et al., 2023, arXiv:2301.04104, equations 4, 5 and 7 to 11)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_stack.algorithms.dreamerv3.actor_critic import Actor, Imagined
from jaxrl_stack.algorithms.dreamerv3.networks import MLP
from jaxrl_stack.algorithms.dreamerv3.world_model import Observed, WorldModel, atoms, mean_in_symlog
from jaxrl_stack.ops.chunking import map_rows
from jaxrl_stack.ops.returns import lambda_returns
from jaxrl_stack.ops.world_models import ReturnRange, balanced_kl, imagined_weights, symexp, symlog, two_hot_rows

DYNAMICS_SCALE, REPRESENTATION_SCALE = 0.5, 0.1
LAYERS_PER_ROW = 8
"""Rows of a dense layer that a row of a head with its atoms is worth: 1,024 of them share a core's cache."""


def world_model_rows(
    model: WorldModel,
    observed: Observed,
    normalised: dict[str, jax.Array],
    rewards: jax.Array,
    is_terminated: jax.Array,
) -> dict[str, jax.Array]:
    """Terms of the world model's loss, each float32 ``[B, T]``.

    Args:
        model: The world model.
        observed: What `WorldModel.observe` returned.
        normalised: What that was of.
        rewards: float32 ``[B, T]``, that observations came with.
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
    """What the heads say of imagined rollouts.

    Attributes:
        values: float32 ``[H + 1, N]``.
        targets: float32 ``[H, N]``, lambda-returns.
        weights: float32 ``[H, N]``, how much states count.
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
    """Values and lambda-returns of imagined rollouts (equation 7), all heads once over all rows.

    Args:
        model: The world model.
        critic: Logits over `world_model.atoms` at features.
        imagined: The rollouts.
        is_terminated: bool ``[N]``, whether the episode ended in what they start from.
        gamma: Discount.
        lambda_: Trace decay.
    """
    features = imagined.states.features
    # A state that is more likely an end than not is taken for one, as in RLlib.
    continues = (model.continue_logits(features) > 0).astype(jnp.float32)
    continues = continues.at[0].set(1.0 - is_terminated.astype(jnp.float32))
    values = symexp(mean_in_symlog(critic, features))
    targets = lambda_returns(
        rewards=model.reward_of(features)[1:], discounts=gamma * continues[1:], next_values=values[1:], lambda_=lambda_
    )
    return Judged(values, targets, imagined_weights(continues, gamma)[:-1])


def critic_rows(critic: MLP, slow_critic: MLP, features: jax.Array, judged: Judged) -> dict[str, jax.Array]:
    """Terms of the critic's loss, each float32 ``[H, N]``: ``targets``, ``slow``, and the weighted ``total``.

    Args:
        critic: Learns.
        slow_critic: Its slow copy, which it is drawn to.
        features: float32 ``[H, N, F]``, of all imagined states but the last.
        judged: Of the rollouts.
    """
    fixed = jax.lax.stop_gradient

    def terms(rows: tuple[jax.Array, ...]) -> dict[str, jax.Array]:
        features, targets, of_slow = rows
        logits = critic(features)
        return {"targets": two_hot_rows(logits, targets, atoms()), "slow": two_hot_rows(logits, of_slow, atoms())}

    rows = _by_rows(terms, features, symlog(fixed(judged.targets)), fixed(mean_in_symlog(slow_critic, features)))
    return rows | {"total": (rows["targets"] + rows["slow"]) * judged.weights}


def actor_rows(
    actor: Actor,
    features: jax.Array,
    actions: jax.Array,
    judged: Judged,
    returns: ReturnRange,
    entropy_scale: jax.Array | float,
    *,
    differentiable: bool,
) -> dict[str, jax.Array]:
    """Terms of the actor's loss (equation 11), each float32 ``[H, N]``.

    Args:
        actor: Learns.
        features: float32 ``[H, N, F]``, of all imagined states but the last.
        actions: float32 ``[H, N, A]``, those taken.
        judged: Of the rollouts.
        returns: The moving percentiles, these rollouts' included.
        entropy_scale: Weight of the entropy.
        differentiable: Whether the advantage's own gradient is followed, through the model, and not REINFORCE.

    Returns:
        ``advantage``, with the sign of a loss and, for REINFORCE, times the log-probability; ``entropy``; the weighted
        ``total``.
    """
    fixed = jax.lax.stop_gradient

    def terms(rows: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        features, actions = rows
        policy = actor(features)
        return policy.logp(actions), policy.entropy()

    logp, entropy = _by_rows(terms, features, fixed(actions))
    advantages = (judged.targets - judged.values[:-1]) / fixed(returns.scale)
    gained = advantages if differentiable else logp * fixed(advantages)
    return {"advantage": -gained, "entropy": entropy, "total": (-gained - entropy_scale * entropy) * judged.weights}


def _by_rows(function: Callable[[tuple[jax.Array, ...]], Any], *rows: jax.Array) -> Any:
    """``function(rows)`` of arrays ``[H, N, ...]``, whose rows share a core's cache; see `ops.chunking`."""
    lead = rows[0].shape[:2]
    flat = tuple(x.reshape(-1, *x.shape[2:]) for x in rows)
    return jax.tree.map(lambda x: x.reshape(*lead, *x.shape[1:]), map_rows(function, flat, size=LAYERS_PER_ROW))
