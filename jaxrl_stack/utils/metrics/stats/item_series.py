"""Statistics of a metric's newest values: a base class, and a statistic that returns the values themselves."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from jaxrl_stack.utils.metrics.stats.base import ReportingStats, as_window, interleave


class RecentStats(ReportingStats):
    """Base class of statistics that are computed from the newest logged values.

    Args:
        window: Number of values, kept over intervals; None or infinity: all since the last `reduce`.
    """

    setting_names = (*ReportingStats.setting_names, "window")

    def __init__(self, window: float | None = None, is_root: bool = False, is_leaf: bool = True):
        super().__init__(is_root, is_leaf)
        self.window = as_window(window)
        self._forget()

    def _forget(self) -> None:
        self._shown: deque[Any] = deque(maxlen=self.window)
        # What is still to be reported. Without a window both are the same and live equally long.
        self._new: deque[Any] = self._shown if self.window is None else deque(maxlen=self.window)

    def __len__(self) -> int:
        return len(self._shown)

    def _extend(self, values: Iterable[Any]) -> None:
        """Appends `values`, ordered from the oldest to the newest, to the stored values. With a window, only the newest
        `window` values stay stored.
        """
        for value in values:
            self._shown.append(value)
            if self._new is not self._shown:
                self._new.append(value)

    def _absorb(self, reports: list[Any]) -> None:
        self._extend(interleave([report._shown for report in reports]))

    def _report(self) -> Any:
        report = super()._report()
        report._extend(self._new)
        return report

    def _start_interval(self) -> None:
        self._new.clear()

    def get_state(self) -> dict[str, Any]:
        recent = {"window": self.window, "values": list(self._shown), "num_new": len(self._new)}
        return {**super().get_state(), "recent": recent}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self.window, values = state["recent"]["window"], state["recent"]["values"]
        num_old = len(values) - state["recent"]["num_new"]
        self._forget()
        self._extend(values[:num_old])
        self._new.clear()
        self._extend(values[num_old:])


class ItemSeriesStats(RecentStats):
    """Statistic that returns the newest logged items as a list, oldest first.

    Args:
        window: Number of items, kept over intervals; None or infinity: all since the last `reduce`.
    """

    stats_cls_identifier = "item_series"

    # RLlib names the argument so.
    def push(self, item: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._extend([item])

    def _show(self, compile: bool) -> list[Any]:
        return list(self._shown)
