"""Values that are kept as they are."""

from __future__ import annotations

from typing import Any, Self

from jaxrl_stack.utils.metrics.stats.base import RecentValues, ReportingStats, interleave


class RecentStats(ReportingStats):
    """Base of what is made of the newest values themselves.

    Args:
        window: Number of values, kept over intervals; None or infinity: all since the last `reduce`.
    """

    setting_names = (*ReportingStats.setting_names, "window")

    def __init__(self, window: float | None = None, is_root: bool = False, is_leaf: bool = True):
        super().__init__(is_root, is_leaf)
        self._recent = RecentValues(window)

    @property
    def window(self) -> int | None:
        """Number of values kept over intervals."""
        return self._recent.window

    def __len__(self) -> int:
        return len(self._recent.shown)

    def _absorb(self, reports: list[Any]) -> None:
        self._recent.extend(interleave([report._recent.shown for report in reports]))

    def _report(self) -> Self:
        report: Any = self.clone()
        report._recent.extend(self._recent.new)
        return report

    def _start_interval(self) -> None:
        self._recent.start_interval()

    def get_state(self) -> dict[str, Any]:
        return {**super().get_state(), "recent": self._recent.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self._recent = RecentValues.from_state(state["recent"])


class ItemSeriesStats(RecentStats):
    """Shows the items themselves, oldest first.

    Args:
        window: Number of items, kept over intervals; None or infinity: all since the last `reduce`.
    """

    stats_cls_identifier = "item_series"

    # RLlib names the argument so.
    def push(self, item: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._recent.extend([item])

    def _show(self, compile: bool) -> list[Any]:
        return list(self._recent.shown)
