"""Statistics of a MetricsLogger: one class per value of ``reduce``."""

from __future__ import annotations

from jaxrl_stack.utils.metrics.stats.base import StatsBase
from jaxrl_stack.utils.metrics.stats.ema import EmaStats
from jaxrl_stack.utils.metrics.stats.item import ItemStats
from jaxrl_stack.utils.metrics.stats.item_series import ItemSeriesStats
from jaxrl_stack.utils.metrics.stats.lifetime_sum import LifetimeSumStats
from jaxrl_stack.utils.metrics.stats.max import MaxStats
from jaxrl_stack.utils.metrics.stats.mean import MeanStats
from jaxrl_stack.utils.metrics.stats.min import MinStats
from jaxrl_stack.utils.metrics.stats.percentiles import PercentilesStats
from jaxrl_stack.utils.metrics.stats.series import SeriesStats
from jaxrl_stack.utils.metrics.stats.sum import SumStats

__all__ = [
    "EmaStats",
    "ItemSeriesStats",
    "ItemStats",
    "LifetimeSumStats",
    "MaxStats",
    "MeanStats",
    "MinStats",
    "PercentilesStats",
    "SeriesStats",
    "StatsBase",
    "SumStats",
]
