"""Statistics of final scores over runs and tasks.

Scores are ``float64[..., runs, tasks]``: one score per run, with as many runs of each task. Statistics over several
tasks need scores on one scale, such as 0 for a random policy and 1 for a reference.

Source: Agarwal et al., "Deep reinforcement learning at the edge of the statistical precipice", NeurIPS 2021
(https://arxiv.org/abs/2108.13264), section 4 and appendix A.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from jaxrl_stack.runs.curves import iqm

NUM_RESAMPLES = 2000
MIN_SEEDS_OF_IQM = 4
"""Minimum number of runs of a task for which the interquartile mean differs from the mean."""

Statistic = Callable[..., np.ndarray]


def mean_score(scores: np.ndarray) -> np.ndarray:
    """Mean over tasks of each task's mean score over its runs.

    Args:
        scores: ``float64[..., runs, tasks]``.

    Returns:
        ``float64[...]``.
    """
    return scores.mean(axis=(-2, -1))


def median_score(scores: np.ndarray) -> np.ndarray:
    """Median over tasks of each task's mean score over its runs.

    Args:
        scores: ``float64[..., runs, tasks]``.

    Returns:
        ``float64[...]``.
    """
    return np.median(scores.mean(axis=-2), axis=-1)


def iqm_score(scores: np.ndarray) -> np.ndarray:
    """Interquartile mean (25 % trimmed mean) of the scores of all runs of all tasks together.

    Args:
        scores: ``float64[..., runs, tasks]``. A quarter of the runs × tasks, rounded down, is left out at each end.

    Returns:
        ``float64[...]``.
    """
    return iqm(scores.reshape(*scores.shape[:-2], -1), axis=-1)


def optimality_gap(scores: np.ndarray, target: float = 1.0) -> np.ndarray:
    """Mean amount by which scores are below a target; scores above the target count as the target.

    Args:
        scores: ``float64[..., runs, tasks]``, normalised.
        target: The score that is considered optimal.

    Returns:
        ``float64[...]``, 0 if all runs reach the target. Lower is better.
    """
    return target - mean_score(np.minimum(scores, target))


def score_distribution(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Performance profile: fraction of runs with a score above each threshold, P(score > τ).

    Args:
        scores: ``float64[..., runs, tasks]``, normalised.
        thresholds: ``float64[n]``.

    Returns:
        ``float64[..., n]``.
    """
    # One threshold after the other: all at once would be gigabytes for many resamples.
    return np.stack([(scores > threshold).mean(axis=(-2, -1)) for threshold in thresholds], axis=-1)


def probability_of_improvement(scores: np.ndarray, baseline: np.ndarray) -> np.ndarray:
    """Mean over tasks of the probability that a run scores higher than a run of the baseline on the same task.

    Per task it is the Mann–Whitney U statistic divided by the number of pairs. Ties count ½.

    Args:
        scores: ``float64[..., runs, tasks]``.
        baseline: ``float64[..., runs of the baseline, tasks]``.

    Returns:
        ``float64[...]``.
    """
    own, others = scores[..., :, None, :], baseline[..., None, :, :]
    return ((own > others) + 0.5 * (own == others)).mean(axis=(-3, -2, -1))


def score_interval(
    statistic: Statistic, *scores: np.ndarray, confidence: float = 0.95, num_resamples: int = NUM_RESAMPLES
) -> tuple[np.ndarray, np.ndarray]:
    """Computes the confidence interval of a statistic with a percentile bootstrap that is stratified by task: runs are
    resampled within each task.

    Args:
        statistic: Function of resampled scores, ``float64[resamples, runs, tasks]`` each, that returns
            ``float64[resamples, ...]``.
        *scores: ``float64[runs, tasks]`` each. Each is resampled independently.
        confidence: Share of the resamples between the ends of the interval.
        num_resamples: How many resamples are drawn.

    Returns:
        ``(low, high)``, ``float64[...]`` each. The same scores always have the same interval.
    """
    rng = np.random.default_rng(0)
    drawn = []
    for one in scores:
        places = rng.integers(len(one), size=(num_resamples, *one.shape))
        drawn.append(np.take_along_axis(one[None], places, axis=1))
    rest = (1.0 - confidence) / 2.0
    low, high = np.quantile(statistic(*drawn), (rest, 1.0 - rest), axis=0)
    return low, high


def normalised(scores: np.ndarray, bounds: Sequence[tuple[float, float]]) -> np.ndarray:
    """Scores on a common scale: 0 is a task's low reference score, and 1 is its high reference score.

    Args:
        scores: ``float64[..., runs, tasks]``.
        bounds: ``(low, high)`` of each task.
    """
    low, high = np.array(bounds, np.float64).T
    return (scores - low) / (high - low)
