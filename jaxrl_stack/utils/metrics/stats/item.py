"""The last value of anything."""

from __future__ import annotations

from typing import Any

from jaxrl_stack.utils.metrics.stats.base import ReportingStats


class ItemStats(ReportingStats):
    """Shows the last item, whatever it is; None before the first one. It stays until the next one comes.

    Merging keeps the last of the reported items.
    """

    stats_cls_identifier = "item"

    def __init__(self, is_root: bool = False, is_leaf: bool = True):
        super().__init__(is_root, is_leaf)
        self._item: Any = None
        self._is_new = False

    def __len__(self) -> int:
        return 1

    # RLlib names the argument so.
    def push(self, item: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._item, self._is_new = item, True

    def _absorb(self, reports: list[Any]) -> None:
        for report in reports:
            if report._is_new:
                self.push(report._item)

    def _show(self, compile: bool) -> Any:
        return self._item if compile else [self._item]

    def _report(self) -> ItemStats:
        report: Any = self.clone()
        report._item, report._is_new = self._item, self._is_new
        return report

    def _start_interval(self) -> None:
        self._is_new = False

    def get_state(self) -> dict[str, Any]:
        return {**super().get_state(), "item": self._item, "is_new": self._is_new}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self._item, self._is_new = state["item"], state["is_new"]
