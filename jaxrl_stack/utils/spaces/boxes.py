"""Scaling of actions of `Box` spaces: modules see dimensions with two finite, different bounds scaled to [-1, 1].

Modules act in float32, and environments take the space's dtype. A bound that is no float32 number is rounded for
modules; `member_maker` gives environments the bound itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Box, Space

from jaxrl_stack.utils.spaces import map_parts


def scaled_dimensions(box: Box) -> np.ndarray:
    """Mask of the dimensions of a `Box` that modules see scaled to [-1, 1], bool ``[*box.shape]``.

    They have two finite bounds, which differ. Bounds beyond the range of float32 count as open.
    """
    low, high = float32_bounds(box)
    with np.errstate(over="ignore", invalid="ignore"):
        span = high - low
    return np.isfinite(low) & np.isfinite(high) & np.isfinite(span) & (span > 0)


def scaled_to_bounds(box: Box, actions: jax.Array) -> jax.Array:
    """Converts a module's actions to the environment's actions, which are within the bounds of a `Box`.

    Maps the dimensions in `scaled_dimensions` from [-1, 1] to their bounds, and clips all dimensions to their bounds.

    Args:
        box: A `Box` of floats.
        actions: Float ``[B, *box.shape]``; in [-1, 1] in `scaled_dimensions`.
    """
    scaled, bounds = scaled_dimensions(box), float32_bounds(box)
    if not np.isfinite(bounds).any():
        return actions
    # The leading axis is added by hand, for sessions with strict rank promotion.
    low, high = (jnp.asarray(bound, actions.dtype)[None] for bound in bounds)
    if scaled.all():
        return jnp.clip(low + (actions + 1.0) * 0.5 * (high - low), low, high)
    first, last = (jnp.where(scaled[None], bound, 0) for bound in (low, high))
    return jnp.clip(jnp.where(scaled[None], first + (actions + 1.0) * 0.5 * (last - first), actions), low, high)


def scaled_from_bounds(box: Box, actions: Any) -> Any:
    """Converts the environment's actions, which have a `Box` space, to a module's actions.

    Maps the dimensions in `scaled_dimensions` from their bounds to [-1, 1]; other dimensions are unchanged. For actions
    within the bounds, this is the inverse of `scaled_to_bounds`.

    Args:
        box: A `Box` of floats.
        actions: ``[..., *box.shape]``, NumPy or JAX.
    """
    scaled = scaled_dimensions(box)
    if not scaled.any():
        return actions
    low, high = np.where(scaled, box.low, 0), np.where(scaled, box.high, 1)
    if isinstance(actions, jax.Array):
        lead = (None,) * (actions.ndim - box.low.ndim)
        low, high = (jnp.asarray(bound, actions.dtype)[lead] for bound in (low, high))
        return jnp.where(scaled[lead], 2.0 * (actions - low) / (high - low) - 1.0, actions)
    return np.where(scaled, (actions - low) * 2.0 / (high - low) - 1.0, actions)


def shifted_to_bounds(box: Box, actions: jax.Array) -> jax.Array:
    """Converts integer actions ``[B, *box.shape]`` that count from 0 to actions that count from the `Box`'s lower
    bound, and clips them to the bounds.

    Args:
        box: A `Box` of integers. Without a lower bound it is counted from 0.
        actions: Integers ``[B, *box.shape]``.
    """
    low, high = integer_bounds(box, actions.dtype)
    first = np.where(box.bounded_below & (box.low == low), low, 0).astype(low.dtype)
    return jnp.clip(actions + first[None], low[None], high[None])


def integer_bounds(box: Box, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Bounds ``(low, high)`` of a `Box` of integers, converted to `dtype`, the dtype of a module's actions.

    If `dtype` is an integer dtype, bounds outside of its range are clipped to this range.
    """
    if not jnp.issubdtype(dtype, jnp.integer):
        return box.low.astype(dtype), box.high.astype(dtype)
    limits = np.iinfo(dtype)
    # Through Python's integers: no dtype holds all of int64 and uint64.
    low, high = (np.clip(bound.astype(object), limits.min, limits.max) for bound in (box.low, box.high))
    return low.astype(dtype), high.astype(dtype)


def float32_bounds(box: Box) -> tuple[np.ndarray, np.ndarray]:
    """Bounds ``(low, high)`` of a `Box`, rounded to float32. A bound beyond the range of float32 becomes infinite."""
    with np.errstate(over="ignore"):
        return box.low.astype(np.float32), box.high.astype(np.float32)


def member_maker(box: Box) -> Callable[[Any], np.ndarray]:
    """Returns a function that copies a compiled program's actions to NumPy arrays with the dtype of `box`.

    An entry equal to a bound rounded to float32 becomes the exact bound, so that ``box.contains`` accepts the action.
    Integers beyond the range of the dtype become the limits of the dtype.
    """
    dtype: Any = box.dtype
    if dtype.kind in "iu":
        low, high = int(np.iinfo(dtype).min), min(int(np.iinfo(dtype).max), 2**63 - 1)
        return lambda actions: np.clip(np.asarray(actions).astype(np.int64), low, high).astype(dtype)
    rounded = zip((box.low, box.high), float32_bounds(box), strict=True)
    inexact = [(bound, near, bound != near) for bound, near in rounded if (bound != near).any()]
    if dtype.kind != "f" or not inexact:
        return lambda actions: np.array(actions, dtype)

    def members(actions: Any) -> np.ndarray:
        given = np.asarray(actions)
        own = np.array(given, dtype)
        for bound, near, where in inexact:
            np.copyto(own, bound, where=where & (given == near))
        return own

    return members


def members_of(space: Space) -> Callable[[Any], Any]:
    """Returns a function that converts actions of a compiled program to actions for the environment.

    The environment's action space is `space`. Actions are a pytree with the structure of `space` and one array ``[...,
    *shape of the part]`` for each part. The function copies arrays of `Box` parts to NumPy arrays with the part's dtype
    (see `member_maker`), and leaves other arrays unchanged.
    """
    makers = map_parts(lambda part: member_maker(part) if isinstance(part, Box) else lambda own: own, space)
    return lambda actions: map_parts(lambda _, make, own: make(own), space, makers, actions)
