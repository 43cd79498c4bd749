"""Statistic: the sum of the logged values."""

from __future__ import annotations

import time as clock
from typing import Any

from jaxrl_stack.utils.metrics.stats.base import as_number
from jaxrl_stack.utils.metrics.stats.series import SeriesStats


class SumStats(SeriesStats):
    """Statistic that returns the sum of the logged values; 0 without values.

    Args:
        with_throughput: Also measure how much is added per second.
        **kwargs: See `SeriesStats`.
    """

    stats_cls_identifier = "sum"
    setting_names = (*SeriesStats.setting_names, "with_throughput")
    value_of_nothing = 0

    def __init__(self, with_throughput: bool = False, **kwargs: Any):
        super().__init__(**kwargs)
        self.with_throughput = bool(with_throughput)
        # Rates are of this process, and no part of the state.
        self._added: float = 0
        self._reference_time = clock.perf_counter()

    def reduce_values(self, values: list[Any]) -> Any:
        return sum(values)

    @property
    def throughputs(self) -> float:
        """Throughput since the last `reduce`: the amount added to the sum, divided by the seconds since then."""
        return self._added / max(clock.perf_counter() - self._reference_time, 1e-9)

    def initialize_throughput_reference_time(self, time: float) -> None:
        self._reference_time = time

    def push(self, value: Any) -> None:
        value = as_number(value)
        super().push(value)
        if value == value:
            self._added += value

    def _absorb(self, reports: list[Any]) -> None:
        super()._absorb(reports)
        self._added += sum(report._added for report in reports)

    def _report(self) -> Any:
        report = super()._report()
        report._added = self._added
        return report

    def _start_interval(self) -> None:
        super()._start_interval()
        self._added = 0
        self._reference_time = clock.perf_counter()
