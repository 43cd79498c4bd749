"""Leaves of 32 bits side by side in one uint32 matrix: one array is gathered, or fetched, faster than many."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Slot:
    """Where one leaf is: columns of the matrix, or a position among the loose arrays.

    Attributes:
        start: First column, or that position.
        shape: Of the leaf, without its leading axes.
        dtype: Of the leaf.
        is_packed: Whether it is in the matrix.
    """

    start: int
    shape: tuple[int, ...]
    dtype: Any
    is_packed: bool

    def read(self, matrix: Any, loose: Any) -> Any:
        """The leaf ``[..., *shape]`` out of a matrix ``[..., width]``, NumPy (a view where that is possible) or JAX."""
        if not self.is_packed:
            return loose[self.start]
        if self.shape == ():
            part = matrix[..., self.start]
        else:
            part = matrix[..., self.start : self.start + math.prod(self.shape)]
            part = part.reshape(*matrix.shape[:-1], *self.shape) if len(self.shape) > 1 else part
        return part != 0 if self.dtype.kind == "b" else part.view(self.dtype)


def is_packable(dtype: Any) -> bool:
    """Whether arrays of a dtype fit the matrix: numbers of 32 bits, and flags."""
    return dtype.itemsize == 4 or dtype == jnp.bool_


def pack(leaves: Sequence[jax.Array], lead: int = 1) -> tuple[jax.Array | None, tuple[jax.Array, ...], list[Slot]]:
    """Lay leaves side by side; the same leaf, given twice, is there once.

    Args:
        leaves: Arrays ``[*lead, ...]``.
        lead: Number of axes that all of them share.

    Returns:
        ``(matrix uint32 [*lead, width], loose arrays, one slot per leaf)``. The matrix is None where it has no column;
        loose are leaves of other dtypes (frames of bytes, say).
    """
    slots = slots_of(leaves, lead)
    own = {id(leaf): (leaf, slot) for leaf, slot in zip(leaves, slots, strict=True)}
    packed = [_bits(leaf, lead) for leaf, slot in own.values() if slot.is_packed]
    matrix = jnp.concatenate(packed, axis=-1) if packed else None
    return matrix, tuple(leaf for leaf, slot in own.values() if not slot.is_packed), slots


def slots_of(leaves: Sequence[Any], lead: int = 1) -> list[Slot]:
    """Where `pack` puts each of these leaves, of which only shapes and dtypes are read."""
    slots: dict[int, Slot] = {}
    width = num_loose = 0
    for leaf in leaves:
        if id(leaf) in slots:
            continue
        shape = leaf.shape[lead:]
        if is_packable(leaf.dtype):
            slots[id(leaf)] = Slot(width, shape, leaf.dtype, True)
            width += math.prod(shape)
        else:
            slots[id(leaf)] = Slot(num_loose, shape, leaf.dtype, False)
            num_loose += 1
    return [slots[id(leaf)] for leaf in leaves]


def _bits(leaf: jax.Array, lead: int) -> jax.Array:
    """Columns ``[*lead, n]`` of the matrix."""
    is_flag = leaf.dtype == jnp.bool_
    bits = leaf.astype(jnp.uint32) if is_flag else jax.lax.bitcast_convert_type(leaf, jnp.uint32)
    return bits.reshape(*leaf.shape[:lead], math.prod(leaf.shape[lead:]))
