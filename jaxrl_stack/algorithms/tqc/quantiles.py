"""Truncation and loss of quantile critics, per row; callers compute means over rows.

``N`` is the number of transitions, ``C`` of critics, ``K`` of quantiles per critic, ``M`` of atoms of a target
distribution. ``N`` may be ``N, J`` for sequences of steps.

Sources: Kuznetsov et al., 2020, "Controlling Overestimation Bias with Truncated Mixture of Continuous Distributional
Quantile Critics" (arXiv:2005.04269); Dabney et al., 2018, "Distributional Reinforcement Learning with Quantile
Regression" (arXiv:1710.10044).
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

from jaxrl_stack.ops.q_learning import td_loss


def truncated(quantiles: jax.Array, num_dropped: int) -> jax.Array:
    """Pools the quantiles of all C critics in each row, and drops the ``C * num_dropped`` highest quantiles of the pool
    (Kuznetsov et al., 2020, section 4).

    Args:
        quantiles: float32 ``[N, C, K]``.
        num_dropped: Number of dropped quantiles per critic on average, below ``K``. A critic can lose more or fewer
            quantiles.

    Returns:
        float32 ``[N, C * (K - num_dropped)]``, ascending.
    """
    chex.assert_rank(quantiles, {3, 4})
    *rows, num_critics, num_quantiles = quantiles.shape
    pool = jnp.reshape(quantiles, (*rows, num_critics * num_quantiles))
    # Takes a CPU half as long as a sort of all.
    return -jax.lax.top_k(-pool, num_critics * (num_quantiles - num_dropped))[0]


def quantile_huber_rows(*, quantiles: jax.Array, targets: jax.Array) -> jax.Array:
    """Quantile Huber loss of each row (Dabney et al., 2018, equation 10).

    The loss is ``sum_ckm |tau_k - [y_m < z_ck]| h(z_ck - y_m)``. ``z_ck`` is the predicted value of critic c for the
    quantile with level ``tau_k``, ``y_m`` is a target atom, and ``h`` is the Huber loss. The bracket is 1 if the
    inequality holds, else 0.

    ``tau_k = (k + 1/2) / K`` with ``k`` from 0: ``z_ck`` converges to the quantile of level ``tau_k`` of the target
    distribution. The loss is a sum over critics, quantiles and atoms, as in RLlib; the paper has the mean over
    quantiles and atoms.

    Args:
        quantiles: float32 ``[N, C, K]``, predicted values ``z`` for the taken actions.
        targets: float32 ``[N, M]``, atoms ``y`` of equal weight; no gradient flows into them.

    Returns:
        float32 ``[N]``.
    """
    chex.assert_rank(quantiles, {3, 4})
    chex.assert_rank(targets, quantiles.ndim - 1)
    num_quantiles = quantiles.shape[-1]
    tau = ((jnp.arange(num_quantiles, dtype=jnp.float32) + 0.5) / num_quantiles).reshape(num_quantiles, 1)
    predicted, atoms = quantiles[..., None], jax.lax.stop_gradient(targets)[..., None, None, :]
    weight = jnp.where(atoms < predicted, 1.0 - tau, tau)
    return jnp.sum(weight * td_loss(predicted, atoms), axis=(-3, -2, -1))
