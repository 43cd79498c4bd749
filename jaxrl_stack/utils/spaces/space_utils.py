"""NumPy helpers for elements of spaces on the host, by RLlib's names; `jaxrl_stack.utils.spaces` is for compiled code.

A struct mirrors a space: dicts, tuples and lists, with arrays or numbers as leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Space, Tuple

from jaxrl_stack.utils import nested
from jaxrl_stack.utils.nested import tree_leaves, tree_map
from jaxrl_stack.utils.spaces.boxes import scaled_dimensions, scaled_from_bounds

get_base_struct_from_space = nested.space_struct


class BatchedNdArray(np.ndarray):
    """Array that already has a batch axis: ``batch(..., "auto")`` concatenates such arrays, and stacks other arrays."""

    def __new__(cls, input_array: Any) -> BatchedNdArray:
        return np.asarray(input_array).view(cls)


def get_original_space(space: Space) -> Space:
    """Space before preprocessing: follows the attribute ``original_space``, which preprocessed spaces have, until a
    space lacks this attribute. Returns that space.
    """
    while hasattr(space, "original_space"):
        space = space.original_space  # type: ignore[attr-defined]
    return space


def is_composite_space(space: Space) -> bool:
    """Whether a space consists of other spaces: `Dict`, `Tuple`, `Sequence` or `Graph`."""
    return isinstance(space, Dict | Tuple | gym.spaces.Sequence | gym.spaces.Graph)


def flatten_space(space: Space) -> list[Space]:
    """Parts of a space that are neither `Dict` nor `Tuple`, in order; parts of a `Dict` by sorted keys."""
    return tree_leaves(get_base_struct_from_space(space))


def get_dummy_batch_for_space(
    space: Any,
    batch_size: int = 32,
    *,
    fill_value: float | str = 0.0,
    time_size: int | None = None,
    time_major: bool = False,
    one_hot_discrete: bool = False,
) -> Any:
    """Creates a batch with the structure, shapes and dtypes of a space's elements, filled with one number or with
    random samples.

    Args:
        space: A space, or a struct of spaces.
        batch_size: B; 0 for one element without a batch axis.
        fill_value: The number in all places, or "random" for samples of the space.
        time_size: T; None for no time axis.
        time_major: ``[T, B, ...]`` instead of ``[B, T, ...]``.
        one_hot_discrete: float32 ``[n]`` for `Discrete(n)`, and ``[sum(nvec)]`` for `MultiDiscrete`.

    Returns:
        A struct like `space`; leaves ``[B, *leaf.shape]`` of the leaf's dtype.

    Raises:
        ValueError: A time axis without a batch axis.
    """
    if time_size is not None and batch_size < 1:
        raise ValueError(
            f"get_dummy_batch_for_space(batch_size={batch_size}, time_size={time_size}): a time axis needs a batch "
            "axis, batch_size >= 1."
        )
    leading = [n for n in (batch_size,) if n > 0]
    if time_size is not None:
        leading = [time_size, batch_size] if time_major else [batch_size, time_size]

    def fill(leaf: Any) -> np.ndarray:
        if one_hot_discrete and isinstance(leaf, Discrete | MultiDiscrete):
            leaf = Box(0.0, 1.0, (int(leaf.n if isinstance(leaf, Discrete) else leaf.nvec.sum()),), np.float32)
        if isinstance(fill_value, str):
            if fill_value != "random":
                raise ValueError(f"get_dummy_batch_for_space(fill_value={fill_value!r}): give a number, or 'random'.")
            drawn = [leaf.sample() for _ in range(int(np.prod(leading, dtype=int)))]
            return np.array(drawn, leaf.dtype).reshape(*leading, *leaf.shape)
        return np.full((*leading, *leaf.shape), fill_value, leaf.dtype)

    return tree_map(fill, get_base_struct_from_space(space) if isinstance(space, Space) else space)


def flatten_to_single_ndarray(input_: Any) -> Any:
    """Ravels and concatenates all leaves of a struct, dicts by sorted keys; returns an array unchanged."""
    if isinstance(input_, dict):
        input_ = [input_[key] for key in sorted(input_)]
    if not isinstance(input_, tuple | list):
        return input_
    return np.concatenate([np.ravel(flatten_to_single_ndarray(part)) for part in input_])


def batch(list_of_structs: Sequence[Any], *, individual_items_already_have_batch_dim: bool | str = False) -> Any:
    """Joins the structs in a list to one struct of arrays: ``[{"a": 1}, {"a": 2}]`` → ``{"a": array([1, 2])}``.

    Stacks the leaves along a new first axis. With `individual_items_already_have_batch_dim`, concatenates the leaves
    along their first axis instead.

    Args:
        list_of_structs: The items.
        individual_items_already_have_batch_dim: Concatenate along the first axis instead of stacking; "auto": if the
            first leaf of the first item is a `BatchedNdArray`.

    Raises:
        ValueError: There are no items, or their structures differ.
    """
    concatenates = individual_items_already_have_batch_dim
    if concatenates == "auto":
        concatenates = isinstance(next(iter(tree_leaves(list(list_of_structs))), None), BatchedNdArray)
    if not (concatenates and list_of_structs):
        return nested.batch(list_of_structs)
    return tree_map(lambda *leaves: np.concatenate(leaves), *list_of_structs)


def unbatch(batches_struct: Any) -> list[Any]:
    """Splits a struct of batches into a list of structs; inverse of `batch`."""
    return nested.unbatch(batches_struct)


def clip_action(action: Any, action_space: Any) -> Any:
    """Clips the `Box` parts of an action to the bounds of these parts.

    Args:
        action: A struct like `action_space`.
        action_space: A space, or the struct of spaces that `get_base_struct_from_space` makes.
    """
    return _map_boxes(lambda a, box: np.clip(a, box.low, box.high), action, action_space)


def unsquash_action(action: Any, action_space_struct: Any) -> Any:
    """Maps the `Box` parts of an action from [-1, 1] to their bounds, and clips the parts to their bounds.

    Maps only the dimensions with two finite bounds that differ.

    Integer boxes count from their lower bound. Other discrete parts stay as they are.

    Args:
        action: A struct like the space.
        action_space_struct: A space, or the struct of spaces that `get_base_struct_from_space` makes.
    """

    def unsquash(a: Any, box: Box) -> Any:
        if np.issubdtype(box.dtype, np.integer):
            return a + box.low
        scaled = scaled_dimensions(box)
        low, high = np.where(scaled, box.low, 0), np.where(scaled, box.high, 0)
        return np.clip(np.where(scaled, low + (a + 1.0) * (high - low) / 2.0, a), box.low, box.high)

    return _map_boxes(unsquash, action, action_space_struct)


def normalize_action(action: Any, action_space_struct: Any) -> Any:
    """Maps float `Box` parts of an action to [-1, 1] in dimensions with two finite bounds that differ; reverses
    `unsquash_action`.

    Integer boxes count from 0.

    Args:
        action: A struct like the space.
        action_space_struct: A space, or the struct of spaces that `get_base_struct_from_space` makes.
    """

    def normalize(a: Any, box: Box) -> Any:
        return a - box.low if np.issubdtype(box.dtype, np.integer) else scaled_from_bounds(box, a)

    return _map_boxes(normalize, action, action_space_struct)


def convert_element_to_space_type(element: Any, sampled_element: Any) -> Any:
    """Converts the types in `element`, so that the method ``contains`` of the element's space accepts them.

    If a leaf of `sampled_element` is a NumPy array, a NumPy scalar or an int, the part of `element` at the same
    position gets the type and dtype of this leaf. For example, a list becomes a NumPy array. Other parts are unchanged.

    Args:
        element: A struct, for example read from JSON.
        sampled_element: Result of ``space.sample()``.
    """

    def convert(like: Any, value: Any) -> Any:
        if isinstance(like, np.ndarray | np.generic):
            return np.asarray(value, like.dtype) if isinstance(like, np.ndarray) else like.dtype.type(value)
        return int(value) if isinstance(like, int) else value

    return tree_map(convert, sampled_element, element)


def _map_boxes(function: Callable[[Any, Box], Any], action: Any, space: Any) -> Any:
    struct = get_base_struct_from_space(space) if isinstance(space, Space) else space
    return tree_map(lambda leaf, a: function(np.asarray(a), leaf) if isinstance(leaf, Box) else a, struct, action)
