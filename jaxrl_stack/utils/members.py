"""Functions for population states: one pytree contains the states of all members (runs). Each leaf is either shared
by all members, or has one entry per member.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl_stack.utils.named_leaves import is_key


def member_axes(state: Any) -> Any:
    """Axes of a population's state for ``in_axes`` of `jax.vmap`: 0 for leaves with an entry for each member, None for
    shared leaves.

    The attribute ``shared_by_members`` of a state, a tuple of names, lists the fields that all members share: values
    that control flow depends on, such as counts of updates and the head of a ring. If such a field differed between
    members, `jax.vmap` would run both sides of a branch, and turn a write to a ring into a scatter.

    Args:
        state: A pytree. States with the attribute may be anywhere in it.

    Returns:
        Pytree of 0 and None. Its structure is a prefix of the state's structure.
    """

    def axes(node: Any) -> Any:
        if not _says_what_is_shared(node):
            return 0
        fields = [f.name for f in dataclasses.fields(node) if f.metadata.get("pytree_node", True)]
        own = {n: None if n in node.shared_by_members else member_axes(getattr(node, n)) for n in fields}
        return dataclasses.replace(node, **own)

    return jax.tree.map(axes, state, is_leaf=_says_what_is_shared)


def _says_what_is_shared(node: Any) -> bool:
    return dataclasses.is_dataclass(node) and hasattr(node, "shared_by_members")


def split_fixed(state: Any) -> tuple[Any, Any]:
    """Splits a training state into ``(changing part, fixed part)``.

    The changing part contains the fields that training changes; the fixed part contains the constant fields, such as a
    data set. The other fields of each part are None. Without constant fields, the fixed part itself is None.

    The class attribute ``fixed_fields`` lists the names of the constant fields, which all members share.
    """
    fixed = getattr(state, "fixed_fields", ())
    if not fixed:
        return state, None
    own = {f.name: None for f in dataclasses.fields(state) if f.name not in fixed}
    return dataclasses.replace(state, **dict.fromkeys(fixed)), dataclasses.replace(state, **own)


def with_fixed(state: Any, fixed: Any) -> Any:
    """Reverses `split_fixed`: joins the changing part `state` of a training state with the part `fixed`, which contains
    the constant fields.
    """
    if fixed is None:
        return state
    return dataclasses.replace(state, **{name: getattr(fixed, name) for name in fixed.fixed_fields})


def map_members(function: Callable[..., Any], axes: Any, *trees: Any, shared: Callable[..., Any] | None = None) -> Any:
    """Applies `function` to the corresponding leaves of one or more states, like `jax.tree.map`.

    If `axes` is None for a leaf, the population members share this leaf: the function `shared` is applied instead. If
    `shared` is None, shared leaves are taken from the first state.

    Args:
        function: Called with the leaves of all `trees`.
        axes: Result of `member_axes`.
        *trees: Pytrees with the structure of the state.
        shared: Called with leaves that are shared; None keeps those of the first tree.
    """

    def of_part(axis: Any, *parts: Any) -> Any:
        if axis is not None:
            return function(*parts)
        return parts[0] if shared is None else jax.tree.map(shared, *parts)

    return jax.tree.map(of_part, axes, *trees, is_leaf=lambda x: x is None)


def stacked(axes: Any, states: Sequence[Any]) -> Any:
    """Stacks the states of several population members along a new axis, on the host. Leaves that members share are
    taken from the first state.

    Args:
        axes: Result of `member_axes` for one of them.
        states: At least one, alike in structure and shapes.

    Returns:
        Leaves ``[M, ...]``; shared leaves are those of the first state.
    """
    return map_members(lambda *leaves: _stack(leaves), axes, *states)


def _stack(leaves: Sequence[Any]) -> Any:
    if is_key(leaves[0]):
        bits: Any = np.stack([jax.random.key_data(leaf) for leaf in leaves])
        return jax.random.wrap_key_data(bits, impl=jax.random.key_impl(leaves[0]))
    return np.stack([np.asarray(leaf) for leaf in leaves])
