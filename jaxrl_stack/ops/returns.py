"""Returns and advantages over rollouts, whose arrays are time-major.

Index range of all functions: ``t = 0 .. T-1``. ``values[t]`` is the value of the state in which ``actions[t]`` was
taken; ``rewards[t]``, ``terminateds[t]`` and ``truncateds[t]`` are what that action led to.
"""

from __future__ import annotations

from typing import Any

import chex
import jax
import jax.numpy as jnp


def clipped_rewards(rewards: Any, bound: bool | float | None) -> Any:
    """Clips rewards to ``[-c, c]`` if `bound` (the setting `clip_rewards`) is a number c. True replaces rewards with
    their signs; None and False return rewards unchanged.

    Args:
        rewards: Array of JAX or NumPy; the result is of the same library.
        bound: None or False: as they are; True: their sign; a number c: clipped to ``[-c, c]``.
    """
    if bound is None or bound is False:
        return rewards
    xp = rewards.__array_namespace__()
    return xp.sign(rewards) if bound is True else xp.clip(rewards, -bound, bound)


def gae(
    *,
    rewards: jax.Array,
    values: jax.Array,
    terminateds: jax.Array,
    truncateds: jax.Array,
    truncation_values: jax.Array,
    bootstrap_value: jax.Array,
    gamma: jax.Array | float,
    lambda_: jax.Array | float,
    mask: jax.Array | None = None,
    discounts: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Generalised advantage estimation (Schulman et al., 2016, equations 11 to 16). At a truncated step, bootstraps
    from the value of the episode's final observation.

    ``delta_t = r_t + gamma * (1 - terminated_t) * V(s_{t+1}) - V(s_t)``
    ``A_t = delta_t + gamma * lambda * (1 - terminated_t) * (1 - truncated_t) * A_{t+1}``

    where ``V(s_{t+1})`` is ``truncation_values[t]`` at a truncated step (the state before the reset),
    ``bootstrap_value`` after the last row, and ``values[t + 1]`` elsewhere. A step that is terminated and truncated
    counts as terminated. Rows with ``mask`` False are passed over as if they were not there; their outputs are 0.

    Args:
        rewards: float32 ``[T, B]``.
        values: float32 ``[T, B]``.
        terminateds: bool ``[T, B]``.
        truncateds: bool ``[T, B]``.
        truncation_values: float32 ``[T, B]``; read where ``truncateds`` only.
        bootstrap_value: float32 ``[B]``, the value of the state after the last row.
        gamma: Discount, scalar.
        lambda_: Trace decay, scalar.
        mask: bool ``[T, B]``, or None for "all rows count".
        discounts: float32 ``[T, B]``, factors by which ``gamma`` is multiplied in each step, both in ``delta_t`` and in
            ``A_t``; None: 1.

    Returns:
        ``(advantages, value_targets)``, float32 ``[T, B]`` each; targets are ``advantages + values``.
    """
    chex.assert_rank([rewards, values, terminateds, truncateds, truncation_values], 2)
    chex.assert_equal_shape([rewards, values, terminateds, truncateds, truncation_values])
    chex.assert_shape(bootstrap_value, rewards.shape[1:])
    continues = 1.0 - terminateds.astype(jnp.float32)
    ends = jnp.logical_or(terminateds, truncateds)

    def backward(carry, row):
        advantage, next_value = carry
        reward, value, not_terminated, is_truncated, is_end, truncation_value, valid, discount = row
        decay = gamma if discount is None else gamma * discount
        next_value_here = jnp.where(is_truncated, truncation_value, next_value)
        delta = reward + decay * not_terminated * next_value_here - value
        new_advantage = delta + decay * lambda_ * jnp.where(is_end, 0.0, advantage)
        if valid is None:
            return (new_advantage, value), new_advantage
        carry = (jnp.where(valid, new_advantage, advantage), jnp.where(valid, value, next_value))
        return carry, jnp.where(valid, new_advantage, 0.0)

    # unroll=1 on purpose: unrolling this scan 16 times was measured 4 to 9 times slower on CPU.
    _, advantages = jax.lax.scan(
        backward,
        (jnp.zeros_like(bootstrap_value), bootstrap_value),
        (rewards, values, continues, truncateds, ends, truncation_values, mask, discounts),
        reverse=True,
    )
    targets = advantages + values
    if mask is not None:
        targets = jnp.where(mask, targets, 0.0)
    return advantages, targets


def lambda_returns(
    *, rewards: jax.Array, discounts: jax.Array, next_values: jax.Array, lambda_: jax.Array | float
) -> jax.Array:
    """Lambda-returns: mixed n-step returns of imagined rollouts, with a discount for each step (Hafner et al., 2023,
    arXiv:2301.04104, equation 7).

    ``R_t = r_t + d_t ((1 - lambda) V(s_{t+1}) + lambda R_{t+1})``, and after the last row ``R = V``. Gradients flow
    through everything.

    Args:
        rewards: float32 ``[T, B]``.
        discounts: float32 ``[T, B]``, ``gamma`` times the probability that the episode continues after the step.
        next_values: float32 ``[T, B]``, ``V(s_{t+1})``.
        lambda_: Trace decay, scalar.

    Returns:
        float32 ``[T, B]``.
    """
    chex.assert_rank([rewards, discounts, next_values], 2)
    chex.assert_equal_shape([rewards, discounts, next_values])

    def backward(following: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        known, decay = row
        here = known + decay * following
        return here, here

    known = rewards + discounts * (1.0 - lambda_) * next_values
    return jax.lax.scan(backward, next_values[-1], (known, discounts * lambda_), reverse=True)[1]


def value_targets_of_rows(
    *,
    rewards: jax.Array,
    terminateds: jax.Array,
    values: jax.Array,
    is_final: jax.Array,
    gamma: jax.Array | float,
    lambda_: jax.Array | float,
) -> jax.Array:
    """Computes the value targets of generalised advantage estimation (`gae`) for recorded episodes that are
    concatenated along one axis.

    Every piece of an episode ends with a final row, which contains the state after its last step and is no step itself.
    A piece that did not terminate bootstraps from the value of this state.

    The recursion ``A_i = delta_i + c_i A_{i+1}`` is computed as an associative scan in ``log2(R)`` rounds, because a
    loop over a million rows would take a second.

    Args:
        rewards: float32 ``[R]``.
        terminateds: bool ``[R]``, True only in the last step of a piece that terminated.
        values: float32 ``[R]``, values of the states of all rows.
        is_final: bool ``[R]``, True in final rows; the last row is a final row.
        gamma: Discount, scalar.
        lambda_: Trace decay, scalar.

    Returns:
        float32 ``[R]``; 0 in final rows.
    """
    chex.assert_rank([rewards, terminateds, values, is_final], 1)
    is_step, goes_on = jnp.logical_not(is_final), jnp.logical_not(jnp.roll(is_final, -1))
    next_values = jnp.where(terminateds, 0.0, jnp.roll(values, -1))
    deltas = jnp.where(is_step, rewards + gamma * next_values - values, 0.0)
    decays = jnp.where(is_step & goes_on, gamma * lambda_, 0.0)

    def joined(after: tuple[jax.Array, jax.Array], before: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return before[0] + before[1] * after[0], before[1] * after[1]

    advantages, _ = jax.lax.associative_scan(joined, (deltas, decays), reverse=True)
    return jnp.where(is_step, advantages + values, 0.0)
