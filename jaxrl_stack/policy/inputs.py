"""What a policy accepts as observations, rewards and reset flags; for policies and for exported programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import jax
import numpy as np

from jaxrl_stack.utils.spaces import dtype_of, validate_batch


def checked_observations(space: gym.Space, observations: Any, batch_dims: int) -> Any:
    """Observations as NumPy arrays with the dtypes that JAX gives the space; lists of numbers are fine.

    Args:
        space: The environment's observation space.
        observations: What came in.
        batch_dims: 1 for a batch ``[B, ...]``, 0 for one observation.

    Raises:
        ValueError: If structure, shape or dtype do not fit the space, or the batch is empty; names the space.
    """
    name = "observations" if batch_dims else "observation"
    try:
        arrays = _as_arrays(space, observations)
        batch_shape = validate_batch(space, arrays, batch_dims=batch_dims, name=name)
    except (TypeError, ValueError) as error:
        wanted = f"batches [B, ...] of {space}" if batch_dims else f"elements of {space}"
        raise ValueError(f"{error} The policy takes {wanted}, got {_described(observations)}.") from error
    if batch_shape == (0,):
        raise ValueError("The batch of observations is empty: pass at least one row.")
    return jax.tree.map(lambda dtype, leaf: np.asarray(leaf, dtype), dtype_of(space), arrays)


def checked_rows(name: str, values: Any, num_envs: int, dtype: Any) -> np.ndarray:
    """One number or flag per environment, ``[B]``; None gives zeros.

    Raises:
        ValueError: If it has another shape, or does not convert to `dtype`; names the argument.
    """
    if values is None:
        return np.zeros(num_envs, dtype)
    array = np.asarray(values)
    kinds = "b" if dtype is bool else "biuf"
    if array.shape != (num_envs,) or array.dtype.kind not in kinds:
        what = "bools" if dtype is bool else "numbers"
        raise ValueError(
            f"{name} is {array.dtype.name}{list(array.shape)}; {num_envs} observation(s) need {what} of shape "
            f"[{num_envs}]."
        )
    return array.astype(dtype)


def as_key(key: jax.Array | np.ndarray) -> jax.Array:
    """A typed PRNG key; raw key data (uint32[2]) is wrapped."""
    if isinstance(key, jax.Array) and jax.numpy.issubdtype(key.dtype, jax.dtypes.prng_key):
        return key
    data: Any = np.asarray(key)
    if data.shape != (2,) or data.dtype != np.uint32:
        raise ValueError(f"key is {data.dtype.name}{list(data.shape)}; pass jax.random.key(seed).")
    return jax.random.wrap_key_data(data, impl="threefry2x32")


def _as_arrays(space: gym.Space, value: Any) -> Any:
    """Lists of numbers as arrays, mappings as dicts; whatever has another structure than the space as it is."""
    if isinstance(space, gym.spaces.Dict):
        if not isinstance(value, Mapping) or set(value) != set(space.spaces):
            return value
        return {key: _as_arrays(sub, value[key]) for key, sub in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        if not isinstance(value, list | tuple) or len(value) != len(space.spaces):
            return value
        return tuple(_as_arrays(sub, part) for sub, part in zip(space.spaces, value, strict=True))
    return np.asarray(value) if not isinstance(value, Mapping | None) else value


def _described(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {_described(part)}" for key, part in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + ", ".join(_described(part) for part in value) + ")"
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return f"{value.dtype}{list(value.shape)}"
    return f"{type(value).__name__} {value!r}"[:80]
