"""Detection of integer `Box` spaces whose bounds exceed 32-bit integers, and replacement by float32 `Box` spaces.
Compiled programs do not support integers beyond 32 bits.
"""

from __future__ import annotations

import jax
import numpy as np
from gymnasium.spaces import Box, Space

from jaxrl_stack.utils.integers import limits_of
from jaxrl_stack.utils.spaces import map_parts, with_parts


def has_wide_integers(space: Space) -> bool:
    """Whether a part of a space is a `Box` of integers whose bounds exceed 32-bit integers."""
    found: list[bool] = []
    map_parts(lambda part: found.append(_is_wide(part)), space)
    return any(found)


def with_floats(space: Space) -> Space:
    """Replaces integer Boxes whose bounds exceed 32-bit integers by float32 Boxes."""
    return with_parts(lambda part: _as_floats(part) if _is_wide(part) else part, space)


def _is_wide(part: Space) -> bool:
    if not isinstance(part, Box) or part.dtype.kind not in "iu":
        return False
    first, last = limits_of(jax.dtypes.canonicalize_dtype(part.dtype))
    return bool((part.low < first).any() or (part.high > last).any())


def _as_floats(part: Box) -> Box:
    low = np.where(part.bounded_below, part.low, -np.inf).astype(np.float32)
    high = np.where(part.bounded_above, part.high, np.inf).astype(np.float32)
    return Box(low, high, dtype=np.float32)


__all__ = ["has_wide_integers", "with_floats"]
