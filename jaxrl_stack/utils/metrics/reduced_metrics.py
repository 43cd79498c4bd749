"""ReducedMetrics: results of a learner update, in a form that `MetricsLogger.aggregate` accepts. The results are
numbers that are already means or sums, such as losses.
"""

from __future__ import annotations

from typing import Any

from jaxrl_stack.utils.metrics.stats import ItemStats, LifetimeSumStats, StatsBase, SumStats
from jaxrl_stack.utils.results import adds_up, nested_leaves


class ReducedMetrics(dict[str, Any]):
    """Results of a learner update, as a nested dict of numbers. `MetricsLogger.aggregate` accepts this dict in place of
    a result of ``MetricsLogger.reduce()``.
    """

    def statistics(self) -> list[tuple[tuple[str, ...], StatsBase]]:
        """Converts each number in the results of a learner update to a `StatsBase` object, which a MetricsLogger
        can merge. Returns a list of ``(path, object)``.

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
