"""Statistic: the arithmetic mean of the logged values."""

from __future__ import annotations

from typing import Any

from jaxrl_stack.utils.metrics.stats.series import SeriesStats


class MeanStats(SeriesStats):
    """Statistic that returns the arithmetic mean of the logged values; NaN without values.

    Merging weights every value equally: a logger that reports a hundred values counts a hundred times as much
    as one that reports a single one.
    """

    stats_cls_identifier = "mean"

    def reduce_values(self, values: list[Any]) -> float:
        return sum(values) / len(values)

    def _combine(self, value: Any, count: int) -> None:
        mean = self._running if self._count else value
        self._count += count
        # As a step from the old mean to the new one: large counts lose no digits.
        self._running = mean + (value - mean) * (count / self._count)
