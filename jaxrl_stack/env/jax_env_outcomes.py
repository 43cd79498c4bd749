"""Checks of the values that a JAX environment's methods return: their number, structure, shapes and dtypes."""

from __future__ import annotations

import reprlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def parts_of(method: str, outcome: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    """Returns the values that a method of an environment returned, as a tuple.

    Raises ValueError if the method did not return a tuple or list with one value for each of the `names`.

    Raises:
        ValueError: Another number of values; names the method and the values that it should return.
    """
    if not isinstance(outcome, tuple | list) or len(outcome) != len(names):
        given = f"{len(outcome)} values" if isinstance(outcome, tuple | list) else f"a {type(outcome).__name__}"
        raise ValueError(
            f"{method} should return the {len(names)} values ({', '.join(names)}), but returned {given}. Return all of "
            "them, in this order."
        )
    return tuple(outcome)


def _check_is_array(x: Any) -> None:
    if not isinstance(x, bool | int | float | complex | np.generic | np.ndarray | jax.Array):
        raise TypeError(
            f"{reprlib.repr(x)} is a {type(x).__name__}, but states, observations and infos hold only arrays and "
            "numbers. Remove it, or decorate its class with @flax.struct.dataclass."
        )


def strongly_typed(tree: Any) -> Any:
    """Converts weakly typed arrays and Python numbers to arrays with fixed dtypes; values do not change."""

    def convert(x: Any) -> Any:
        if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.extended):
            return x
        _check_is_array(x)
        return jax.lax.convert_element_type(x, jnp.result_type(x))

    return jax.tree.map(convert, tree)


def typed_signals(name: str, reward: Any, terminated: Any, truncated: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Converts reward, terminated and truncated of one step to scalars: float32, bool, bool.

    Args:
        name: Name of the environment, for messages.
        reward, terminated, truncated: Numbers, bools or arrays ``[]``.

    Raises:
        ValueError: A value is no scalar.
    """
    for part, value in (("reward", reward), ("terminated", terminated), ("truncated", truncated)):
        if not isinstance(value, bool | int | float | np.generic | np.ndarray | jax.Array):
            raise ValueError(f"{name}: {part} is {value!r}, but must be a number or a bool. Return a scalar.")
        if jnp.shape(value) != ():
            raise ValueError(
                f"{name}: {part} has shape {jnp.shape(value)}, but must be a scalar, because `step` is written for a "
                "single environment. Return an array of shape ()."
            )
    return (
        jax.lax.convert_element_type(reward, jnp.float32),
        jax.lax.convert_element_type(terminated, jnp.bool_),
        jax.lax.convert_element_type(truncated, jnp.bool_),
    )


def expect_like(name: str, part: str, given: Any, wanted: Any) -> None:
    """Raises ValueError if `given`, a pytree from an environment's method, differs from the pytree `wanted` in
    structure, shapes or dtypes.

    Args:
        name: Name of the environment, for messages.
        part: Name of the value, for messages.
        given, wanted: Pytrees of arrays or of `jax.ShapeDtypeStruct`.

    Raises:
        ValueError: Names the leaf that differs.
    """
    if jax.tree.structure(given) != jax.tree.structure(wanted):
        raise ValueError(
            f"{name}: {part} has the structure {jax.tree.structure(given)}, but should have "
            f"{jax.tree.structure(wanted)}, as in the observation space or in reset's result. Return the same dicts, "
            "tuples and classes in every step."
        )
    for (path, leaf), target in zip(jax.tree_util.tree_leaves_with_path(given), jax.tree.leaves(wanted), strict=True):
        if (leaf.shape, leaf.dtype) != (target.shape, target.dtype):
            raise ValueError(
                f"{name}: {part}{jax.tree_util.keystr(path)} is {leaf.dtype}{list(leaf.shape)}, but should be "
                f"{target.dtype}{list(target.shape)}, as in the observation space or in reset's result. Convert it "
                "with .astype or reshape, or change the space or reset."
            )
