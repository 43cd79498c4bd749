"""Conversion of pytrees to flat dicts of NumPy arrays, ``{"path/to/leaf": array}``, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def named_leaves(tree: Any) -> dict[str, Any]:
    """Returns ``{"path/to/leaf": array}`` of a pytree. PRNG keys are unchanged; other leaves become NumPy arrays."""
    return {name: leaf if is_key(leaf) else np.asarray(leaf) for name, leaf in leaves_by_name(tree).items()}


def leaves_by_name(tree: Any) -> dict[str, Any]:
    """Returns ``{"path/to/leaf": leaf}`` of a pytree, with unchanged leaves, which may be traced arrays."""
    return {_name(path): leaf for path, leaf in jax.tree.leaves_with_path(tree)}


def with_named_leaves(tree: Any, named: Mapping[str, Any]) -> Any:
    """Replaces leaves of a pytree by the values in `named`, ``{"path/to/leaf": value}``; other leaves are unchanged."""
    return jax.tree.map_with_path(lambda path, leaf: named.get(_name(path), leaf), tree)


def from_named_leaves(template: Any, named: Mapping[str, Any], what: str) -> Any:
    """Rebuilds a pytree with the structure of `template` from the dict ``{"path/to/leaf": array}`` that `named_leaves`
    returned.

    Args:
        template: A pytree of the structure, shapes and dtypes to expect.
        named: Leaves of the state by name.
        what: Name of the object that has this state, for messages.

    Raises:
        ValueError: Naming the first difference.
    """
    expected = {_name(path): leaf for path, leaf in jax.tree.leaves_with_path(template)}
    missing, unknown = sorted(expected.keys() - named.keys()), sorted(named.keys() - expected.keys())
    if missing or unknown:
        raise ValueError(
            f"The state of {what} does not fit: it lacks the leaves {missing[:5]} and has unknown leaves "
            f"{unknown[:5]}. Load it with the same modules, optimizers, connectors and environment."
        )
    leaves = []
    for name, like in expected.items():
        leaf = named[name]
        if np.shape(leaf) != np.shape(like) or leaf.dtype != like.dtype:
            raise ValueError(
                f"The state of {what} does not fit: {name} is {leaf.dtype}{list(np.shape(leaf))}, and should be "
                f"{like.dtype}{list(np.shape(like))}. Load it with the same modules, optimizers, connectors and "
                f"environment."
            )
        leaves.append(leaf)
    return jax.tree.unflatten(jax.tree.structure(template), leaves)


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def is_key(leaf: Any) -> bool:
    """Whether a leaf is an array of PRNG keys."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
