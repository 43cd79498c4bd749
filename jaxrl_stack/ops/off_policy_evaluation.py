"""Off-policy evaluation: the value of a policy from episodes that another policy recorded.

Index range of all functions: episodes ``i = 0 .. E-1`` and their steps ``t = 0 .. T-1``; rows with ``mask`` False are
after the end of an episode. ``log_ratios[i, t]`` is ``log pi(a_t | s_t) - log mu(a_t | s_t)`` of the recorded action,
where ``pi`` is the policy that is evaluated and ``mu`` the one that acted. Ratios are multiplied as sums of logs.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp


def discounts(mask: jax.Array, gamma: jax.Array | float) -> jax.Array:
    """Discount factors ``gamma^t`` of the steps of episodes; 0 after the end of an episode.

    Args:
        mask: bool ``[E, T]``.
        gamma: Scalar.

    Returns:
        float32 ``[E, T]``.
    """
    chex.assert_rank(mask, 2)
    powers = jnp.float32(gamma) ** jnp.arange(mask.shape[1], dtype=jnp.float32)
    return jnp.where(mask, powers[None], 0.0)


def discounted_returns(rewards: jax.Array, mask: jax.Array, gamma: jax.Array | float) -> jax.Array:
    """Discounted return ``G = sum_t gamma^t r_t`` of every recorded episode.

    Args:
        rewards: float32 ``[E, T]``.
        mask: bool ``[E, T]``.
        gamma: Scalar.

    Returns:
        float32 ``[E]``.
    """
    chex.assert_equal_shape([rewards, mask])
    return jnp.sum(discounts(mask, gamma) * jnp.where(mask, rewards, 0.0), axis=1)


def cumulative_log_ratios(log_ratios: jax.Array, mask: jax.Array) -> jax.Array:
    """Logarithms of cumulative importance ratios, ``log rho_{0:t} = sum_{k <= t} log (pi_k / mu_k)``. Entries after the
    end of an episode repeat the episode's last value.

    Args:
        log_ratios: float32 ``[E, T]``.
        mask: bool ``[E, T]``.

    Returns:
        float32 ``[E, T]``.
    """
    chex.assert_equal_shape([log_ratios, mask])
    return jnp.cumsum(jnp.where(mask, log_ratios, 0.0), axis=1)


def importance_sampling(
    log_ratios: jax.Array, rewards: jax.Array, mask: jax.Array, gamma: jax.Array | float
) -> tuple[jax.Array, jax.Array]:
    """Ordinary importance sampling of whole episodes (Precup, Sutton and Singh, 2000, section 3).

    ``V = mean_i rho_{0:T-1} G``. Weighted importance sampling is
    ``V = sum_i rho_{0:T-1} G / sum_i rho_{0:T-1}`` of the same numbers: see `weighted`.

    Args:
        log_ratios, rewards: float32 ``[E, T]``.
        mask: bool ``[E, T]``.
        gamma: Scalar.

    Returns:
        ``(log rho_{0:T-1}, G)``, float32 ``[E]`` each.
    """
    return cumulative_log_ratios(log_ratios, mask)[:, -1], discounted_returns(rewards, mask, gamma)


def per_decision_importance_sampling(
    log_ratios: jax.Array, rewards: jax.Array, mask: jax.Array, gamma: jax.Array | float
) -> jax.Array:
    """Per-decision importance sampling (Precup, Sutton and Singh, 2000, section 4): ``sum_t gamma^t rho_{0:t} r_t``,
    with the cumulative importance ratios ``rho_{0:t}``.

    A reward is weighted by the ratios of the actions before it, and not of those that came later.

    Args:
        log_ratios, rewards: float32 ``[E, T]``.
        mask: bool ``[E, T]``.
        gamma: Scalar.

    Returns:
        float32 ``[E]``, of which the mean is the estimate.
    """
    ratios = jnp.exp(cumulative_log_ratios(log_ratios, mask))
    return jnp.sum(discounts(mask, gamma) * ratios * jnp.where(mask, rewards, 0.0), axis=1)


def doubly_robust(
    log_ratios: jax.Array,
    rewards: jax.Array,
    q_values: jax.Array,
    values: jax.Array,
    final_values: jax.Array,
    mask: jax.Array,
    gamma: jax.Array | float,
) -> jax.Array:
    """Doubly robust estimator of a policy's value (Jiang and Li, 2016, equation 10), computed backwards over an
    episode.

    ``V_t = V(s_t) + rho_t (r_t + gamma V_{t+1} - Q(s_t, a_t))``, with ``V_T`` as given. It is unbiased if the ratios
    are right, for any Q; its variance is lower the better Q is.

    Args:
        log_ratios, rewards: float32 ``[E, T]``.
        q_values: float32 ``[E, T]``, Q of the recorded actions.
        values: float32 ``[E, T]``, means of Q over the actions of the policy that is evaluated.
        final_values: float32 ``[E]``, value of the state after the last step; 0 where the episode terminated.
        mask: bool ``[E, T]``.
        gamma: Scalar.

    Returns:
        float32 ``[E]``, of which the mean is the estimate.
    """
    chex.assert_equal_shape([log_ratios, rewards, q_values, values, mask])
    chex.assert_shape(final_values, mask.shape[:1])

    def backward(following: jax.Array, row: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        log_ratio, reward, q_value, value, is_step = row
        own = value + jnp.exp(log_ratio) * (reward + gamma * following - q_value)
        return jnp.where(is_step, own, following), None

    rows = tuple(x.T for x in (jnp.where(mask, log_ratios, 0.0), rewards, q_values, values, mask))
    first, _ = jax.lax.scan(backward, final_values, rows, reverse=True)
    return first


def weighted(log_weights: jax.Array, values: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the products of weights and values, and the weights, for a weighted mean over E episodes.

    The mean is ``sum_i w_i v_i / sum_i w_i``, with episode weights w and values v. The weights are scaled so that the
    largest is 1 and no product overflows.

    Args:
        log_weights, values: float32 ``[E]``.

    Returns:
        ``(w v, w)``, float32 ``[E]`` each, with the largest weight 1.
    """
    chex.assert_equal_shape([log_weights, values])
    weights = _scaled(log_weights)
    return weights * values, weights


def _scaled(log_weights: jax.Array) -> jax.Array:
    """Converts log importance weights to weights scaled so that the largest is 1; zeros if all weights are 0."""
    largest = jnp.max(log_weights)
    return jnp.exp(log_weights - jnp.where(jnp.isfinite(largest), largest, 0.0))


def effective_sample_size(log_weights: jax.Array) -> jax.Array:
    """Kish's effective sample size, ``(sum_i w_i)^2 / sum_i w_i^2``: the number of equally weighted episodes with the
    same information.

    Args:
        log_weights: float32 ``[E]``.

    Returns:
        float32 scalar, from 1 to E; NaN where all weights are 0.
    """
    chex.assert_rank(log_weights, 1)
    weights = _scaled(log_weights)
    return jnp.square(jnp.sum(weights)) / jnp.sum(jnp.square(weights))


def bootstrap_ratios(
    key: jax.Array, numerators: jax.Array, denominators: jax.Array, *, num_resamples: int
) -> jax.Array:
    """Bootstrap of ratios (Efron, 1979): draws E of the E episodes with replacement, `num_resamples` times.

    Each draw gives one ratio per estimate: the sum of the drawn numerators, divided by the sum of the drawn
    denominators.

    Args:
        key: Random key.
        numerators: float32 ``[E, K]``, of K estimates.
        denominators: float32 ``[E, K]``; ones for means.
        num_resamples: R, how often E episodes are drawn.

    Returns:
        float32 ``[R, K]``, the K estimates from the same draws.
    """
    chex.assert_rank([numerators, denominators], 2)
    chex.assert_equal_shape([numerators, denominators])
    num_episodes = len(numerators)

    def resampled(key: jax.Array) -> jax.Array:
        drawn = jax.random.randint(key, (num_episodes,), 0, num_episodes)
        counts = jnp.zeros(num_episodes, jnp.float32).at[drawn].add(1.0)
        return (counts @ numerators) / (counts @ denominators)

    return jax.lax.map(resampled, jax.random.split(key, num_resamples))
