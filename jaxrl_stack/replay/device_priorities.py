"""Sampling in proportion to priorities on the device: pure functions on a tree of the priorities' sums and minima."""

from __future__ import annotations

import dataclasses
import functools
import math
from itertools import accumulate

import jax
import jax.numpy as jnp
from flax import struct

FAN = 16
"""Items per group, and groups per group of the next level. With two, a million items would be twenty dependent steps
deep; with sixteen, five."""

NO_ITEM = 2**31 - 1
"""Item index that `put` skips."""

_LOWEST, _HIGHEST = 1e-30, 1e30
"""Bounds of scaled priorities: sums over any number of items, and their products with a random number, are normal
float32 numbers."""


@struct.dataclass
class PriorityLevels:
    """Tree for drawing items, such as steps in a replay buffer, by priority.

    The tree contains the items' scaled priorities, and their sums and minima over groups of `FAN` (16) items. Higher
    levels of the tree are computed on demand.

    Sums and minima are always computed from all items of a group, never updated by differences: they do not drift, and
    groups of equal items have equal sums.

    Attributes:
        items: float32 ``[G, FAN]``, scaled priorities of the items in G groups; 0 for empty items.
        sums: float32 ``[G]``, sums of a group's scaled priorities, each multiplied by its multiplicity.
        minima: float32 ``[G]``, smallest scaled priorities; inf for empty groups.
        largest: float32, the largest priority that was ever set, at least 1 (the initial value).
        starts: float32 ``[G, FAN]``, multiplicities: factors of the items' probabilities in draws, see
            `arithmetic.num_starts`; None: all 1.
    """

    items: jax.Array
    sums: jax.Array
    minima: jax.Array
    largest: jax.Array
    starts: jax.Array | None = None


def init(num_items: int, has_starts: bool = False) -> PriorityLevels:
    """Creates an empty tree for the priorities of `num_items` items. With `has_starts`, each item also has a
    multiplicity, which multiplies its priority in draws.
    """
    num_groups = math.ceil(num_items / FAN)
    return PriorityLevels(
        items=jnp.zeros((num_groups, FAN), jnp.float32),
        sums=jnp.zeros((num_groups,), jnp.float32),
        minima=jnp.full((num_groups,), jnp.inf, jnp.float32),
        largest=jnp.ones((), jnp.float32),
        starts=jnp.ones((num_groups, FAN), jnp.float32) if has_starts else None,
    )


def scaled(priorities: jax.Array, alpha: float) -> jax.Array:
    """Scales priorities, ``priority ** alpha``, and clips them to [1e-30, 1e30]."""
    return jnp.clip(priorities**alpha, _LOWEST, _HIGHEST)


def values(levels: PriorityLevels, items: jax.Array) -> jax.Array:
    """Scaled priorities (``priority ** alpha``) of the items with the given indices, float32 ``[N]``; 0 for items
    without a priority.
    """
    return levels.items.reshape(-1).at[items].get(mode="promise_in_bounds")


def put(levels: PriorityLevels, items: jax.Array, counts: jax.Array, starts: jax.Array | None = None) -> PriorityLevels:
    """Sets the scaled priorities (``priority ** alpha``) of items, such as steps in a replay buffer.

    If an item occurs several times in `items`, the largest of its new priorities is stored.

    Args:
        levels: State.
        items: int32 ``[N]``; `NO_ITEM` is skipped.
        counts: float32 ``[N]``, scaled priorities; 0 removes the item.
        starts: float32 ``[N]``, multiplicities in draws, equal for equal items; None: unchanged.
    """
    flat = levels.items.reshape(-1).at[items].set(0.0, mode="drop").at[items].max(counts, mode="drop")
    stored = flat.reshape(levels.items.shape)
    groups = items // FAN
    members = stored.at[groups].get(mode="clip")
    smallest = jnp.where(members > 0, members, jnp.inf).min(axis=-1)
    of_items = levels.starts
    if of_items is not None:
        if starts is not None:
            of_items = of_items.reshape(-1).at[items].set(starts, mode="drop").reshape(stored.shape)
        members *= of_items.at[groups].get(mode="clip")
    # Items of one group write the same numbers.
    return dataclasses.replace(
        levels,
        items=stored,
        sums=levels.sums.at[groups].set(_summed(members.T), mode="drop"),
        minima=levels.minima.at[groups].set(smallest, mode="drop"),
        starts=of_items,
    )


def num_levels(num_items: int) -> int:
    """Number of levels of a priority tree with `num_items` items. To draw N items, `draw` needs N random numbers per
    level.
    """
    number, size = 1, math.ceil(num_items / FAN)
    while size > 1:
        number, size = number + 1, math.ceil(size / FAN)
    return number


def draw(levels: PriorityLevels, bits: jax.Array) -> jax.Array:
    """Draws random items (steps in a replay buffer) independently, int32 ``[N]``.

    The probability of an item is proportional to its scaled priority (``priority ** alpha``) times its multiplicity
    (`PriorityLevels.starts`).

    Every level uses a separate random number. A single number for all levels has only 24 bits: with a million items,
    the frequency of an item would be wrong by up to a tenth.

    Args:
        levels: State.
        bits: Random uint32 ``[num_levels, N]``.
    """
    above = []
    sums = levels.sums
    while sums.shape[0] > 1:
        # Members of a group lie side by side in columns: sums of columns are fast on every platform.
        sums = jnp.pad(sums, (0, -sums.shape[0] % FAN)).reshape(FAN, -1)
        above.append(sums)
        sums = _summed(sums)
    random = (bits >> 8).astype(jnp.float32) * jnp.float32(2.0**-24)
    groups = jnp.zeros((bits.shape[1],), jnp.int32)
    for level in range(len(above) - 1, -1, -1):
        columns = above[level].shape[1]
        child = _choose(above[level].at[:, groups].get(mode="promise_in_bounds"), random[level + 1])
        groups = child * columns + groups
    members = levels.items.at[groups].get(mode="promise_in_bounds").T
    if levels.starts is not None:
        members *= levels.starts.at[groups].get(mode="promise_in_bounds").T
    return groups * FAN + _choose(members, random[0])


def _choose(counts: jax.Array, random: jax.Array) -> jax.Array:
    """Draws an index from 0 to ``FAN - 1`` for each column of ``[FAN, N]``, in proportion to the column's values.

    Returns int32 ``[N]``; ``FAN - 1`` for a column in which all values are 0.
    """
    # One after the other: sums that never fall leave no way into a row that counts nothing.
    cumulated = list(accumulate(counts))
    target = random * cumulated[-1]
    passed = functools.reduce(jnp.add, [(c <= target).astype(jnp.int32) for c in cumulated])
    return jnp.minimum(passed, FAN - 1)


def _summed(counts: jax.Array) -> jax.Array:
    """Sums of the columns of an array ``[FAN, N]``, float32 ``[N]``. The rows are always added in the same order, so
    that equal columns have equal sums.
    """
    return functools.reduce(jnp.add, list(counts))


def total(levels: PriorityLevels) -> jax.Array:
    """Sum of the weights of all items in the tree.

    The weight of an item is its scaled priority (``priority ** alpha``) times its multiplicity
    (`PriorityLevels.starts`). The probability of an item in a draw is its weight divided by this sum.
    """
    return jnp.sum(levels.sums)


def minimum(levels: PriorityLevels) -> jax.Array:
    """Smallest scaled priority (``priority ** alpha``) of an item in the tree, float32; infinity if no item has a
    priority.
    """
    # Positive floats are in the order of their bits, and CPUs find the minimum of integers ten times faster.
    bits = jax.lax.bitcast_convert_type(levels.minima, jnp.int32)
    return jax.lax.bitcast_convert_type(bits.min(), jnp.float32)
