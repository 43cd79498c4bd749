"""Statistic: a sum of all logged values that is never reset."""

from __future__ import annotations

import time as clock
from typing import Any

from jaxrl_stack.utils.metrics.stats.base import ReportingStats, as_number


class LifetimeSumStats(ReportingStats):
    """Sum of all values that were ever logged, including values before a restore. Reports to a parent logger only the
    amount since the last `reduce`.

    Args:
        with_throughput: Also measure how much is added per second.
    """

    stats_cls_identifier = "lifetime_sum"
    setting_names = (*ReportingStats.setting_names, "with_throughput")
    value_names = ("total", "new")

    def __init__(self, with_throughput: bool = False, is_root: bool = False, is_leaf: bool = True):
        super().__init__(is_root, is_leaf)
        self.with_throughput = bool(with_throughput)
        self._total: float = 0
        self._new: float = 0
        self._restored_total: float = 0
        self._restore_time = self._reduce_time = clock.perf_counter()

    def push(self, value: Any) -> None:
        value = as_number(value)
        if value == value:
            self._total += value
            self._new += value

    @property
    def throughputs(self) -> dict[str, float]:
        """Both throughputs of the sum, ``{name: amount added per second}``: since the last `reduce`, and since
        construction or the last `set_state`.
        """
        return {
            "throughput_since_last_reduce": self.throughput_since_last_reduce,
            "throughput_since_last_restore": self.throughput_since_last_restore,
        }

    @property
    def throughput_since_last_reduce(self) -> float:
        """Throughput since the last `reduce`: the amount added to the sum, divided by the seconds since then."""
        return self._new / max(clock.perf_counter() - self._reduce_time, 1e-9)

    @property
    def throughput_since_last_restore(self) -> float:
        """Throughput since construction or the last `set_state`: the amount added to the sum, divided by the seconds
        since then.
        """
        return (self._total - self._restored_total) / max(clock.perf_counter() - self._restore_time, 1e-9)

    def initialize_throughput_reference_time(self, time: float) -> None:
        self._restore_time = self._reduce_time = time

    def _absorb(self, reports: list[Any]) -> None:
        for report in reports:
            self.push(report._new)

    def _show(self, compile: bool) -> Any:
        return self._total if compile else [self._total]

    def _report(self) -> Any:
        report = self.clone()
        report.push(self._new)
        return report

    def _start_interval(self) -> None:
        self._new = 0
        self._reduce_time = clock.perf_counter()

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self._restored_total = self._total
        self._restore_time = self._reduce_time = clock.perf_counter()
