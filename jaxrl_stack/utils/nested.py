"""Nested NumPy data (dicts, tuples and lists of arrays) and their gymnasium spaces, on the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrl_stack.utils.spaces import map_parts

if TYPE_CHECKING:
    import gymnasium as gym


def tree_map(fn: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """``jax.tree.map`` that treats None as a leaf, because observations and other items of an episode may be None.

    Structures in `rest` may have other types of mappings or sequences than `tree`, with the same keys and lengths.

    Raises:
        ValueError: if a structure in `rest` differs from `tree`.
    """
    try:
        return jax.tree.map(fn, tree, *rest, is_leaf=_is_none)
    except ValueError:
        return jax.tree.map(fn, *map(_plain, (tree, *rest)), is_leaf=_is_none)


def owned(tree: Any) -> Any:
    """Copies dicts, lists, tuples and arrays that an environment returned, because it may overwrite them later."""
    if isinstance(tree, np.ndarray):
        return tree.copy()
    if type(tree) is dict:
        return {key: owned(value) for key, value in tree.items()}
    return type(tree)(map(owned, tree)) if type(tree) in (list, tuple) else tree


def tree_leaves(tree: Any) -> list[Any]:
    """``jax.tree.leaves`` that treats None as a leaf."""
    return jax.tree.leaves(tree, is_leaf=_is_none)


def _plain(tree: Any) -> Any:
    """Converts mappings in nested data to dicts, and lists to tuples, because JAX treats a list and a tuple, for
    example, as different structures.
    """
    if isinstance(tree, Mapping):
        return {key: _plain(value) for key, value in tree.items()}
    return tuple(map(_plain, tree)) if isinstance(tree, list | tuple) else tree


def _is_none(node: Any) -> bool:
    return node is None


def batch(items: Sequence[Any]) -> Any:
    """Stacks n equally structured items into one structure with leaves `[n, ...]`.

    Raises:
        ValueError: if `items` is empty, or the structures or leaf shapes differ.
    """
    if not items:
        raise ValueError("cannot batch an empty list: the structure of its items is unknown. Give at least one item.")
    return tree_map(lambda *leaves: np.stack(leaves) if np.ndim(leaves[0]) else np.array(leaves), *items)


def unbatch(tree: Any) -> list[Any]:
    """Splits a batch, a structure with leaves `[n, ...]`, into a list of n items; arrays in the items are views of the
    batch.
    """
    return [take(tree, row) for row in range(batch_size(tree))]


def take(tree: Any, index: Any) -> Any:
    """Indexes the leading axis of every leaf of a pytree with an int, a slice or an integer array."""
    return tree_map(lambda leaf: leaf[index], tree)


def row(tree: Any, index: int) -> Any:
    """Returns one item of a batch: copies of the leaves at one index, because the batch may be overwritten later."""
    return tree_map(lambda leaf: np.array(leaf[index]), tree)


def equal(left: Any, right: Any) -> bool:
    """Whether two pytrees of equal structure have equal values; NaN equals NaN."""
    same = tree_map(lambda a, b: np.array_equal(a, b, equal_nan=np.asarray(a).dtype.kind in "fc"), left, right)
    return all(tree_leaves(same))


def has_equal_bits(left: Any, right: Any) -> bool:
    """Whether two structures have the same number of leaves, and leaves with equal shapes, dtypes and bits."""
    one, other = (list(map(np.asarray, jax.tree.leaves(tree))) for tree in (left, right))
    return len(one) == len(other) and all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        for a, b in zip(one, other, strict=True)
    )


def batch_size(tree: Any) -> int:
    """Returns the batch size of a pytree: the common size of the leading axis of all leaves.

    Raises:
        ValueError: if there is no leaf, a leaf has no axis, or the sizes differ.
    """
    shapes = [np.shape(leaf) for leaf in tree_leaves(tree)]
    sizes = {shape[0] if shape else None for shape in shapes}
    if len(sizes) != 1 or None in sizes:
        raise ValueError(
            f"Batched data needs a leading axis of equal size in every leaf, but the shapes are {shapes}. Give all "
            f"leaves the same batch size."
        )
    return shapes[0][0]


def cast_lossless(values: np.ndarray, dtype: np.dtype) -> np.ndarray | None:
    """Converts `values` to `dtype`. Returns None if the conversion would change a value, except by rounding to a float
    or complex dtype.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        cast = values.astype(dtype)
    rounds = dtype.kind in "fc" and np.can_cast(values.dtype, dtype, "same_kind")
    return cast if rounds or np.array_equal(cast, values) else None


def full_like_item(item: Any, value: Any) -> Any:
    """Returns a structure like `item`, such as an observation, with all numeric leaves filled with `value`.

    Leaves keep their shape, and their dtype where it can hold `value` (the smallest common dtype otherwise).
    Where `item` has no leaves, or leaves that are not numbers, `value` itself is returned.
    """
    leaves = tree_leaves(item)
    if not leaves or any(np.asarray(leaf).dtype.kind not in "biufc" for leaf in leaves):
        return value

    def fill(leaf: Any) -> Any:
        dtype = np.asarray(leaf).dtype
        if cast_lossless(np.asarray(value), dtype) is None:
            dtype = np.promote_types(dtype, np.min_scalar_type(value))
        filled = np.full(np.shape(leaf), value, dtype)[()]
        return filled if isinstance(leaf, (np.ndarray, np.generic)) else filled.item()

    return tree_map(fill, item)


def space_struct(space: gym.Space) -> Any:
    """Converts a space to a struct of its elementary spaces, in a dict for `Dict` and a tuple for `Tuple`; returns an
    elementary space unchanged.
    """
    return map_parts(lambda part: part, space)


def blank_item(struct: Any) -> Any:
    """Creates a placeholder element of a space from its elementary spaces (`space_struct`): the first category of
    discrete spaces, zeros elsewhere.

    Raises:
        ValueError: if an elementary space has no fixed shape.
    """
    from gymnasium import spaces

    def blank(space: gym.Space) -> np.ndarray:
        if space.shape is None or space.dtype is None:
            raise ValueError(
                f"Items of {space} have no fixed shape, so a placeholder cannot be created. Use another space, such "
                f"as Box."
            )
        item = np.zeros(space.shape, space.dtype)
        if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
            item[...] = space.start
        return item

    return tree_map(blank, struct)


def one_hot(data: Any, struct: Any) -> Any:
    """One-hot encodes the `Discrete` and `MultiDiscrete` leaves of an element of a space, or of a batch of elements;
    returns other leaves unchanged.

    Args:
        data: structure of a `space_struct`, leaves with any number of leading axes.
        struct: elementary spaces of `data`.

    Returns:
        `Discrete(n)` leaves `[...]` become float32 `[..., n]`; `MultiDiscrete` leaves become float32
        `[..., sum(nvec)]`, the one-hot vectors side by side. Other leaves are returned as they are.

    Raises:
        ValueError: if a value lies outside its space.
    """
    from gymnasium import spaces

    def encode(space: gym.Space, values: Any) -> Any:
        if not isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
            return values
        sizes = np.ravel(space.n if isinstance(space, spaces.Discrete) else space.nvec)
        values, start = np.asarray(values), np.asarray(space.start)
        batch_shape = values.shape[: values.ndim - start.ndim]
        categories = values.reshape(*batch_shape, len(sizes)).astype(np.int64) - start.ravel()
        if values.dtype.kind not in "iu" or ((categories < 0) | (categories >= sizes)).any():
            raise ValueError(
                f"Cannot one-hot encode {values!r}: not all values are integers in the space {space}. Pass integers "
                "within the space."
            )
        columns = categories + np.cumsum(sizes) - sizes
        encoded = np.zeros((*categories.shape[:-1], sizes.sum()), np.float32)
        np.put_along_axis(encoded, columns, 1.0, axis=-1)
        return encoded

    return tree_map(encode, struct, data)
