"""States of connectors, pytrees of arrays: copies in host memory, checks, and conversion for checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import serialization


def to_host(state: Any) -> Any:
    """Copies a pytree of arrays to NumPy, with the dtypes that JAX would use."""
    return jax.tree.map(lambda leaf: np.array(leaf, dtype=jax.dtypes.canonicalize_dtype(jnp.result_type(leaf))), state)


def strong_array(leaf: Any, dtype: Any = None) -> jax.Array:
    """Converts a value to a JAX array without weak type, because a weakly typed argument would make a jitted function
    compile again.
    """
    return jnp.asarray(leaf, dtype=jnp.result_type(leaf) if dtype is None else dtype)


def check_state(before: Any, after: Any) -> Any:
    """Checks that a connector's new state `after` has the structure, shapes and dtypes of the old state `before`.

    Returns `after` as JAX arrays with these dtypes and without weak types.

    Raises:
        TypeError: Structure, a shape or a dtype changed, naming the leaf.
    """
    problem = shape_problem(before, after)
    if problem is not None:
        raise TypeError(
            f"A connector's `apply` returned a state that differs from the one it got: {problem}. Return a state with "
            "the structure, shapes and dtypes that `init` made."
        )
    return jax.tree.map(lambda old, new: strong_array(new, old.dtype), before, after)


def described(leaf: Any) -> str:
    """Describes an array's dtype and shape, such as ``"float32[2, 3]"``."""
    return f"{jnp.result_type(leaf).name}{list(np.shape(leaf))}"


def shape_problem(expected: Any, got: Any) -> str | None:
    """Describes the first difference of two pytrees in structure, shapes or dtypes; None if they agree."""
    structure, got_structure = jax.tree.structure(expected), jax.tree.structure(got)
    if structure != got_structure:
        return f"expected the structure {structure}, got {got_structure}"
    for (path, leaf), other in zip(jax.tree.leaves_with_path(expected), jax.tree.leaves(got), strict=True):
        if np.shape(leaf) != np.shape(other) or leaf.dtype != jnp.result_type(other):
            return f"at {jax.tree_util.keystr(path)!r}: expected {described(leaf)}, got {described(other)}"
    return None


def as_dict(state: Any) -> dict[str, Any]:
    """Converts a connector state, a pytree of arrays, to nested dicts with string keys."""
    plain = serialization.to_state_dict(state)
    return plain if isinstance(plain, dict) else {"state": plain}


def restore(template: Any, state: dict[str, Any], name: str) -> Any:
    """Converts a result of ``as_dict`` back to a pytree with the structure of ``template``. ``name`` is used in error
    messages.
    """
    plain = serialization.to_state_dict(template)
    try:
        restored = serialization.from_state_dict(template, state if isinstance(plain, dict) else state["state"])
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"The state for {name} does not fit: {error}. Load a state of a connector with the same class and spaces."
        ) from error
    return jax.tree.map(np.asarray, restored)


def per_env_leaves(init: Callable[[int], Any]) -> Any:
    """Returns a pytree of bools with the structure of the state ``init(num_envs)``: True for arrays with an environment
    axis, whose shape depends on ``num_envs``.
    """
    one, two = (jax.eval_shape(lambda n=n: init(n)) for n in (1, 2))
    return jax.tree.map(lambda one, two: one.shape != two.shape, one, two)
