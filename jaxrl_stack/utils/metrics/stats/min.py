"""Statistic: the smallest of the logged values."""

from __future__ import annotations

from typing import Any

from jaxrl_stack.utils.metrics.stats.series import SeriesStats


class MinStats(SeriesStats):
    """Statistic that returns the smallest of the logged values; NaN without values."""

    stats_cls_identifier = "min"

    def reduce_values(self, values: list[Any]) -> Any:
        return min(values)
