"""Packing of several arrays with 32-bit elements into one uint32 matrix, because one array is gathered or fetched
faster than many.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Slot:
    """Position of one leaf of a packed pytree: columns of the matrix, or an index in the list of arrays that are not
    packed.

    Attributes:
        start: First column, or that position.
        shape: Shape of the leaf, without its leading axes.
        dtype: Dtype of the leaf.
        is_packed: Whether it is in the matrix.
    """

    start: int
    shape: tuple[int, ...]
    dtype: Any
    is_packed: bool

    def read(self, matrix: Any, loose: Any) -> Any:
        """Returns the leaf (array) at this position, ``[..., *shape]``.

        A packed leaf consists of columns of `matrix` ``[..., width]``; a leaf that was not packed is an entry of
        `loose`. `matrix` and the arrays in `loose` are NumPy arrays (the result is then a view if possible) or JAX
        arrays.
        """
        if not self.is_packed:
            return loose[self.start]
        if self.shape == ():
            part = matrix[..., self.start]
        else:
            part = matrix[..., self.start : self.start + math.prod(self.shape)]
            part = part.reshape(*matrix.shape[:-1], *self.shape) if len(self.shape) > 1 else part
        return part != 0 if self.dtype.kind == "b" else part.view(self.dtype)


def pack(leaves: Sequence[jax.Array], lead: int = 1) -> tuple[jax.Array | None, tuple[jax.Array, ...], list[Slot]]:
    """Packs arrays of 32-bit numbers and bools side by side into one uint32 matrix.

    Arrays of other dtypes stay separate; an array that is given twice is stored once.

    Args:
        leaves: Arrays ``[*lead, ...]``.
        lead: Number of axes that all of them share.

    Returns:
        ``(matrix uint32 [*lead, width], loose arrays, one slot per leaf)``. The matrix is None where it has no column;
        loose are leaves of other dtypes (frames of bytes, say).
    """
    slots = slots_of(leaves, lead)
    own = {id(leaf): (leaf, slot) for leaf, slot in zip(leaves, slots, strict=True)}
    packed = [bits(leaf, lead) for leaf, slot in own.values() if slot.is_packed]
    matrix = jnp.concatenate(packed, axis=-1) if packed else None
    return matrix, tuple(leaf for leaf, slot in own.values() if not slot.is_packed), slots


def slots_of(leaves: Sequence[Any], lead: int = 1, *, flags: bool = True) -> list[Slot]:
    """Computes where `pack` stores each array.

    A packed array has columns of the packed matrix; another array has an index among the arrays that are not packed.
    With ``flags=False``, bool arrays are not packed.
    """
    slots: dict[int, Slot] = {}
    width = num_loose = 0
    for leaf in leaves:
        if id(leaf) in slots:
            continue
        shape = leaf.shape[lead:]
        if leaf.dtype.itemsize == 4 or (flags and leaf.dtype == jnp.bool_):
            slots[id(leaf)] = Slot(width, shape, leaf.dtype, True)
            width += math.prod(shape)
        else:
            slots[id(leaf)] = Slot(num_loose, shape, leaf.dtype, False)
            num_loose += 1
    return [slots[id(leaf)] for leaf in leaves]


def bits(leaf: jax.Array, lead: int) -> jax.Array:
    """Converts an array of 32-bit numbers or bools to columns of a packed uint32 matrix.

    The array is ``[*lead, ...]``, the result ``[*lead, n]``. `lead` is the number of leading axes; n is the product of
    the lengths of the other axes.
    """
    is_flag = leaf.dtype == jnp.bool_
    words = leaf.astype(jnp.uint32) if is_flag else jax.lax.bitcast_convert_type(leaf, jnp.uint32)
    return words.reshape(*leaf.shape[:lead], math.prod(leaf.shape[lead:]))
