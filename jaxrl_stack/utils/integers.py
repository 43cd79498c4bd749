"""Smallest and largest integers of dtypes and discrete spaces, and a check whether integers fit a dtype. Needs only
NumPy and gymnasium.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Discrete, MultiBinary, MultiDiscrete


def limits_of(dtype: np.dtype) -> tuple[int, int]:
    """The smallest and the largest number of an integer dtype, or of bool."""
    if dtype.kind == "b":
        return 0, 1
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


def outside_of(dtype: np.dtype, array: np.ndarray) -> int | None:
    """Returns a number in `array` that the integer dtype `dtype` cannot represent, or None if all numbers fit.

    Returns the smallest number or, if the smallest fits, the largest.
    """
    if not array.size or np.can_cast(array.dtype, dtype):
        return None
    first, last = limits_of(dtype)
    low, high = int(array.min()), int(array.max())
    return low if low < first else high if high > last else None


def choices_of(space: Discrete | MultiDiscrete | MultiBinary) -> tuple[Any, Any]:
    """Smallest and largest value of each component of a discrete space: integers, or for `MultiDiscrete` arrays of the
    space's shape.
    """
    if isinstance(space, MultiBinary):
        return 0, 1
    count = space.n if isinstance(space, Discrete) else space.nvec
    return space.start, space.start + count - 1


__all__ = ["choices_of", "limits_of", "outside_of"]
