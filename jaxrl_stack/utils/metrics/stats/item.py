"""Statistic: the last logged value, of any type."""

from __future__ import annotations

from typing import Any

from jaxrl_stack.utils.metrics.stats.base import ReportingStats


class ItemStats(ReportingStats):
    """Statistic that returns the last logged item, of any type; None before the first item. `reduce` does not clear the
    item.

    Merging keeps the last of the reported items.
    """

    stats_cls_identifier = "item"
    value_names = ("item", "is_new")
    _item: Any = None
    _is_new = False

    # RLlib names the argument so.
    def push(self, item: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._item, self._is_new = item, True

    def _absorb(self, reports: list[Any]) -> None:
        for report in reports:
            if report._is_new:
                self.push(report._item)

    def _show(self, compile: bool) -> Any:
        return self._item if compile else [self._item]

    def _start_interval(self) -> None:
        self._is_new = False
