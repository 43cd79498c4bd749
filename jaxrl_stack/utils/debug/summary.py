"""Conversion of nested data to a short text, for debugging."""

from __future__ import annotations

import pprint
from typing import Any

import numpy as np


class _Text(str):
    """String whose ``repr`` has no quotation marks, for the description of an array in printed data."""

    def __repr__(self) -> str:
        return str(self)


def summarize(obj: Any) -> str:
    """Formats nested dicts, lists, tuples and named tuples as text; arrays are described by shape, dtype, smallest and
    largest value, and mean.

    Args:
        obj: The data.
    """
    return pprint.pformat(_summary(obj), indent=2, width=60)


def _summary(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _summary(item) for key, item in value.items()}
    if hasattr(value, "_asdict"):
        return {"type": type(value).__name__, "data": _summary(value._asdict())}
    if isinstance(value, list | tuple):
        return type(value)(_summary(item) for item in value)
    if not hasattr(value, "dtype") or not getattr(value, "shape", ()):
        return value
    array = np.asarray(value)
    if array.size and array.dtype.kind in "biuf":
        low, high, mean = (round(float(number), 3) for number in (array.min(), array.max(), array.mean()))
        return _Text(f"np.ndarray({array.shape}, dtype={array.dtype}, min={low}, max={high}, mean={mean})")
    head = f", head={_summary(array[0])}" if array.size else ""
    return _Text(f"np.ndarray({array.shape}, dtype={array.dtype}{head})")
