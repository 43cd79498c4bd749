"""Losses and distributions of world models, as in DreamerV3 (Hafner et al., 2023, arXiv:2301.04104; "the paper" below).

Rewards and values are distributions over atoms at equal distances in symlog space: `two_hot` makes a target of a
number, `jaxrl_stack.ops.q_learning.support` the atoms, and `expected_q` there the mean that `symexp` takes back. Latent
states are Z categorical variables of K classes each, described by probabilities ``[..., Z, K]`` that are nowhere 0.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_stack.ops.percentiles import percentiles_of

_FEW_CLASSES = 8
"""Measured on one core: 4 classes take 0.2 of the time of `jax.nn.softmax`, 8 take 0.25, 16 take 1.1."""


def symlog(x: jax.Array) -> jax.Array:
    """Symmetric logarithm ``sign(x) log(|x| + 1)``: linear near 0, logarithmic far from it (Hafner et al., 2023,
    section "Symlog Predictions").
    """
    return jnp.sign(x) * jnp.log1p(jnp.abs(x))


def symexp(x: jax.Array) -> jax.Array:
    """The inverse of `symlog`: ``sign(x) (exp(|x|) - 1)``."""
    return jnp.sign(x) * jnp.expm1(jnp.abs(x))


class TwoHot(NamedTuple):
    """Distribution over atoms that has all its mass on two neighbouring atoms.

    Attributes:
        places: int32 ``[..., 2]``, indices of the two atoms.
        weights: float32 ``[..., 2]``, probabilities of the two atoms.
    """

    places: jax.Array
    weights: jax.Array


def two_hot(values: jax.Array, atoms: jax.Array) -> TwoHot:
    """Creates a distribution over `atoms` for each number in `values`; the mean of the distribution is this number
    (Hafner et al., 2023, section "Critic Learning").

    Only the two nearest atoms have probability, each in proportion to the number's distance from the other one. Numbers
    outside of the atoms are clipped to the first or last atom.

    Args:
        values: float32 ``[...]``.
        atoms: float32 ``[K]``, at equal distances, ascending; two or more.

    Returns:
        ``[..., 2]``, without a gradient.
    """
    first, last = atoms[0], atoms[-1]
    distance = (last - first) / (len(atoms) - 1)
    values = jnp.clip(jax.lax.stop_gradient(values), first, last)
    below = jnp.clip(jnp.floor((values - first) / distance), 0, len(atoms) - 2).astype(jnp.int32)
    share = jnp.clip((values - atoms[below]) / distance, 0.0, 1.0)
    return TwoHot(jnp.stack([below, below + 1], axis=-1), jnp.stack([1.0 - share, share], axis=-1))


def two_hot_rows(logits: jax.Array, values: jax.Array, atoms: jax.Array) -> jax.Array:
    """Cross-entropy between the `two_hot` distributions of target numbers and the predicted distributions, per row of
    the batch.

    ``logsumexp(logits) - sum_i target_i logits_i``, where only two of the targets are not 0: with hundreds of atoms
    half of the time of forming all of them.

    Args:
        logits: float32 ``[..., K]``, or more, of classes that no number has.
        values: float32 ``[...]``, in the space of the atoms: `symlog` of a reward.
        atoms: float32 ``[K]``.
    """
    target = two_hot(values, atoms)
    of_target = jnp.take_along_axis(logits, target.places, axis=-1)
    return jax.nn.logsumexp(logits, axis=-1) - jnp.sum(target.weights * of_target, axis=-1)


def unimix(logits: jax.Array, share: float = 0.01) -> jax.Array:
    """Computes categorical probabilities from logits: a mixture of their softmax and a uniform distribution, which has
    the weight `share`.

    ``(1 - share) softmax(logits) + share / K``: none is ever below ``share / K``, so that divergences and their
    gradients stay bounded (section "Unimix categoricals" of the paper).

    Args:
        logits: float32 ``[..., K]``.
        share: In ``[0, 1]``.
    """
    return (1.0 - share) * _softmax(logits) + share / logits.shape[-1]


def _softmax(logits: jax.Array) -> jax.Array:
    """Computes ``jax.nn.softmax`` over the last axis, faster on CPU if the axis has few classes.

    For at most `_FEW_CLASSES` classes, computes the maximum and the sum by elementwise operations between the classes.
    On CPU, this takes a quarter of the time, because reductions of a short last axis are loops over single numbers
    there.
    """
    if logits.shape[-1] > _FEW_CLASSES:
        return jax.nn.softmax(logits)
    largest = functools.reduce(jnp.maximum, _classes(jax.lax.stop_gradient(logits)))
    exps = jnp.exp(logits - largest[..., None])
    return exps / functools.reduce(jnp.add, _classes(exps))[..., None]


def _classes(x: jax.Array) -> list[jax.Array]:
    return [x[..., k] for k in range(x.shape[-1])]


def straight_through_sample(noise: jax.Array, probs: jax.Array) -> jax.Array:
    """One-hot samples with the gradient of their probabilities (Bengio et al., 2013, arXiv:1308.3432).

    Args:
        noise: float32 ``[...]``, uniform in [0, 1). One number for each variable: the class is where the cumulative
            probabilities pass it, and `jax.random.categorical` draws K.
        probs: float32 ``[..., K]``.

    Returns:
        float32 ``[..., K]``: ``sample + p - stop_gradient(p)``, computed so that it is exactly one-hot.
    """
    num_classes = probs.shape[-1]
    # A sum over all classes up to each one, as a product: XLA's cumulative sums of short axes take many times as long.
    up_to = jnp.triu(jnp.ones((num_classes, num_classes), probs.dtype))
    reached = jnp.matmul(jax.lax.stop_gradient(probs), up_to, precision=jax.lax.Precision.HIGHEST)
    threshold = reached[..., -1:] * noise[..., None]
    classes = jnp.minimum(jnp.sum(threshold >= reached, axis=-1), num_classes - 1)
    return straight_through(jax.nn.one_hot(classes, num_classes, dtype=probs.dtype), probs)


def straight_through(one_hot: jax.Array, probs: jax.Array) -> jax.Array:
    """Returns the one-hot vectors unchanged, with the gradient of the probabilities.

    Args:
        one_hot: float32 ``[..., K]``.
        probs: float32 ``[..., K]``.
    """
    # The difference is exactly 0, and 1 + 0 exactly 1: (1 + p) - p may be off by a bit.
    return jax.lax.stop_gradient(one_hot) + (probs - jax.lax.stop_gradient(probs))


def categorical_kl(probs: jax.Array, other_probs: jax.Array) -> jax.Array:
    """KL divergence ``KL(p || q)`` of Z independent categorical variables with K classes each, summed over the
    variables: ``[..., Z, K]`` to ``[...]``.
    """
    return jnp.sum(probs * (jnp.log(probs) - jnp.log(other_probs)), axis=(-2, -1))


class BalancedKL(NamedTuple):
    """The two KL terms between posterior and prior, which have equal values but different gradients.

    Attributes:
        dynamics: float32 ``[...]``; moves the prior towards the posterior.
        representation: float32 ``[...]``; moves the posterior towards the prior.
    """

    dynamics: jax.Array
    representation: jax.Array


def balanced_kl(posterior: jax.Array, prior: jax.Array, free_nats: float = 1.0) -> BalancedKL:
    """KL losses ``L_dyn`` and ``L_rep`` of a world model (Hafner et al., 2023, equation 5).

    A KL divergence below `free_nats` is replaced by the constant `free_nats`, which has no gradient.

    ``L_dyn = max(free, KL(sg(posterior) || prior))``, ``L_rep = max(free, KL(posterior || sg(prior)))``

    Args:
        posterior: Probabilities, float32 ``[..., Z, K]``.
        prior: Probabilities, float32 ``[..., Z, K]``.
        free_nats: How far apart they may be, summed over the Z variables.
    """
    fixed = jax.lax.stop_gradient
    return BalancedKL(
        dynamics=jnp.maximum(free_nats, categorical_kl(fixed(posterior), prior)),
        representation=jnp.maximum(free_nats, categorical_kl(posterior, fixed(prior))),
    )


def imagined_weights(continues: jax.Array, gamma: jax.Array | float) -> jax.Array:
    """Loss weights of the states of imagined rollouts of a world model: the discounted probability of reaching each
    state.

    ``w_0 = c_0`` and ``w_t = w_{t-1} gamma c_t``.

    Args:
        continues: float32 ``[H + 1, N]``, probabilities that the episode continues from a state; for the first state, 1
            or 0 as in the recorded episode.
        gamma: Discount, scalar.

    Returns:
        float32 ``[H + 1, N]``, without a gradient.
    """
    factors = jnp.concatenate([continues[:1], gamma * continues[1:]])
    return jax.lax.stop_gradient(jnp.cumprod(factors, axis=0))


class ReturnRange(NamedTuple):
    """Moving averages of a lower and an upper percentile of returns.

    Advantages are divided by the difference of the averages, or by 1 if the difference is smaller. `update_range`
    updates the averages.

    Attributes:
        low: float32, average of the lower percentile.
        high: float32, average of the upper percentile.
        is_known: bool, True after the first returns.
    """

    low: jax.Array
    high: jax.Array
    is_known: jax.Array

    @classmethod
    def init(cls) -> ReturnRange:
        """Creates the moving averages of two percentiles of returns, before the first update: zeros, and `is_known`
        False.
        """
        return cls(jnp.zeros((), jnp.float32), jnp.zeros((), jnp.float32), jnp.zeros((), jnp.bool_))

    @property
    def scale(self) -> jax.Array:
        """Divisor of advantages, float32: ``max(1, high - low)``.

        `low` and `high` are the moving averages of two percentiles of returns (Hafner et al., 2023, equations 11 and
        12).

        Small returns are not scaled up, so that without rewards only the entropy changes the actor.
        """
        return jnp.maximum(1.0, self.high - self.low)


def update_range(
    state: ReturnRange,
    returns: jax.Array,
    decay: jax.Array | float,
    *,
    percentiles: tuple[float, float] = (5.0, 95.0),
    axis_name: str | None = None,
) -> ReturnRange:
    """Updates the moving averages in a `ReturnRange` with the percentiles of new returns. The first update sets the
    averages to the percentiles.

    Args:
        state: Moving averages before the update.
        returns: float32, any shape.
        decay: Decay of the averages, in ``[0, 1)``.
        percentiles: The lower and the upper one.
        axis_name: Axis of the devices over all of whose returns percentiles are taken, or None.
    """
    returns = jax.lax.stop_gradient(returns)
    if axis_name is not None:
        returns = jax.lax.all_gather(returns, axis_name)
    new = percentiles_of(returns, percentiles)
    old = jnp.stack([state.low, state.high])
    low, high = jnp.where(state.is_known, decay * old + (1.0 - decay) * new, new)
    return ReturnRange(low, high, jnp.ones_like(state.is_known))
