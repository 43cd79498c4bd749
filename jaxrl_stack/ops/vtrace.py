"""V-trace: value targets and advantages of a policy from steps of another policy, such as an older one.

Arrays are time-major blocks; see `jaxrl_stack.ops.returns` for the range of their index.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp


class VTrace(NamedTuple):
    """V-trace targets and advantages of a rollout; no gradient flows through them.

    Attributes:
        targets: float32 ``[T, B]``, ``v_s``: regression targets of the values.
        advantages: float32 ``[T, B]``, the weight of ``grad log pi(a_s | x_s)``, importance ratio included.
    """

    targets: jax.Array
    advantages: jax.Array


def vtrace(
    *,
    log_rhos: jax.Array,
    rewards: jax.Array,
    values: jax.Array,
    terminateds: jax.Array,
    truncateds: jax.Array,
    truncation_values: jax.Array,
    bootstrap_value: jax.Array,
    gamma: jax.Array | float,
    clip_rho_threshold: jax.Array | float = 1.0,
    clip_c_threshold: jax.Array | float = 1.0,
    clip_pg_rho_threshold: jax.Array | float = 1.0,
    mask: jax.Array | None = None,
) -> VTrace:
    """V-trace value targets and advantages (Espeholt et al., 2018, arXiv:1802.01561, equation 1 and section 4.2).

    At a truncated step, bootstraps from the value of the episode's final observation.

    With ``rho_t = min(rho_bar, pi / mu)``, ``c_t = min(c_bar, pi / mu)`` and the discount
    ``gamma_t = gamma * (1 - terminated_t)``, equation 1 in the recursive form of the paper's remark 1 is

    ``delta_t = rho_t * (r_t + gamma_t * V(x_{t+1}) - V(x_t))``
    ``v_t = V(x_t) + delta_t + gamma_t * c_t * (1 - truncated_t) * (v_{t+1} - V(x_{t+1}))``
    ``A_t = min(rho_bar_pg, pi / mu) * (r_t + gamma_t * v_{t+1} - V(x_t))``

    where ``V(x_{t+1})`` is ``truncation_values[t]`` at a truncated step (the state before the reset),
    ``bootstrap_value`` after the last row, and ``values[t + 1]`` elsewhere; in the first two of these cases
    ``v_{t+1}`` is that value, too. A step that is terminated and truncated counts as terminated. Rows with ``mask``
    False are passed over as if they were not there; their outputs are 0.

    Args:
        log_rhos: float32 ``[T, B]``, ``log(pi(a_t | x_t) / mu(a_t | x_t))``: ``pi`` learns, ``mu`` has acted.
        rewards, values: float32 ``[T, B]``.
        terminateds, truncateds: bool ``[T, B]``.
        truncation_values: float32 ``[T, B]``; read where ``truncateds`` only.
        bootstrap_value: float32 ``[B]``, the value of the state after the last row.
        gamma: Discount, scalar.
        clip_rho_threshold: ``rho_bar``, scalar: whose value function it is that targets lead to.
        clip_c_threshold: ``c_bar``, scalar: how far errors reach back.
        clip_pg_rho_threshold: ``rho_bar`` of the advantages, scalar.
        mask: bool ``[T, B]``, or None for "all rows count".
    """
    chex.assert_rank([log_rhos, rewards, values, terminateds, truncateds, truncation_values], 2)
    chex.assert_equal_shape([log_rhos, rewards, values, terminateds, truncateds, truncation_values])
    chex.assert_shape(bootstrap_value, rewards.shape[1:])
    rhos = jnp.exp(log_rhos)
    clipped = [jnp.minimum(rhos, bound) for bound in (clip_rho_threshold, clip_c_threshold, clip_pg_rho_threshold)]
    discounts = gamma * (1.0 - terminateds.astype(jnp.float32))
    ends = jnp.logical_or(terminateds, truncateds)
    _, (corrections, advantages) = jax.lax.scan(
        _backward,
        (jnp.zeros_like(bootstrap_value), bootstrap_value),
        (*clipped, rewards, values, discounts, truncateds, ends, truncation_values, mask),
        reverse=True,
    )
    targets = corrections + values
    if mask is not None:
        targets = jnp.where(mask, targets, 0.0)
    return VTrace(*jax.lax.stop_gradient((targets, advantages)))


def _backward(carry: Any, row: Any) -> tuple[Any, Any]:
    """Computes one step of the backward scan of `vtrace`, at time t.

    The carry before this step is ``v_{t+1} - V(x_{t+1})`` and ``V(x_{t+1})``; the outputs are ``v_t - V(x_t)`` and the
    advantage.
    """
    correction, next_value = carry
    rho, c, pg_rho, reward, value, discount, is_truncated, is_end, truncation_value, valid = row
    next_value_here = jnp.where(is_truncated, truncation_value, next_value)
    correction_here = jnp.where(is_end, 0.0, correction)
    error = reward + discount * next_value_here - value
    new_correction = rho * error + discount * c * correction_here
    advantage = pg_rho * (error + discount * correction_here)
    if valid is None:
        return (new_correction, value), (new_correction, advantage)
    carry = (jnp.where(valid, new_correction, correction), jnp.where(valid, value, next_value))
    return carry, (jnp.where(valid, new_correction, 0.0), jnp.where(valid, advantage, 0.0))
