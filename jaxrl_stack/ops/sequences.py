"""Functions for sequences drawn from a replay buffer: bootstrap values of n-step windows, and priorities.

``N`` counts sequences, ``J`` their steps, burn-in and padding included.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

PRIORITY_ETA = 0.9
"""Weight of the largest TD error of a sequence in its priority (Kapturowski et al., 2019, section 2.3)."""


def at_window_ends(values: jax.Array, n_step: jax.Array) -> jax.Array:
    """Selects, for each step t, the value at the last step of the n-step window that begins at t.

    The formula is ``result[i, t] = values[i, t + n_step[i, t] - 1]``.

    Args:
        values: ``[N, J, ...]``, the values of the observations after every step, for example.
        n_step: ``[N, J]``, steps of the windows, integers of any number type; where it is 0, the result means nothing.

    Returns:
        ``[N, J, ...]``.
    """
    times = jnp.arange(n_step.shape[1], dtype=jnp.int32)
    last = jnp.clip(times + n_step.astype(jnp.int32) - 1, 0, n_step.shape[1] - 1)
    return at_steps(values, last)


def of_rows(
    batch: Mapping[str, Any],
) -> tuple[jax.Array, Callable[[jax.Array], jax.Array], Callable[[jax.Array], jax.Array]]:
    """Returns the importance weights of a replay batch, and two functions: one selects bootstrap values, the other
    computes priorities from TD errors.

    The batch contains either N single transitions (`loss_mask` is ``[N]``) or N sequences of J steps (`loss_mask` is
    ``[N, J]``). Losses that use the results work for both.

    Args:
        batch: Columns `weights` ``[N]`` and `loss_mask` ``[N]`` or ``[N, J]``; for sequences also `n_step` ``[N, J]``.

    Returns:
        ``(weights, bootstrap_values, priorities)``. For transitions, the weights are ``[N]``, and both functions return
        their argument. For sequences, the weights are ``[N, 1]``; `bootstrap_values` selects, for each step, the value
        at the end of its n-step window (`at_window_ends`); `priorities` computes one priority per sequence, ``[N]``,
        from TD errors ``[N, J]`` (`sequence_priorities`).
    """
    weights, mask = batch["weights"], batch["loss_mask"]
    if mask.ndim == 1:
        return weights, lambda values: values, lambda errors: errors
    return (
        weights[:, None],
        functools.partial(at_window_ends, n_step=batch["n_step"]),
        functools.partial(sequence_priorities, mask=mask),
    )


def at_steps(values: Any, steps: jax.Array) -> Any:
    """Selects values at some steps of N sequences, in every leaf: ``result[n, k] = values[n, steps[n, k]]``, for values
    ``[N, J, ...]`` and steps int ``[N, K]``.
    """

    def of_leaf(leaf: jax.Array) -> jax.Array:
        return jax.vmap(lambda own, index: own.at[index].get(mode="promise_in_bounds"))(leaf, steps)

    return jax.tree.map(of_leaf, values)


def sequence_priorities(td_errors: jax.Array, mask: jax.Array, eta: float = PRIORITY_ETA) -> jax.Array:
    """Priorities of sequences from their TD errors d_t: ``eta * max_t |d_t| + (1 - eta) * mean_t |d_t|`` (Kapturowski
    et al., 2019, section 2.3).

    Args:
        td_errors: float32 ``[N, J]``.
        mask: bool ``[N, J]``, the steps that count. Sequences without one have priority 0.
        eta: Weight of the largest error.

    Returns:
        float32 ``[N]``.
    """
    errors = jnp.where(mask, jnp.abs(td_errors), 0.0)
    mean = jnp.sum(errors, axis=1) / jnp.maximum(jnp.sum(mask, axis=1), 1)
    return eta * jnp.max(errors, axis=1) + (1.0 - eta) * mean
