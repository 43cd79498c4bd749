"""Loss terms for each row (step) of a batch. The caller averages them over the valid rows and over devices."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_stack.ops.running_statistics import RunningStatistics


def clipped_surrogate(
    logp: jax.Array, old_logp: jax.Array, advantages: jax.Array, clip_param: jax.Array | float
) -> jax.Array:
    """PPO's clipped surrogate objective (Schulman et al., 2017, equation 7), per row; to be maximised.

    ``min(r * A, clip(r, 1 - eps, 1 + eps) * A)`` with ``r = exp(logp - old_logp)``.

    Args:
        logp: float32 ``[N]``, log-probability of the taken action under the current policy.
        old_logp: float32 ``[N]``, the same under the policy that took it.
        advantages: float32 ``[N]``.
        clip_param: ``eps``, scalar.
    """
    ratio = jnp.exp(logp - old_logp)
    return jnp.minimum(ratio * advantages, jnp.clip(ratio, 1.0 - clip_param, 1.0 + clip_param) * advantages)


def is_clipped(logp: jax.Array, old_logp: jax.Array, clip_param: jax.Array | float) -> jax.Array:
    """Marks rows of the batch whose ratio of new to old action probability is outside of ``[1 - clip_param, 1 +
    clip_param]``: float32 ``[N]``, 1 or 0.

    Args:
        logp, old_logp, clip_param: As for `clipped_surrogate`.
    """
    return (jnp.abs(jnp.exp(logp - old_logp) - 1.0) > clip_param).astype(jnp.float32)


def sampled_kl(logp: jax.Array, old_logp: jax.Array) -> jax.Array:
    """Divergence ``KL(old || new)`` estimated from the taken actions only, per row: ``(r - 1) - log r``, ``r = new /
    old``.

    Its expectation under the old policy is the divergence, and no row is negative (Schulman, 2020, "Approximating KL
    Divergence", the estimator k3).

    Args:
        logp: float32 ``[N]``, log-probability of the taken action under the new policy.
        old_logp: float32 ``[N]``, the same under the policy that took it.
    """
    log_ratio = logp - old_logp
    return jnp.expm1(log_ratio) - log_ratio


def clamped_squared_error(
    prediction: jax.Array, target: jax.Array, clip: jax.Array | float
) -> tuple[jax.Array, jax.Array]:
    """Computes the squared error of a prediction per row of a batch; returns it without a limit, and clamped to at most
    ``clip``.

    The clamp bounds the loss (and so zeroes the gradient of rows beyond it); it is not the clip of the value around
    its old prediction.

    Args:
        prediction: float32 ``[N]``.
        target: float32 ``[N]``.
        clip: Largest squared error that counts, scalar.

    Returns:
        ``(error, clamped)``, float32 ``[N]`` each.
    """
    error = jnp.square(prediction - target)
    return error, jnp.clip(error, 0.0, clip)


def critic_metrics(statistics: RunningStatistics) -> dict[str, jax.Array]:
    """Metrics of a value function: its explained variance, and mean and standard deviation of the value targets and of
    the advantages (target minus prediction).

    Args:
        statistics: Statistics of rows ``[target, target - prediction]``.

    Returns:
        ``vf_explained_var`` (see `explained_variance`); mean and standard deviation of the targets, and of the errors:
        these are the advantages, before they are standardised, against the values of today.
    """
    (target, advantage), (target_std, advantage_std) = statistics.mean, jnp.sqrt(statistics.variance)
    return {
        "vf_explained_var": explained_variance(statistics),
        "value_target_mean": target,
        "value_target_std": target_std,
        "advantage_mean": advantage,
        "advantage_std": advantage_std,
    }


def explained_variance(statistics: RunningStatistics) -> jax.Array:
    """Explained variance of predictions, ``1 - Var[target - prediction] / Var[target]``, at least -1.

    Args:
        statistics: Statistics of rows ``[target, target - prediction]``.
    """
    variance, residual = statistics.variance[0], statistics.variance[1]
    return jnp.maximum(-1.0, 1.0 - residual / jnp.maximum(variance, 1e-6))
