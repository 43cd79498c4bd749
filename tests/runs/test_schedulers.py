"""Schedulers of sweeps: Tune's arguments, sets of members, explored settings, rungs, lineages."""

from __future__ import annotations

import collections
import dataclasses
import random
from typing import Any

import numpy as np
import pytest
from ray import tune
from ray.tune.schedulers import ASHAScheduler, HyperBandScheduler, PopulationBasedTraining, pbt
from ray.tune.schedulers.async_hyperband import _Bracket

from jaxrl_stack.runs.halving import Halving, survivors
from jaxrl_stack.runs.lineage import Copy, Lineage
from jaxrl_stack.runs.pbt import PBT, explore, quantiles
from jaxrl_stack.runs.search_space import example_values
from jaxrl_stack.runs.series_folder import argument_text
from jaxrl_stack.runs.tune_schedulers import read_scheduler

RATES = tune.loguniform(1e-4, 1e-1)


def test_all_arguments_of_tunes_population_based_training_are_read():
    given = {
        "time_attr": "num_env_steps_sampled_lifetime",
        "metric": "env_runners/episode_len_mean",
        "mode": "min",
        "perturbation_interval": 7,
        "burn_in_period": 3,
        "quantile_fraction": 0.4,
        "resample_probability": 0.1,
        "perturbation_factors": (2.0, 0.5),
        "custom_explore_fn": dict,
    }
    mutations = {"lr": RATES, "env_config": {"gravity": [5.0, 9.8]}}
    read = read_scheduler(PopulationBasedTraining(hyperparam_mutations=mutations, synch=True, **given), "run_sweep")
    assert read == PBT(mutations={"lr": RATES, "env_config/gravity": [5.0, 9.8]}, **given)


def test_all_arguments_of_tunes_asha_are_read():
    given = {"max_t": 90, "grace_period": 10, "reduction_factor": 3, "mode": "min", "stop_last_trials": False}
    given |= {"time_attr": "time_total_s", "metric": "env_runners/episode_len_mean"}
    assert read_scheduler(ASHAScheduler(**given), "run_sweep") == Halving(**given)
    assert read_scheduler(ASHAScheduler(), "run_sweep") == Halving(max_t=100)


@pytest.mark.parametrize(
    ("scheduler", "message"),
    [
        (ASHAScheduler(brackets=2), r"ASHAScheduler\(brackets=2\) is not supported, .*Set brackets=1"),
        (
            HyperBandScheduler(),
            r"run_sweep\(scheduler=<.*HyperBandScheduler.*must be a PopulationBasedTraining or an ASHA",
        ),
        ("asha", r"run_sweep\(scheduler='asha'\): must be a PopulationBasedTraining or an ASHAScheduler"),
    ],
)
def test_other_schedulers_and_several_brackets_are_refused(scheduler, message):
    with pytest.raises(ValueError, match=message):
        read_scheduler(scheduler, "run_sweep")


class Trial:
    """The part of a trial that Tune's quantiles read."""

    experiment_tag = ""

    def is_finished(self):
        return False


def tunes_quantiles(scores, fraction):
    scheduler = PopulationBasedTraining(hyperparam_mutations={"lr": RATES}, quantile_fraction=fraction)
    trials: list[Any] = [Trial() for _ in scores]
    for trial, score in zip(trials, scores, strict=True):
        scheduler._trial_state[trial] = pbt._PBTTrialState(trial)
        scheduler._trial_state[trial].last_score = score
    return [list(map(trials.index, chosen)) for chosen in scheduler._quantiles()]


@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.3, 0.5])
@pytest.mark.parametrize("num_members", [2, 3, 4, 5, 8, 9])
def test_the_replaced_members_and_their_sources_are_tunes(num_members, fraction):
    scores = np.random.default_rng(num_members).integers(4, size=num_members).astype(float)
    assert list(quantiles(scores, fraction)) == tunes_quantiles(scores, fraction)


def test_diverged_members_are_replaced_first_and_members_without_a_score_before_others():
    scores = np.array([3.0, np.nan, 1.0, 5.0, np.nan, 4.0, 2.0, 6.0])
    assert list(quantiles(scores, 0.25, diverged=[4])) == [[4, 1], [3, 7]]
    assert list(quantiles(scores, 0.25)) == [[1, 4], [3, 7]]
    assert list(quantiles(scores[:4], 0.25, diverged=[1])) == [[1], [3]]
    # More have diverged than the quantile has members.
    assert list(quantiles(np.array([np.nan, np.nan, 1.0, 2.0]), 0.25, diverged=[0, 1])) == [[0, 1], [3]]
    assert list(quantiles(np.full(4, np.nan), 0.5)) == [[], []]
    assert list(quantiles(scores, 0.0)) == [[], []]


def frequencies(draws):
    return {value: count / len(draws) for value, count in collections.Counter(draws).items()}


@pytest.mark.parametrize(
    ("space", "value"),
    [
        ([1, 10, 100, 1000], 10),
        ((1, 10, 100, 1000), 1),
        ([1, 10], 7),
        (tune.choice([2.0, 4.0, 8.0]), 4.0),
        (tune.choice([2, 4, 8]), 4),
        (tune.randint(2, 5), 3),
        (tune.choice([True, False]), True),
        (lambda: 2.5, 1.0),
    ],
)
def test_explored_values_have_the_distribution_of_tunes_explore_step(space, value):
    num_draws, rng = 4000, np.random.default_rng(0)
    arguments = PBT({"x": space}, 1, resample_probability=0.4, perturbation_factors=(1.5, 0.5, 2.0))
    own = [explore(arguments, {"x": value}, rng, lambda name, value: True) for _ in range(num_draws)]
    random.seed(0)
    np.random.seed(0)
    factors: Any = (1.5, 0.5, 2.0)
    tunes = [pbt._explore({"x": value}, {"x": space}, 0.4, factors, None) for _ in range(num_draws)]
    for ours, theirs in (
        ([one.settings["x"] for one in own], [new["x"] for new, _ in tunes]),
        ([one.operations["x"] for one in own], [operations["x"] for _, operations in tunes]),
    ):
        ours, theirs = frequencies(ours), frequencies(theirs)
        assert ours.keys() == theirs.keys()
        # Four standard deviations of a difference of two shares of 4,000.
        assert all(abs(ours[key] - theirs[key]) < 4 * (0.5 / num_draws) ** 0.5 for key in ours)
    assert {type(one.settings["x"]) for one in own} == {type(new["x"]) for new, _ in tunes}


def test_a_continuous_space_is_resampled_with_the_probability_and_else_multiplied():
    rng = np.random.default_rng(0)
    arguments = PBT({"lr": RATES}, 1)
    drawn = [explore(arguments, {"lr": 1e-2, "gamma": 0.9}, rng, lambda *_: True) for _ in range(4000)]
    assert {one.settings["gamma"] for one in drawn} == {0.9}
    shares = frequencies([one.operations["lr"] for one in drawn])
    assert shares == pytest.approx({"resample": 0.25, "* 1.2": 0.375, "* 0.8": 0.375}, abs=0.03)
    logs = np.log10([one.settings["lr"] for one in drawn if one.operations["lr"] == "resample"])
    # Uniform in the logarithm: the mean of [-4, -1] and its standard deviation.
    assert (logs.mean(), logs.std()) == pytest.approx((-2.5, 3 / 12**0.5), abs=0.1)


def test_a_product_that_a_setting_refuses_becomes_the_end_of_its_space_or_stays():
    rng, below_one = np.random.default_rng(0), lambda name, value: value <= 1.0
    never = {"resample_probability": 0.0, "perturbation_factors": (1.2,)}
    ends = explore(PBT({"gamma": tune.uniform(0.8, 0.999)}, 1, **never), {"gamma": 0.95}, rng, below_one)
    assert ends == ({"gamma": 0.999}, {"gamma": "* 1.2, clipped"})
    # An end that the setting refuses, too.
    too_wide = explore(PBT({"gamma": tune.uniform(0.8, 1.1)}, 1, **never), {"gamma": 0.95}, rng, below_one)
    assert too_wide.settings == {"gamma": 0.95}
    stays = explore(PBT({"gamma": lambda: 0.9}, 1, **never), {"gamma": 0.95}, rng, below_one)
    assert stays.settings == {"gamma": 0.95}


def test_a_custom_explore_function_has_the_last_word_and_must_return_the_settings():
    rng = np.random.default_rng(0)
    half = PBT({}, 1, custom_explore_fn=lambda settings: {name: value / 2 for name, value in settings.items()})
    assert explore(half, {"lr": 0.5}, rng, lambda *_: True).settings == {"lr": 0.25}
    broken: Any = lambda settings: None  # noqa: E731
    with pytest.raises(
        ValueError, match=r"custom_explore_fn returned None: must be a dict with exactly the settings lr"
    ):
        explore(PBT({}, 1, custom_explore_fn=broken), {"lr": 0.5}, rng, lambda *_: True)


def test_example_values_are_choices_or_next_to_the_ends():
    assert example_values(tune.choice([3, 1])) == [3, 1]
    assert example_values(tune.randint(2, 5)) == [2, 4]
    assert example_values(tune.uniform(0.0, 2.0)) == [pytest.approx(2e-6), pytest.approx(2.0 - 2e-6)]
    assert example_values(tune.randn(0, 1)) == example_values(lambda: 1.0) == []


def test_the_text_of_a_quantized_space_has_its_quantum():
    texts = [argument_text(tune.quniform(0, 1, q)) for q in (0.1, 0.5)]
    assert texts == ["Uniform(0, 1), q=0.1", "Uniform(0, 1), q=0.5"]
    assert argument_text(tune.loguniform(1e-3, 1)) == "LogUniform(0.001, 1)"


@pytest.mark.parametrize(("burn_in", "times"), [(0, [3, 6, 9, 12]), (5, [5, 8, 11]), (6, [6, 9, 12])])
def test_perturbations_follow_the_interval_after_the_burn_in_period(burn_in, times):
    arguments, last, due = PBT({}, 3, burn_in_period=burn_in), 0, []
    for time in range(1, 13):
        if arguments.is_due(time, last):
            due.append(time)
            last = time
    assert due == times


def test_rungs_are_powers_of_the_factor_below_the_end():
    assert Halving(max_t=200, grace_period=10).rungs == [10, 40, 160]
    assert Halving(max_t=160, grace_period=10).rungs == [10, 40]
    assert Halving(max_t=160, grace_period=10, stop_last_trials=False).rungs == [10, 40, 160]
    assert Halving(max_t=5, grace_period=5).rungs == []
    assert Halving(max_t=1000, grace_period=1, reduction_factor=10).rungs == [1, 10, 100]


@pytest.mark.parametrize("factor", [2, 3, 4, 2.5])
@pytest.mark.parametrize("num_runs", [2, 3, 4, 5, 9, 16, 17, 64])
def test_survivors_are_the_runs_at_or_above_tunes_cutoff(num_runs, factor):
    scores = np.random.default_rng(num_runs).permutation(num_runs).astype(float)
    cutoff: Any = _Bracket(1, 100, factor, 0).cutoff(dict(enumerate(scores)))
    # The percentile of Tune is a score up to rounding.
    assert survivors(scores, range(num_runs), factor) == np.flatnonzero(scores >= cutoff - 1e-9).tolist()


def test_runs_with_the_score_of_the_cutoff_continue_in_any_order_as_in_tune():
    scores = np.array([1.0, 7.0, 5.0, 5.0, 5.0, 3.0])
    bracket: Any = _Bracket(1, 100, 4, 0)
    assert bracket.cutoff(dict(enumerate(scores))) == 5.0
    assert survivors(scores, range(6), 4) == [1, 2, 3, 4]
    assert survivors(scores[::-1], range(6), 4) == [1, 2, 3, 4]
    assert survivors(np.full(6, 13.0), range(6), 4) == list(range(6))
    # A run without a score does not fill a place.
    assert survivors(np.array([np.nan, 1.0, np.nan, np.nan, np.nan]), range(5), 2) == [1]


@pytest.mark.parametrize("given", [{"grace_period": 0}, {"reduction_factor": 1}, {"max_t": float("inf")}])
def test_rungs_that_would_not_grow_are_refused(given):
    (name,) = given
    with pytest.raises(ValueError, match=rf"Halving\({name}=.*Set {name}="):
        Halving(**{"max_t": 100} | given)


def test_seeds_of_a_combination_survive_together_by_their_mean():
    scores, groups = np.array([9.0, 1.0, 5.0, 6.0, 8.0, np.nan, 2.0, 2.0]), [0, 0, 1, 1, 2, 2, 3, 3]
    # The means are 5, 5.5, -inf and 2.
    assert survivors(scores, groups, 4) == [2, 3]
    assert survivors(scores, groups, 2) == [0, 1, 2, 3]


LINEAGE = Lineage(
    ({"lr": 1.0}, {"lr": 2.0}, {"lr": 3.0}),
    (
        Copy(2, 1, 0, 10.0, 5.0, {"lr": 1.0}, {"lr": 2.4}, {"lr": "* 1.2"}),
        Copy(4, 0, 2, 20.0, 6.0, {"lr": 3.0}, {"lr": 0.5}, {"lr": "resample"}),
        Copy(4, 1, 0, 20.0, 6.0, {"lr": 2.4}, {"lr": 1.6}, {"lr": "* 0.8"}),
    ),
)


def test_a_lineage_knows_the_values_that_led_to_a_member():
    assert LINEAGE.present == [{"lr": 1.6}, {"lr": 2.0}, {"lr": 0.5}]
    # Member 2 is a copy of 0 after iteration 4, which was a copy of 1 after iteration 2.
    assert LINEAGE.ancestors(2) == [(1, 1), (3, 0), (5, 2)]
    assert LINEAGE.schedule(2, "lr") == [(1, 2.0), (3, 2.4), (5, 0.5)]
    assert LINEAGE.schedule(1, "lr") == [(1, 2.0)]
    expected = [[1.0, 2.0, 3.0]] * 2 + [[2.4, 2.0, 3.0]] * 2 + [[1.6, 2.0, 0.5]]
    np.testing.assert_array_equal(LINEAGE.values("lr", 5), expected)
    assert LINEAGE.until(3).present == [{"lr": 2.4}, {"lr": 2.0}, {"lr": 3.0}]


def test_a_lineage_is_a_table_a_frame_and_a_file(tmp_path):
    header, first, *_ = str(LINEAGE).splitlines()
    assert header.split() == ["iteration", "target", "source", "score", "source's", "lr"]
    assert first.split() == ["2", "0", "1", "5", "10", "1", "→", "2.4"]
    assert LINEAGE.to_pandas()["new/lr"].tolist() == [2.4, 0.5, 1.6]
    LINEAGE.write(tmp_path / "lineage.jsonl")
    assert Lineage.read(tmp_path / "lineage.jsonl") == LINEAGE
    without_score = dataclasses.replace(LINEAGE.copies[0], target_score=np.nan)
    dataclasses.replace(LINEAGE, copies=(without_score,)).write(tmp_path / "diverged.jsonl")
    assert "NaN" not in (tmp_path / "diverged.jsonl").read_text()
    assert np.isnan(Lineage.read(tmp_path / "diverged.jsonl").copies[0].target_score)
    with pytest.raises(ValueError, match=r"Lineage.read\(\) cannot read .*other.jsonl"):
        Lineage.read(tmp_path / "other.jsonl")
