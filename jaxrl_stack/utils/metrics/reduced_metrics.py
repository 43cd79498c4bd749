"""Numbers that are already means or sums, such as the losses of an update, as input of `MetricsLogger.aggregate`."""

from __future__ import annotations

from typing import Any

from jaxrl_stack.utils.metrics.stats import ItemStats, LifetimeSumStats, StatsBase, SumStats
from jaxrl_stack.utils.results import adds_up, nested_leaves


class ReducedMetrics(dict[str, Any]):
    """Results of a learner update: a nested dict of numbers that `MetricsLogger.aggregate` also accepts."""

    def statistics(self) -> list[tuple[tuple[str, ...], StatsBase]]:
        """Converts every number of the results to statistics that a MetricsLogger can merge. Returns a list of
        ``(path, statistics)``.

        Counts of steps (see `adds_up`) add up over learners and updates. Of all other metrics, the last number is kept,
        because the losses of several learners are already means over all learners.
        """
        values = dict(nested_leaves(self))
        out: list[tuple[tuple[str, ...], StatsBase]] = []
        for path, value in values.items():
            stats: StatsBase = ItemStats()
            if adds_up(path[-1]):
                stats = SumStats()
                # The total of one learner says nothing of the others': their parts make the total of all.
                part = (*path[:-1], path[-1].removesuffix("_lifetime"))
                if part != path and part in values:
                    stats, value = LifetimeSumStats(), values[part]
            stats.push(value)
            out.append((path, stats))
        return out
