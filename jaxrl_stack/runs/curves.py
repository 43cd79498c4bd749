"""Curves of runs, and their aggregate over several seeds with an interval.

Source: Agarwal et al., "Deep reinforcement learning at the edge of the statistical precipice", NeurIPS 2021: runs are
aggregated by the interquartile mean, and the band around it is a percentile bootstrap that draws whole runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

STEPS, SECONDS, ITERATIONS = "num_env_steps_sampled_lifetime", "time_total_s", "training_iteration"
X_AXES = {STEPS: "environment steps", SECONDS: "seconds", ITERATIONS: "iterations"}
"""Column of a run's table, used as x axis of curves -> label of the axis."""
_SHORT_NAMES = {"steps": STEPS, "seconds": SECONDS, "time": SECONDS, "iterations": ITERATIONS}

RETURN = "env_runners/episode_return_mean"

_LABELS = {
    "episode_return_mean": "mean episode return",
    "episode_len_mean": "mean episode length",
    "num_env_steps_sampled_lifetime_throughput": "environment steps per second",
    "vf_explained_var": "explained variance of the critic",
    "mean_kl_loss": "KL divergence",
    "approx_kl": "KL divergence, estimated",
    "vf_loss": "value loss",
    "alpha_value": "entropy coefficient (alpha)",
    "qf_mean": "mean Q-value",
    "qf_loss": "loss of the Q-values",
    "gradients_default_optimizer_global_norm": "gradient norm",
    "default_optimizer_learning_rate": "learning rate",
}
"""Numbers of results whose own names need an explanation."""

_NUM_POINTS = 200
_NUM_RESAMPLES = 2000


def x_axis(name: str) -> str:
    """Converts the name of an x axis, such as ``"steps"``, to the column of a run's table.

    Args:
        name: ``"steps"``, ``"seconds"`` (or ``"time"``), ``"iterations"``, or the name of any column.
    """
    return _SHORT_NAMES.get(name, name)


def axis_label(x: str) -> str:
    """Label of a figure's x axis. `x` is a short name such as ``"steps"``, or a column of a run's table."""
    return X_AXES.get(x_axis(x), key_label(x))


def key_label(key: str) -> str:
    """Label of a metric in a figure: "return" for ``"env_runners/episode_return_mean"``."""
    place, _, name = key.rpartition("/")
    label = _LABELS.get(name) or name.replace("_", " ")
    if place.endswith(("/agent_episode_returns_mean", "/module_episode_returns_mean")):
        label = f"mean episode return of {name}"
    return f"{label} (evaluation)" if key.startswith("evaluation/") else label


@dataclasses.dataclass(frozen=True)
class Curve:
    """Values of one metric over the course of one run.

    Attributes:
        x: ``float64[points]``, ascending.
        y: ``float64[points]`` without NaN.
    """

    x: np.ndarray
    y: np.ndarray

    @classmethod
    def of(cls, x: np.ndarray, y: np.ndarray) -> Curve:
        """Creates a curve from the points whose x and y are both finite, sorted by x."""
        is_known = np.isfinite(x) & np.isfinite(y)
        x, y = x[is_known], y[is_known]
        order = np.argsort(x, kind="stable")
        return cls(x[order], y[order])


@dataclasses.dataclass(frozen=True)
class Band:
    """Aggregate curve of runs that differ only in their seed, with an interval around it.

    Attributes:
        label: Name of the group.
        curves: Curve of each run.
        x: ``float64[points]``, ascending.
        middle: ``float64[points]``.
        low: ``float64[points]``, lower end of the interval; the middle itself for one run.
        high: ``float64[points]``, upper end of the interval.
        is_thin: Whether to draw it as a thin grey line, next to more important bands.
    """

    label: str
    curves: tuple[Curve, ...]
    x: np.ndarray
    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray
    is_thin: bool = False


def iqm(values: np.ndarray, axis: int = 0) -> np.ndarray:
    """The interquartile mean: the mean of the values without the lowest and the highest quarter.

    Args:
        values: ``[..., n, ...]``.
        axis: Axis of the n values; ``n // 4`` are left out at each end.
    """
    count = values.shape[axis]
    cut = count // 4
    ordered = values if cut == 0 else np.partition(values, (cut, count - cut - 1), axis=axis)
    return ordered.take(range(cut, count - cut), axis).mean(axis)


STATISTICS: dict[str, Callable[..., np.ndarray]] = {"iqm": iqm, "mean": np.mean, "median": np.median}
"""How several runs become one curve, by name."""


def statistic_of(name: str) -> Callable[..., np.ndarray]:
    """Returns the function under `name` in `STATISTICS`, which computes a statistic over runs, such as the
    interquartile mean for ``"iqm"``.

    Raises:
        ValueError: If it is none of them.
    """
    if name not in STATISTICS:
        raise ValueError(f"aggregate={name!r}: must be one of {', '.join(map(repr, STATISTICS))}.")
    return STATISTICS[name]


def bootstrap_interval(
    scores: np.ndarray, statistic: Callable[..., np.ndarray], *, confidence: float = 0.95
) -> tuple[np.ndarray, np.ndarray]:
    """Computes the confidence interval of a statistic over runs, such as the mean, by percentile bootstrap.

    Args:
        scores: ``float64[runs, points]``; whole runs are resampled.
        statistic: One of `STATISTICS`.
        confidence: Share of the resamples between the ends.

    Returns:
        ``(low, high)``, ``float64[points]`` each; always the same for the same scores.
    """
    drawn = np.random.default_rng(0).integers(len(scores), size=(_NUM_RESAMPLES, len(scores)))
    # A point after the other: all resamples of all points would be gigabytes.
    samples = np.stack([statistic(runs[drawn], axis=1) for runs in scores.T], axis=1)
    rest = (1.0 - confidence) / 2.0
    low, high = np.quantile(samples, (rest, 1.0 - rest), axis=0)
    return low, high


def aggregated(curves: Sequence[Curve], label: str, *, aggregate: str = "iqm", confidence: float = 0.95) -> Band:
    """Aggregates the curves of several runs to one `Band` (a curve with an interval).

    The band covers the part of the x axis that all runs cover: from the latest start to the earliest end.

    Args:
        curves: Curve of each run; those without points are left out.
        label: Name of the group.
        aggregate: One of `STATISTICS`.
        confidence: Confidence of the band.

    Returns:
        The aggregate at 200 equidistant points, linearly interpolated in each run; a single run unchanged, without a
        band.

    Raises:
        ValueError: If no run has points, or the runs have no common part of the axis.
    """
    statistic = statistic_of(aggregate)
    curves = tuple(curve for curve in curves if len(curve.x))
    if not curves:
        raise ValueError(f"{label}: no run has values of this metric. Train longer, or choose another metric: key=...")
    if len(curves) == 1:
        (x, y) = curves[0].x, curves[0].y
        return Band(label, curves, x, y, y, y)
    start, end = max(curve.x[0] for curve in curves), min(curve.x[-1] for curve in curves)
    if start > end:
        raise ValueError(f"{label}: the runs' ranges on the x axis do not overlap. Draw them with x='iterations'.")
    x = np.linspace(start, end, _NUM_POINTS)
    scores = np.stack([np.interp(x, curve.x, curve.y) for curve in curves])
    low, high = bootstrap_interval(scores, statistic, confidence=confidence)
    return Band(label, curves, x, statistic(scores, axis=0), low, high)
