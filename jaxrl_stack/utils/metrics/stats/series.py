"""Base class of statistics that reduce several numbers to one number, such as mean and maximum."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from jaxrl_stack.utils.metrics.stats.base import as_number, interleave
from jaxrl_stack.utils.metrics.stats.item_series import RecentStats


class SeriesStats(RecentStats):
    """Base class of statistics, such as mean and maximum, of the last `window` numbers, or of all numbers since the
    last `reduce`.

    `reduce` does not clear a window. NaN values take a place in the window, but do not enter the result; if all values
    are NaN, the result is `value_of_nothing`. Without a window, only the result so far is kept, not the values.

    Args:
        window: Number of values; None or infinity: all since the last `reduce`.
    """

    value_names = ("running", "count")
    value_of_nothing: float = float("nan")
    """Value that `peek` returns if there are no values, or only NaN."""

    # Without a window: the result so far, and of how many values it is.
    _running: Any = None
    _count = 0

    @abstractmethod
    def reduce_values(self, values: list[Any]) -> Any:
        """Computes the statistic (mean, maximum, ...) of a list of at least one number. The caller has removed NaN
        values from the list.
        """

    def window_reduce(self, values: Any = None) -> list[Any]:
        """Computes the statistic, such as the maximum, of the numbers in `values`; skips NaN values.

        If `values` is None, uses the last `window` logged values, or without a window all values since the last
        `reduce`. Returns a list, ``[statistic]``. If no number is left, the statistic is the class attribute
        `value_of_nothing`, such as NaN.
        """
        numbers = [v for v in (self._values() if values is None else values) if v == v]
        return [self.reduce_values(numbers) if numbers else self.value_of_nothing]

    def running_reduce(self, value_1: Any, value_2: Any) -> list[Any]:
        """Updates `value_1`, the statistic of the values since the last `reduce`, with `value_2`.

        `value_2` is a new value, or the statistic of another logger's values. Returns the updated statistic in a list,
        ``[statistic]``.
        """
        return self.window_reduce([value_1, value_2])

    def _values(self) -> list[Any]:
        if self.window is not None:
            return list(self._shown)
        return [self._running] if self._count else []

    def __len__(self) -> int:
        return self._count if self.window is None else len(self._shown)

    def push(self, value: Any) -> None:
        value = as_number(value)
        if self.window is not None:
            self._extend([value])
        elif value == value:
            self._combine(value, 1)

    def _combine(self, value: Any, count: int) -> None:
        self._running = self.running_reduce(self._running, value)[0] if self._count else value
        self._count += count

    def _absorb(self, reports: list[Any]) -> None:
        if self.window is not None:
            self._extend(interleave([report._values() for report in reports]))
            return
        for report in reports:
            if report.window is not None:
                for value in report._values():
                    self.push(value)
            elif report._count:
                self._combine(report._running, report._count)

    def _show(self, compile: bool) -> Any:
        return self.window_reduce()[0] if compile else self._values()

    def _start_interval(self) -> None:
        super()._start_interval()
        self._running, self._count = None, 0
