"""Statistic: the largest of the logged values."""

from __future__ import annotations

from typing import Any

from jaxrl_stack.utils.metrics.stats.series import SeriesStats


class MaxStats(SeriesStats):
    """Statistic that returns the largest of the logged values; NaN without values."""

    stats_cls_identifier = "max"

    def reduce_values(self, values: list[Any]) -> Any:
        return max(values)
