"""Conversion of Jumanji's specs to gymnasium spaces, and of policies' actions to Jumanji's actions; check of action
masks.
"""

# pyright: reportMissingImports=false
# The suite need not be installed where this is checked.

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Space
from jumanji import specs


def action_space_of(spec: Any, mask_shape: tuple[int, ...] | None) -> Space:
    """Converts the spec of Jumanji's actions to the policy's action space. Bounded arrays become one-dimensional;
    bounded integers become choices that count from 0.

    Args:
        spec: Spec of the actions.
        mask_shape: Shape of the action mask, if any. It limits the number of choices of bounded integers.
    """
    if isinstance(spec, specs.MultiDiscreteArray | specs.DiscreteArray) or not isinstance(spec, specs.BoundedArray):
        return space_of(spec)
    low, high = (np.broadcast_to(bound, spec.shape).ravel() for bound in (spec.minimum, spec.maximum))
    if np.issubdtype(spec.dtype, np.floating):
        return Box(low, high, low.shape, np.dtype(spec.dtype).type)
    counts = high.astype(int) - low + 1
    if mask_shape is not None and mask_shape[:-1] == tuple(spec.shape):
        counts = np.minimum(counts, mask_shape[-1])
    return MultiDiscrete(counts)


def own_action(spec: Any, action: Any) -> jax.Array:
    """Converts a policy's action to the shape and dtype of Jumanji's action spec; bounded integers, which the policy
    counts from 0, are shifted to the spec's minimum.
    """
    action = jnp.asarray(action, spec.dtype).reshape(spec.shape)
    is_counted = isinstance(spec, specs.BoundedArray) and jnp.issubdtype(spec.dtype, jnp.integer)
    return action + jnp.asarray(spec.minimum, spec.dtype) if is_counted else action


def has_entry_per_action(shape: tuple[int, ...], actions: Space) -> bool:
    """Whether a flattened action mask has one entry per action of a Discrete space, or per component value of a
    MultiDiscrete space.

    For a MultiDiscrete space, the mask must have one entry for each value of each component. False for a mask with one
    entry for each combination of these values.
    """
    if isinstance(actions, Discrete):
        return math.prod(shape) == int(actions.n)
    if not isinstance(actions, MultiDiscrete) or shape == tuple(actions.nvec):
        return False
    counts = [int(n) for n in actions.nvec]
    return shape == (sum(counts),) or (shape[0] == len(counts) and set(counts) == {math.prod(shape[1:])})


def children_of(spec: Any) -> dict[str, Any]:
    """Returns the specs that a nested Jumanji spec contains, by name; {} for the spec of one array."""
    return {name: child for name, child in vars(spec).items() if isinstance(child, specs.Spec)}


def space_of(spec: Any) -> Space:
    """Converts a Jumanji spec to a gymnasium space; a nested spec becomes a Dict."""
    match spec:
        case specs.DiscreteArray():
            return Discrete(int(spec.num_values))
        case specs.MultiDiscreteArray():
            return MultiDiscrete(np.ravel(spec.num_values))
        case specs.BoundedArray():
            low, high = (
                np.broadcast_to(bound, spec.shape).astype(spec.dtype) for bound in (spec.minimum, spec.maximum)
            )
        case specs.Array():
            dtype = np.dtype(spec.dtype)
            limits = np.iinfo(dtype) if dtype.kind in "iu" else None
            bounds = (limits.min, limits.max) if limits else (0, 1) if dtype.kind == "b" else (-np.inf, np.inf)
            low, high = (np.full(spec.shape, bound, dtype) for bound in bounds)
        case _:
            children = children_of(spec)
            return Dict({name: space_of(children[name]) for name in sorted(children)})
    return Box(low, high, tuple(spec.shape), np.dtype(spec.dtype).type)


__all__ = ["action_space_of", "children_of", "has_entry_per_action", "own_action", "space_of"]
