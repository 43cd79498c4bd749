"""Statistic: percentiles of the logged values."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxrl_stack.utils.metrics.stats.base import as_number
from jaxrl_stack.utils.metrics.stats.item_series import RecentStats

DEFAULT_PERCENTILES = (0, 50, 75, 90, 95, 99, 100)


class PercentilesStats(RecentStats):
    """Statistic that returns percentiles of the newest logged values, ``{percentile: value}``, with linear
    interpolation; NaN without values.

    Args:
        percentiles: Numbers in [0, 100]; None or True: 0, 50, 75, 90, 95, 99 and 100.
        **kwargs: See `RecentStats`.

    Raises:
        ValueError: If `percentiles` is something else.
    """

    stats_cls_identifier = "percentiles"
    setting_names = (*RecentStats.setting_names, "percentiles")

    def __init__(self, percentiles: list[int] | bool | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        if percentiles is None or percentiles is True:
            percentiles = list(DEFAULT_PERCENTILES)
        if not isinstance(percentiles, (list, tuple)) or not all(0 <= p <= 100 for p in percentiles):
            raise ValueError(f"percentiles={percentiles!r} must be a list of numbers in [0, 100], or None.")
        self.percentiles = list(percentiles)

    def __add__(self, other: Any) -> Any:
        raise TypeError("Percentiles cannot be added with +. Merge the statistics instead: stats.merge([other_stats]).")

    def push(self, value: Any) -> None:
        self._extend([as_number(value)])

    def _show(self, compile: bool) -> Any:
        values = list(self._shown)
        if not compile:
            return values
        if not values:
            return dict.fromkeys(self.percentiles, float("nan"))
        return dict(zip(self.percentiles, np.percentile(values, self.percentiles).tolist(), strict=True))
