"""Statistic: the exponential moving average of the logged values."""

from __future__ import annotations

from typing import Any

from jaxrl_stack.utils.metrics.stats.base import ReportingStats, as_number


class EmaStats(ReportingStats):
    """Statistic ``ema = (1 - ema_coeff) * ema + ema_coeff * value``. The first value is the initial ``ema``.

    It survives `reduce`, and values that are NaN leave it as it is.

    Merging takes the mean of the reported averages, weighted by how many values each took in since its last
    report.

    Args:
        ema_coeff: Weight of a new value, in (0, 1].

    Raises:
        ValueError: If the coefficient is outside of (0, 1].
    """

    stats_cls_identifier = "ema"
    setting_names = (*ReportingStats.setting_names, "ema_coeff")
    value_names = ("value", "num_new")

    def __init__(self, ema_coeff: float = 0.01, is_root: bool = False, is_leaf: bool = True):
        super().__init__(is_root, is_leaf)
        if not 0.0 < ema_coeff <= 1.0:
            raise ValueError(f"ema_coeff={ema_coeff!r} must lie in (0, 1]; 0.01 is the default.")
        self.ema_coeff = ema_coeff
        self._value = float("nan")
        self._num_new = 0

    def push(self, value: Any) -> None:
        value = float(as_number(value))
        if value != value:
            return
        is_first = self._value != self._value
        self._value = value if is_first else (1.0 - self.ema_coeff) * self._value + self.ema_coeff * value
        self._num_new += 1

    def _absorb(self, reports: list[Any]) -> None:
        total = sum(report._num_new for report in reports)
        if total:
            # A report without news would bring in its 0 * NaN.
            self._value = sum(r._value * (r._num_new / total) for r in reports if r._num_new)
            self._num_new += total

    def _show(self, compile: bool) -> Any:
        return self._value if compile else [self._value]

    def _start_interval(self) -> None:
        self._num_new = 0
