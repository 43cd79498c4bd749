"""Axes of a figure: scales, and limits that ignore single outliers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, TypedDict

import numpy as np

Scale = Literal["linear", "log", "symlog"]
_SCALES = ("linear", "log", "symlog")
_WINDOW = 3
"""Neighbours at each side that a value is compared with."""
_MIN_POINTS = 20
"""Minimum number of points of a curve that may have outliers. The range of an axis contains all values of shorter
curves.
"""


class AxisOptions(TypedDict, total=False):
    """Options of a figure's axes: keyword arguments of all functions that draw curves.

    Attributes:
        ylim: Ends of the y axis, ``(low, high)``; None for an end that fits the curves.
        xscale: Scale of the x axis: "linear", "log" or "symlog", which is linear around 0 and logarithmic further away.
        yscale: Scale of the y axis, as `xscale`.
    """

    ylim: tuple[float | None, float | None] | None
    xscale: Scale
    yscale: Scale


def check_axis_options(options: AxisOptions) -> None:
    """Raises TypeError or ValueError for invalid options of a figure's axes.

    Raises:
        TypeError: If an option has an unknown name.
        ValueError: If a value is invalid.
    """
    for name in options:
        if name not in AxisOptions.__annotations__:
            raise TypeError(f"A figure has no option {name!r}. Choose from {', '.join(AxisOptions.__annotations__)}.")
    for name in ("xscale", "yscale"):
        scale = options.get(name, "linear")
        if scale not in _SCALES:
            raise ValueError(f"{name}={scale!r}: must be one of {', '.join(map(repr, _SCALES))}.")
    _check_limits(options.get("ylim"))


def _check_limits(limits: Any) -> None:
    if limits is None:
        return
    is_pair = isinstance(limits, list | tuple) and len(limits) == 2
    ends = [end for end in limits if end is not None] if is_pair else []
    is_known = all(isinstance(end, int | float) and math.isfinite(end) for end in ends)
    if not (is_pair and is_known and (len(ends) < 2 or ends[0] < ends[1])):
        raise ValueError(f"ylim={limits!r}: must be (low, high) with low < high, such as (0, 500) or (0, None).")


class Limits(NamedTuple):
    """Range of a figure's axis that contains all values except outliers, and the outliers themselves.

    Attributes:
        low, high: Ends of the range.
        outside: Values outside of the range.
    """

    low: float
    high: float
    outside: np.ndarray


def robust_limits(curves: Iterable[np.ndarray]) -> Limits | None:
    """Computes a range of an axis that leaves out single outliers, because they would make all curves look flat. None
    if the curves have no outlier.

    Args:
        curves: ``float[points]`` each, in the order of x.

    Returns:
        None if there is no outlier. An outlier is further away from the median of its neighbours than twice the range
        of the running medians.
    """
    known = [values[np.isfinite(values)] for values in curves]
    long = [values for values in known if len(values) >= _MIN_POINTS]
    if not long:
        return None
    medians = [_neighbours_median(values) for values in long]
    smooth = np.concatenate(medians)
    spread = float(smooth.max() - smooth.min())
    if not spread > 0.0:
        # A curve that is flat but for some values: those are what it has to say.
        return None
    is_far = [np.abs(values - median) > 2.0 * spread for values, median in zip(long, medians, strict=True)]
    outside = np.concatenate([values[far] for values, far in zip(long, is_far, strict=True)])
    if not len(outside):
        return None
    kept = [values[~far] for values, far in zip(long, is_far, strict=True)]
    kept += [values for values in known if 0 < len(values) < _MIN_POINTS]
    inside = np.concatenate(kept)
    low, high = float(inside.min()), float(inside.max())
    margin = 0.05 * (high - low)
    return Limits(low - margin, high + margin, outside)


def _neighbours_median(values: np.ndarray) -> np.ndarray:
    """Median of each value's neighbours: the `_WINDOW` values before and the `_WINDOW` values after the value, or fewer
    at the ends of the array.
    """
    padded = np.concatenate([np.full(_WINDOW, np.nan), values, np.full(_WINDOW, np.nan)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * _WINDOW + 1)
    return np.nanmedian(np.delete(windows, _WINDOW, axis=1), axis=1)
