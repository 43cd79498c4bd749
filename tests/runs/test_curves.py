"""Curves of several seeds: the interquartile mean, and the band around it."""

from __future__ import annotations

import numpy as np
import pytest
import scipy

from jaxrl_stack.runs.curves import STATISTICS, Curve, aggregated, bootstrap_interval, iqm


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 11])
@pytest.mark.parametrize("axis", [0, 1])
def test_the_interquartile_mean_is_scipys_trimmed_mean(count, axis):
    values = np.random.default_rng(count).normal(size=(count, 7) if axis == 0 else (7, count))
    np.testing.assert_allclose(iqm(values, axis), scipy.stats.trim_mean(values, 0.25, axis), rtol=1e-12)


def test_one_lucky_and_one_unlucky_seed_do_not_move_the_interquartile_mean():
    assert iqm(np.array([-1e6, 2.0, 4.0, 1e6])) == 3.0


def test_the_interval_of_two_runs_is_that_of_the_four_pairs_that_can_be_drawn():
    # Means 0, 5, 5, 10 with a quarter of the chance each: 95 % of them reach from the lowest to the highest.
    low, high = bootstrap_interval(np.array([[0.0, 1.0], [10.0, 1.0]]), np.mean)
    np.testing.assert_array_equal((low, high), ([0.0, 1.0], [10.0, 1.0]))
    low, high = bootstrap_interval(np.array([[0.0], [10.0]]), np.mean, confidence=0.4)
    np.testing.assert_array_equal((low, high), ([5.0], [5.0]))


def test_the_interval_is_that_of_the_normal_distribution_for_the_mean_of_many():
    runs = np.random.default_rng(1).normal(size=(100, 1))
    low, high = bootstrap_interval(runs, np.mean)
    expected = runs.mean() + np.array([-1.96, 1.96]) * runs.std() / 10.0
    np.testing.assert_allclose((low[0], high[0]), expected, atol=0.03)


def test_runs_are_compared_where_all_of_them_have_been():
    curves = [Curve(np.array([0.0, 10.0]), np.array([0.0, 10.0])), Curve(np.array([2.0, 6.0]), np.array([4.0, 8.0]))]
    band = aggregated(curves, "two", aggregate="mean")
    assert (band.x[0], band.x[-1], band.label) == (2.0, 6.0, "two")
    np.testing.assert_allclose(band.middle, band.x + 1.0, rtol=1e-12)
    np.testing.assert_allclose(band.low, band.x, rtol=1e-12)
    np.testing.assert_allclose(band.high, band.x + 2.0, rtol=1e-12)


def test_one_run_is_drawn_as_it_is():
    curve = Curve(np.array([1.0, 2.0, 4.0]), np.array([3.0, 1.0, 2.0]))
    band = aggregated([curve, Curve(np.zeros(0), np.zeros(0))], "one")
    for values in (band.middle, band.low, band.high):
        np.testing.assert_array_equal(values, curve.y)
    np.testing.assert_array_equal(band.x, curve.x)


def test_points_that_are_not_known_do_not_count_and_x_ascends():
    curve = Curve.of(np.array([3.0, np.nan, 1.0, 2.0]), np.array([30.0, 20.0, 10.0, np.nan]))
    np.testing.assert_array_equal(curve.x, [1.0, 3.0])
    np.testing.assert_array_equal(curve.y, [10.0, 30.0])


def test_what_cannot_be_aggregated_is_refused():
    here, there = (Curve(np.array(x), np.zeros(2)) for x in ([0.0, 1.0], [2.0, 3.0]))
    with pytest.raises(ValueError, match="aggregate='max': must be one of 'iqm', 'mean', 'median'"):
        aggregated([here], "a", aggregate="max")
    with pytest.raises(ValueError, match="ranges on the x axis do not overlap"):
        aggregated([here, there], "a")
    with pytest.raises(ValueError, match="a: no run has values"):
        aggregated([], "a")


@pytest.mark.parametrize("aggregate", STATISTICS)
def test_a_band_is_the_same_whenever_it_is_computed(aggregate):
    curves = [Curve(np.arange(5.0), np.random.default_rng(seed).normal(size=5)) for seed in range(4)]
    first, second = (aggregated(curves, "", aggregate=aggregate) for _ in range(2))
    np.testing.assert_array_equal((first.low, first.high), (second.low, second.high))
    assert np.all(first.low <= first.middle) and np.all(first.middle <= first.high)
