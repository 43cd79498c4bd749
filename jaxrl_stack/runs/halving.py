"""Successive halving (Jamieson & Talwalkar, 2016): runs are compared at certain times, called rungs, and only the best
continue.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from jaxrl_stack.runs.curves import ITERATIONS
from jaxrl_stack.runs.stop import StopCriteria, Until


@dataclasses.dataclass(frozen=True)
class Halving:
    """Settings of successive halving, which ends the runs with the worst scores early. The attributes correspond to
    the arguments of Ray Tune's ``ASHAScheduler``.

    Attributes:
        max_t: Time at which runs end, in units of `time_attr`.
        grace_period: Time of the first rung.
        reduction_factor: One of this many runs continues at each rung; above 1.
        time_attr: Path of a number in results that grows with each iteration.
        metric: Path of the score in results; None for the mean return of the last evaluation, or of training without
            evaluations.
        mode: "max" if the highest score is best, "min" if the lowest is.
        stop_last_trials: Whether runs end at `max_t`; if False they only end at the goal.

    Raises:
        ValueError: If the rungs would not grow: `grace_period` is not above 0, `reduction_factor` is not above 1, or
            `max_t` is not finite.
    """

    max_t: float
    grace_period: float = 1
    reduction_factor: float = 4
    time_attr: str = ITERATIONS
    metric: str | None = None
    mode: Literal["max", "min"] = "max"
    stop_last_trials: bool = True

    def __post_init__(self) -> None:
        # NaN is not above a number.
        for name, value, low, remedy in (
            ("grace_period", self.grace_period, 0, "grace_period=1"),
            ("reduction_factor", self.reduction_factor, 1, "reduction_factor=4"),
        ):
            if not value > low:
                raise ValueError(f"Halving({name}={value!r}): must be above {low}. Set {remedy}.")
        if not math.isfinite(self.max_t):
            raise ValueError(
                f"Halving(max_t={self.max_t!r}): must be finite, because runs are compared until {self.time_attr!r} "
                "reaches max_t. Set max_t=100, for example."
            )

    @property
    def rungs(self) -> list[float]:
        """Times at which successive halving compares runs and ends the worst.

        These are all ``grace_period * reduction_factor**k`` below `max_t`, for k = 0, 1, ... If runs do not end at
        `max_t` (``stop_last_trials=False``), a time equal to `max_t` is also included.
        """
        found, rung = [], self.grace_period
        while rung < self.max_t or (rung == self.max_t and not self.stop_last_trials):
            found.append(rung)
            rung *= self.reduction_factor
        return found

    def with_end(self, until: Until) -> StopCriteria:
        """Returns `until` as stop criteria. If ``stop_last_trials=True``, adds a criterion: a run also ends when its
        metric `time_attr` reaches `max_t`.
        """
        criteria = StopCriteria(until)
        if self.stop_last_trials:
            criteria.add(self.time_attr, self.max_t)
        return criteria


def survivors(scores: np.ndarray, groups: Sequence[int], reduction_factor: float) -> list[int]:
    """Selects the runs that continue after a rung (a comparison of successive halving).

    The runs of a group, such as all seeds of one combination of settings, continue or end together. Of n groups, the
    ``1 + floor((n - 1) / reduction_factor)`` groups with the highest mean scores continue, and also each group with the
    same mean score as the last of them.

    Tune keeps the same groups: the groups at or above the percentile ``100 * (1 - 1 / reduction_factor)``.

    Args:
        scores: float ``[R]``, higher is better. Runs with NaN end if another group has a score.
        groups: Group of each run. A group has the mean of its scores, and its runs continue together.
        reduction_factor: See `Halving`.

    Returns:
        Indices of the runs in ascending order.
    """
    values = np.where(np.isnan(scores), -math.inf, scores)
    means = {group: np.mean([values[i] for i, own in enumerate(groups) if own == group]) for group in groups}
    order = sorted(means.values(), reverse=True)
    cutoff = order[math.floor((len(order) - 1) / reduction_factor)]
    lacks_score = order[0] == -math.inf
    return [i for i, group in enumerate(groups) if means[group] >= cutoff and (lacks_score or means[group] > -math.inf)]
