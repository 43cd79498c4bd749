"""Statistics of final scores over runs and tasks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from jaxrl_stack.runs.score_references import REFERENCES, ScoreReference, with_references
from jaxrl_stack.runs.score_statistics import (
    iqm_score,
    mean_score,
    median_score,
    normalised,
    optimality_gap,
    probability_of_improvement,
    score_distribution,
    score_interval,
)

RANDOM_SCORES = Path(__file__).parents[2] / "bench" / "random_scores.jsonl"
EXACT = {"rtol": 0.0, "atol": 1e-12}
SCORES = np.array([[0.0, 1.0, 2.0], [0.5, 1.5, 4.0]])
"""Two runs of three tasks, whose means are 0.25, 1.25 and 3."""


def test_statistics_are_those_computed_by_hand():
    np.testing.assert_allclose(mean_score(SCORES), 1.5, **EXACT)
    np.testing.assert_allclose(median_score(SCORES), 1.25, **EXACT)
    np.testing.assert_allclose(iqm_score(SCORES), (0.5 + 1.0 + 1.5 + 2.0) / 4, **EXACT)
    np.testing.assert_allclose(optimality_gap(SCORES), (1.0 + 0.0 + 0.0 + 0.5 + 0.0 + 0.0) / 6, **EXACT)
    shares = score_distribution(SCORES, np.array([-1.0, 0.0, 1.0, 4.0]))
    np.testing.assert_allclose(shares, [1.0, 5 / 6, 3 / 6, 0.0], **EXACT)
    # Per task 2, 3 and 1.5 of the 4 pairs: ties count a half.
    other = np.array([[0.0, 0.0, 2.0], [0.25, 1.0, 4.0]])
    np.testing.assert_allclose(probability_of_improvement(SCORES, other), (2.5 / 4 + 3.5 / 4 + 2.0 / 4) / 3, **EXACT)
    np.testing.assert_allclose(normalised(SCORES, [(0.0, 1.0), (1.0, 2.0), (0.0, 4.0)])[1], [0.5, 0.5, 1.0], **EXACT)


@pytest.mark.parametrize(("num_runs", "num_tasks"), [(1, 3), (3, 1), (5, 4), (10, 7)])
def test_iqm_and_probability_of_improvement_are_scipys(num_runs, num_tasks):
    rng = np.random.default_rng(num_runs)
    # Rounded, so that there are ties.
    own, others = rng.normal(size=(num_runs, num_tasks)).round(1), rng.normal(size=(8, num_tasks)).round(1)
    np.testing.assert_allclose(iqm_score(own), stats.trim_mean(own.ravel(), 0.25), **EXACT)
    pairs = num_runs * 8
    wanted = np.mean([stats.mannwhitneyu(own[:, i], others[:, i]).statistic / pairs for i in range(num_tasks)])
    np.testing.assert_allclose(probability_of_improvement(own, others), wanted, **EXACT)
    np.testing.assert_allclose(probability_of_improvement(others, own), 1.0 - wanted, **EXACT)


def test_statistics_take_resamples_in_front():
    several = np.stack([SCORES, SCORES[::-1], SCORES + 1.0])
    for statistic in (mean_score, median_score, iqm_score, optimality_gap):
        np.testing.assert_allclose(statistic(several), [statistic(one) for one in several], **EXACT)
    compared = probability_of_improvement(several, several[::-1])
    wanted = [probability_of_improvement(a, b) for a, b in zip(several, several[::-1], strict=True)]
    np.testing.assert_allclose(compared, wanted, **EXACT)
    thresholds = np.array([0.5, 2.0])
    wanted = [score_distribution(one, thresholds) for one in several]
    np.testing.assert_allclose(score_distribution(several, thresholds), wanted, **EXACT)


def test_intervals_repeat_and_resample_runs_within_each_task():
    # Tasks differ by 100 and runs by 1: a bootstrap that mixed tasks would be far wider.
    scores = np.arange(6.0)[:, None] + np.array([0.0, 100.0, 200.0])
    low, high = score_interval(mean_score, scores)
    assert 101.0 < low < 102.5 < high < 104.0
    np.testing.assert_array_equal(score_interval(mean_score, scores), (low, high))
    narrow = score_interval(mean_score, scores, confidence=0.5)
    assert low < narrow[0] < narrow[1] < high
    same = np.zeros((5, 2))
    np.testing.assert_array_equal(score_interval(iqm_score, same), (0.0, 0.0))
    np.testing.assert_array_equal(score_interval(probability_of_improvement, same, same), (0.5, 0.5))


@pytest.mark.parametrize("statistic", [mean_score, iqm_score])
def test_intervals_cover_the_true_value(statistic):
    """500 experiments of 10 runs of 3 tasks, all distributions symmetric around the true value."""
    rng = np.random.default_rng(1)
    experiments = 1.0 + rng.normal(size=(500, 10, 3)) * np.array([0.5, 1.0, 1.5])
    bounds = np.array([score_interval(statistic, one, num_resamples=200) for one in experiments])
    covered = np.mean((bounds[:, 0] <= 1.0) & (bounds[:, 1] >= 1.0))
    assert 0.9 <= covered <= 0.99


def test_references_of_random_actions_are_measured():
    lines = RANDOM_SCORES.read_text().splitlines()
    measured = {line["run"]["env"]: line["measured"] for line in map(json.loads, lines)}
    random = {task: one for task, one in REFERENCES.items() if one.source.startswith("random actions")}
    assert len(random) >= 8 and random.keys() <= measured.keys()
    for task, reference in random.items():
        assert abs(reference.low - measured[task]["mean"]) <= measured[task]["standard_error"]


def test_references_are_ordered_and_a_users_take_their_place():
    assert all(one.low < one.high and one.source for one in REFERENCES.values())
    own = with_references({"CartPole-v1": (9, 475, "mine"), "new": [0.0, 2.0, "paper"]})
    assert own["CartPole-v1"] == ScoreReference(9.0, 475.0, "mine") and own["new"].high == 2.0
    assert own["Hopper-v5"] == REFERENCES["Hopper-v5"]
    for wrong in ((1.0, 0.0, "x"), (0.0, 1.0), (0.0, float("nan"), "x"), 5.0):
        with pytest.raises(ValueError, match=r"references=\{'new': .*must be \(low, high, source\) with low < high"):
            with_references({"new": wrong})
