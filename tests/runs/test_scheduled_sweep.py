"""Sweeps with a scheduler: population-based training and successive halving."""

from __future__ import annotations

import dataclasses
import json
import random
import signal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ray import tune
from ray.tune.schedulers import ASHAScheduler, PopulationBasedTraining

from jaxrl_stack.algorithms.member_runs import Ended
from jaxrl_stack.algorithms.population import Population
from jaxrl_stack.runs import run_sweep
from jaxrl_stack.runs.curves import ITERATIONS, RETURN
from jaxrl_stack.runs.halving import Halving
from jaxrl_stack.runs.history import History
from jaxrl_stack.runs.lineage import Lineage
from jaxrl_stack.runs.member_history import MemberHistory
from jaxrl_stack.runs.scheduled import Halver, Scores
from jaxrl_stack.runs.search_space import combinations
from jaxrl_stack.runs.series import Trial
from jaxrl_stack.runs.series_folder import Wave
from jaxrl_stack.utils.memory import TooManyError
from tests import programs

CONFIG = programs.run()
SPACE = {"lr": tune.loguniform(1e-5, 1e-2), "env_config/gravity": tune.uniform(5.0, 15.0)}
MUTATIONS = {"lr": SPACE["lr"], "env_config": {"gravity": SPACE["env_config/gravity"]}}
NUM_MEMBERS = 4


def pbt(**arguments):
    given = {
        "time_attr": "training_iteration",
        "perturbation_interval": 2,
        "hyperparam_mutations": MUTATIONS,
        "synch": True,
    }
    return PopulationBasedTraining(**given | arguments)


def sweep(config=CONFIG, space=SPACE, **options):
    given = {"num_samples": NUM_MEMBERS, "until": 7, "progress": False, "scheduler": pbt()}
    return run_sweep(config, space, **given | options)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return tmp_path_factory.mktemp("pbt")


@pytest.fixture(scope="module")
def trained(results):
    random.seed(3)
    state = random.getstate()
    found = sweep(CONFIG.copy().reporting(results_dir=results))
    assert random.getstate() == state, "draws from global random numbers"
    return found


def test_the_worst_members_become_changed_copies_of_the_best(trained):
    lineage = trained.lineage
    assert list(lineage.first) == combinations(SPACE, NUM_MEMBERS, "run_sweep")
    # A quarter of 4 members, after iterations 2, 4 and 6; nothing trains after the last one, 7.
    assert [one.iteration for one in lineage.copies] == [2, 4, 6]
    returns = np.stack([history[RETURN] for history in trained.histories], axis=1)
    for one in lineage.copies:
        scores = returns[one.iteration - 1]
        assert (one.source, one.target) == (scores.argmax(), scores.argmin())
        assert (one.source_score, one.target_score) == (scores.max(), scores.min())
        before = lineage.until(one.iteration - 1).present
        assert one.old == before[one.target]
        for name, operation in one.operations.items():
            if operation != "resample":
                assert one.new[name] == before[one.source][name] * float(operation.removeprefix("* "))


def test_runs_and_table_have_the_settings_that_members_trained_with(trained):
    for name in SPACE:
        columns = np.stack([history[f"config/{name}"] for history in trained.histories], axis=1)
        np.testing.assert_array_equal(columns, trained.lineage.values(name, 7))
    assert list(trained.combinations) == trained.lineage.present
    assert trained.best_config().lr == trained.best().settings["lr"]
    assert [run.settings["seed"] for run in trained.runs] == [0, 1, 2, 3]
    assert str(trained).splitlines()[0].split()[:3] == ["lr", "env_config/gravity", "seeds"]


def test_the_lineage_is_a_figure_and_a_file_beside_the_runs(trained, results, tmp_path):
    first, *lines = (results / "lineage.jsonl").read_text().splitlines()
    assert len(json.loads(first)["first"]) == NUM_MEMBERS
    assert [json.loads(line)["target"] for line in lines] == [one.target for one in trained.lineage.copies]
    assert len([path for path in results.iterdir() if path.is_dir()]) == NUM_MEMBERS
    figure = trained.plot_lineage(tmp_path / "lineage.png")
    assert [axes.get_ylabel() for axes in figure.axes] == list(SPACE) and (tmp_path / "lineage.png").is_file()
    with pytest.raises(ValueError, match=r"plot_lineage\(\) draws the copies of members in population-based"):
        dataclasses.replace(trained, lineage=None).plot_lineage()


def test_frames_have_the_settings_of_each_iteration(trained):
    frame = trained.to_pandas()
    for name in SPACE:
        np.testing.assert_array_equal(frame[name], frame[f"config/{name}"])


LENGTH = "env_runners/episode_len_mean"


def test_a_sweep_is_ranked_by_the_metric_of_its_scheduler(trained, monkeypatch):
    assert (trained.metric, trained.mode) == (RETURN, "max")
    least = dataclasses.replace(trained, metric=LENGTH, mode="min")
    rows = least.rows()
    assert [row.last for row in rows] == sorted(row.last for row in trained.rows(LENGTH))
    assert str(least) == trained.table(LENGTH, mode="min")
    assert str(least).splitlines()[-1] == f"Ranked by {LENGTH}, lowest first."
    # Returns are still best if they are high.
    assert least.best(RETURN) == trained.best() and least.best(LENGTH) == rows[0]
    assert least.best_config().lr == rows[0].settings["lr"]
    drawn = []
    monkeypatch.setattr("jaxrl_stack.runs.figures.draw_lineage", lambda *given, **how: drawn.append(given[2]))
    least.plot_lineage()
    least.plot_lineage(key=LENGTH, mode="max")
    trained.plot_lineage()
    assert drawn == [least.best_member(), trained.best_member(LENGTH), trained.best_member()]


def without_returns(run):
    history, names = History(), [name for name in run.history if name != RETURN]
    history.set_state({"columns": names, "cells": np.stack([run.history[name] for name in names], axis=1)})
    return dataclasses.replace(run, history=history)


def test_runs_without_a_return_come_last_in_the_table(trained):
    first, *others = trained.runs
    partly = dataclasses.replace(trained, runs=(without_returns(first), *others))
    rows = partly.rows()
    assert np.isnan(rows[-1].last) and rows[-1].settings is trained.combinations[0]
    assert np.isfinite([row.last for row in rows[:-1]]).all()
    none = dataclasses.replace(trained, runs=tuple(map(without_returns, trained.runs)))
    assert len(str(none).splitlines()) == 1 + NUM_MEMBERS
    with pytest.raises(ValueError, match=rf"no run has a value of '{RETURN}' yet. Train longer"):
        none.best_config()
    with pytest.raises(KeyError, match="episode_reward_mean"):
        none.rows("env_runners/episode_reward_mean")


def stop(call, how, monkeypatch):
    """Calls, and stops after iteration 4, of which a "kill" leaves decisions without a checkpoint."""
    save, train = Wave.save_if_due, Population.train

    def fail_later(self, reason):
        if self._trained.iteration == 4:
            raise InterruptedError
        save(self, reason)

    def interrupt_later(self):
        if self.iteration == 3:
            signal.raise_signal(signal.SIGINT)
        return train(self)

    with monkeypatch.context() as patch:
        if how == "Ctrl-C":
            patch.setattr(Population, "train", interrupt_later)
            assert {len(history) for history in call().histories} <= {2, 4}
        else:
            patch.setattr(Wave, "save_if_due", fail_later)
            with pytest.raises(InterruptedError):
                call()


def equal_sweeps(one, other):
    assert str(one) == str(other) and one.lineage == other.lineage
    for a, b in zip(one.histories, other.histories, strict=True):
        np.testing.assert_array_equal(a[RETURN], b[RETURN])


@pytest.mark.parametrize("stopped", ["kill", "Ctrl-C"])
def test_population_based_training_continues_after_a_kill_with_the_same_copies(trained, stopped, tmp_path, monkeypatch):
    config = CONFIG.copy().reporting(results_dir=tmp_path)
    how = {"until": {"training_iteration": 7}, "checkpoint_seconds": 1e-9}
    stop(lambda: sweep(config, **how), stopped, monkeypatch)
    equal_sweeps(sweep(config, **how), trained)
    # Once more: all of it comes from the files.
    equal_sweeps(sweep(config, **how), trained)
    assert Lineage.read(tmp_path / "lineage.jsonl") == trained.lineage
    with pytest.raises(ValueError, match=r"were started with other values: scheduler=.*Pass the values of the earlier"):
        sweep(config, **how, scheduler=pbt(perturbation_interval=3))


def test_a_diverged_member_is_replaced_first_and_trains_again():
    # Of settings that the sweeps above have, too: it is the same program.
    space = {"lr": [1e-3, 1e38, 1e-4, 1e-5], "env_config/gravity": SPACE["env_config/gravity"]}
    done = sweep(space=space, num_samples=1, until=5, scheduler=pbt(hyperparam_mutations={"lr": [1e-3, 1e-4]}))
    assert done.lineage is not None
    first = done.lineage.copies[0]
    assert (first.target, first.old["lr"], np.isnan(first.target_score)) == (1, 1e38, True)
    assert len(done.histories[1]) == 5 and np.isfinite(done.histories[1][RETURN][-1])
    assert not any(run.has_diverged for run in done.runs)


RATES = {"lr": [1e-2, 2e-2, 3e-2, 0.1, 0.2, 0.4]}


def halved(config=CONFIG, **options):
    given = {"num_samples": 1, "until": 100, "scheduler": ASHAScheduler(grace_period=2, reduction_factor=2, max_t=8)}
    return sweep(config, RATES, **given | options)


@pytest.fixture(scope="module")
def halving():
    return halved()


def test_at_each_rung_the_best_continue_and_the_others_end(halving):
    returns = [history[RETURN] for history in halving.histories]
    lengths = [len(one) for one in returns]
    running = range(len(RATES["lr"]))
    # Of 6 runs 3 continue, of 3 runs 2.
    for rung, number in ((2, 3), (4, 2)):
        order = sorted(running, key=lambda i, rung=rung: -returns[i][rung - 1])
        ended, running = order[number:], order[:number]
        assert {lengths[i] for i in ended} == {rung}
        stops = {halving.runs[i].origin["stopped"]["reason"] for i in ended}
        assert stops == {f"stopped at the rung training_iteration={rung}"}
    assert {lengths[i] for i in running} == {8}


def test_the_table_begins_with_the_runs_that_reached_the_end(halving):
    assert [row.num_iterations for row in halving.rows()] == [8, 8, 4, 2, 2, 2]
    assert str(halving).splitlines()[0].split()[:3] == ["lr", "iterations", "seeds"]
    assert halving.best().last == max(row.last for row in halving.rows()[:2])
    grid = [{"lr": lr, "gamma": gamma} for lr in (0, 1) for gamma in (0, 1, 2)]
    with pytest.raises(ValueError, match=r"has ended runs after 2 of 8 iterations, .* Use table\(\)"):
        dataclasses.replace(halving, combinations=tuple(grid)).heat_map()


@pytest.mark.parametrize("stopped", ["kill", "Ctrl-C"])
def test_successive_halving_continues_after_a_kill_with_the_same_runs(halving, stopped, tmp_path, monkeypatch):
    config = CONFIG.copy().reporting(results_dir=tmp_path)
    how = {"until": {"training_iteration": 100}, "checkpoint_seconds": 1e-9}
    stop(lambda: halved(config, **how), stopped, monkeypatch)
    equal_sweeps(halved(config, **how), halving)
    equal_sweeps(halved(config, **how), halving)


def test_scores_are_of_evaluations_if_there_are_any_and_higher_is_better():
    history = MemberHistory([{}, {}])
    evaluated = "evaluation/env_runners/episode_return_mean"
    config = CONFIG.copy().evaluation(evaluation_interval=2)
    population: Any = SimpleNamespace(config=config, history=history, check_names=lambda criteria: None, diverged={})
    least = Halving(max_t=9, mode="min", time_attr="num_env_steps_sampled_lifetime")
    scores = Scores(population, least, "run_sweep")
    assert scores.metric == evaluated
    assert Scores(population, Halving(max_t=9, metric=RETURN), "run_sweep").metric == RETURN
    for population.iteration in (1, 2, 3):
        returns = np.array([3.0, 5.0]) + population.iteration
        numbers = {"num_env_steps_sampled_lifetime": 8 * population.iteration, evaluated: returns, RETURN: -returns}
        history.append(numbers, counts=np.array([True, population.iteration < 3]))
        # Decisions wait for the next evaluation.
        assert scores.is_complete == (population.iteration == 2) and scores.time == 8 * population.iteration
    assert scores.times() == [(8, False), (16, True), (24, False)]
    # The second member has ended.
    np.testing.assert_array_equal(scores.read(), [-6.0, np.nan])
    assert scores.as_reported(-6.0) == 6.0
    # A member that diverged in this iteration has a number in its row, but no score.
    population.diverged = {0: Ended(3, "diverged", is_goal=False)}
    assert np.isnan(scores.read()).all()


class ScoredPopulation:
    """The part of a population that successive halving reads, with given returns."""

    config = CONFIG

    def __init__(self, num_members):
        self.history, self.iteration = MemberHistory([{}] * num_members), 0
        self.reached, self.diverged, self.stopped = {}, {}, {}

    def __len__(self):
        return self.history.num_members

    def check_names(self, criteria):
        pass

    def keep(self, members, reason):
        self.stopped |= {i: Ended(self.iteration, reason, is_goal=False) for i in range(len(self)) if i not in members}

    def train(self, *returns, diverging=()):
        self.iteration += 1
        live = [i not in self.stopped and i not in self.diverged for i in range(len(self))]
        self.history.append({ITERATIONS: self.iteration, RETURN: np.array(returns)}, counts=np.array(live))
        self.diverged |= {i: Ended(self.iteration, "diverged", is_goal=False) for i in diverging}


def halver_of(population, settings, *, progress=False, **arguments):
    given: Any = {"max_t": 100, "grace_period": 2, "reduction_factor": 2} | arguments
    halving = Halving(**given)
    trials = [Trial(CONFIG, seed, own) for seed, own in enumerate(settings)]
    return Halver(population, halving, Scores(population, halving, "run_sweep"), trials, progress=progress)


def test_a_rung_waits_until_every_live_run_has_a_score(capsys):
    population: Any = ScoredPopulation(4)
    settings = [{"lr": rate} for rate in (1, 2, 3, 4)]
    halver = halver_of(population, settings, progress=True)
    nan = np.nan
    for returns in ((nan, nan, nan, 9.0), (nan, nan, 1.0, 9.0), (nan, nan, 1.0, 9.0)):
        population.train(*returns, diverging=[3] if population.iteration == 1 else [])
        halver.decide_if_due()
    assert not population.stopped
    assert capsys.readouterr().out == f"Rung training_iteration=2 waits: 2 of 4 runs have no {RETURN} yet.\n"
    # At iteration 5 the rung at 4 is passed, too: one decision serves both.
    population.train(nan, 2.0, 1.0, nan)
    halver.decide_if_due()
    population.train(0.0, 2.0, 1.0, nan)
    resumed = halver_of(population, settings)
    halver.decide_if_due()
    # The diverged run does not survive with its last return.
    reason = "stopped at the rung training_iteration=4"
    assert population.stopped == dict.fromkeys((0, 3), Ended(5, reason, is_goal=False))
    population.train(nan, 2.0, 3.0, nan)
    for one in (halver, resumed, halver_of(population, settings)):
        one.decide_if_due()
    assert sorted(population.stopped) == [0, 3], "another rung is at 8"


def test_a_run_that_diverges_in_the_iteration_of_a_rung_ends_there():
    population: Any = ScoredPopulation(3)
    halver = halver_of(population, [{"lr": 1}, {"lr": 2}, {"lr": 3}], grace_period=1)
    population.train(5.0, 1.0, 2.0, diverging=[0])
    halver.decide_if_due()
    assert sorted(population.stopped) == [0]


def test_combinations_whose_runs_have_all_reached_their_goal_pass_rungs():
    population: Any = ScoredPopulation(8)
    halver = halver_of(population, [{"lr": place // 2} for place in range(8)], grace_period=1, reduction_factor=4)
    # Both seeds of the second combination, and one of the third.
    population.reached = dict.fromkeys((2, 3, 5), Ended(1, "goal", is_goal=True))
    population.train(9.0, 9.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0)
    halver.decide_if_due()
    assert sorted(population.stopped) == [4, 5, 6, 7]


GAMMA_LIST, GAMMA_DOMAIN = {"gamma": [0.9, 1.5]}, {"gamma": tune.uniform(0.9, 1.2)}
HOST = programs.run().environment("CartPole-v1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"config": HOST, "space": {"lr": SPACE["lr"]}},
            r'its environment is stepped on the host. Use Ray Tune:\ntune.Tuner\("PPO", param_space=con',
        ),
        (
            {"space": {"num_epochs": [1, 2]}, "num_samples": 1},
            "runs differ in num_epochs, but one compiled program trains all of them. Remove these settings",
        ),
        (
            {"num_samples": 1},
            r"run_sweep: a scheduler compares runs, but the sweep has only one run. Set num_samples=32",
        ),
        ({"seeds": 2}, r"run_sweep\(seeds=2\): population-based training gives its members consecutive seeds"),
        ({"one_program": False}, r"run_sweep\(one_program=False\): a scheduler trains all runs in one"),
        ({"until": lambda result: True}, r"must be a dict or a number of iterations with a scheduler"),
        ({"scheduler": pbt(metric="episode_reward_mean")}, "metric of the scheduler: .*'episode_reward_mean'"),
        ({"scheduler": pbt(time_attr="timesteps_total")}, "time_attr of the scheduler: .*'timesteps_total'"),
        ({"scheduler": pbt(metric="evaluation/env_runners/episode_return_mean")}, "needs evaluations"),
        (
            {"scheduler": pbt(hyperparam_mutations={"gamma": [0.9, 0.99]})},
            r"hyperparam_mutations of 'gamma': this setting is not in the search space, so it is equal in all members",
        ),
        ({"scheduler": pbt(hyperparam_mutations={"lr": []})}, "hyperparam_mutations of 'lr': the list is empty"),
        (
            {"scheduler": pbt(hyperparam_mutations={"lr": tune.uniform(0.1, 0.01)})},
            "hyperparam_mutations: lr has the lower end 0.1, which must be below the upper end 0.01",
        ),
        (
            {
                "space": {"lr": [1e-3, 1e-4], "num_epochs": [1]},
                "num_samples": 1,
                "scheduler": pbt(hyperparam_mutations={"num_epochs": [1, 2]}),
            },
            "hyperparam_mutations of 'num_epochs': this setting cannot change during training, because it is not an "
            "argument of the compiled program. Remove",
        ),
        (
            {
                "space": {"lr": [1e-3, 1e-4], "env_config/gravity": [9.8]},
                "num_samples": 1,
                "scheduler": pbt(hyperparam_mutations={"env_config": {"gravity": [5.0, 9.8]}}),
            },
            "hyperparam_mutations of 'env_config/gravity': all members begin with 9.8, .*List several values",
        ),
        (
            {"space": {"gamma": [0.9, 0.99]}, "num_samples": 1, "scheduler": pbt(hyperparam_mutations=GAMMA_LIST)},
            r"hyperparam_mutations of 'gamma': training\(gamma=1.5\): must be",
        ),
        (
            {"space": {"gamma": [0.9, 0.99]}, "num_samples": 1, "scheduler": pbt(hyperparam_mutations=GAMMA_DOMAIN)},
            r"hyperparam_mutations of 'gamma': training\(gamma=1.19.*\): must be",
        ),
        (
            {"config": CONFIG.copy().reporting(results_dir="unused", keep_best=True)},
            r"reporting\(keep_best=True\) is not supported. Set config.reporting\(keep_best=False\)",
        ),
        ({"space": {"lr": tune.uniform(0.1, 0.01)}}, "run_sweep: lr has the lower end 0.1, which must be below"),
        ({"scheduler": "pbt"}, r"run_sweep\(scheduler='pbt'\): must be a PopulationBasedTraining or an ASHAScheduler"),
    ],
)
def test_what_cannot_be_scheduled_is_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        sweep(**options)


@pytest.mark.parametrize(
    ("scheduler", "space", "options", "num_samples"),
    [
        (ASHAScheduler(max_t=8), {"lr": SPACE["lr"], "gamma": [0.9, 0.99]}, {"num_samples": 2, "seeds": 2}, 2),
        (pbt(metric=LENGTH, mode="min"), {"lr": SPACE["lr"]}, {"num_samples": 4}, 4),
    ],
)
def test_the_refusal_of_a_host_environment_has_a_call_of_tune(scheduler, space, options, num_samples):
    with pytest.raises(ValueError, match="Use Ray Tune:\n") as refused:
        sweep(HOST, space, scheduler=scheduler, **options)
    call = str(refused.value).splitlines()[-1]
    assert call.endswith(".fit()")
    given: Any = {}
    fake = SimpleNamespace(grid_search=tune.grid_search, TuneConfig=tune.TuneConfig, RunConfig=tune.RunConfig)
    fake.Tuner = lambda trainable, **how: given.update(how, trainable=trainable) or SimpleNamespace(fit=lambda: None)
    eval(call, {"tune": fake, "config": HOST, "space": space, "scheduler": scheduler})
    assert given["trainable"] == "PPO" and given["run_config"].stop == {"training_iteration": 7}
    chosen, settings = given["tune_config"], given["param_space"].to_dict()
    assert chosen.num_samples == num_samples and settings["lr"] is space["lr"]
    # Tune's controller does the same; False means that the scheduler has a metric already.
    assert scheduler.set_search_properties(chosen.metric, chosen.mode)
    assert scheduler._metric == (LENGTH if scheduler._mode == "min" else RETURN)
    if "seeds" in options:
        assert settings["gamma"] == {"grid_search": [0.9, 0.99]} and settings["seed"] == {"grid_search": [0, 1]}


def test_runs_that_do_not_fit_into_memory_are_refused_with_the_number_that_fits(monkeypatch):
    def refuse(self, members):
        raise TooManyError("too many", num_fitting=3)

    monkeypatch.setattr(type(CONFIG), "build_population", refuse)
    with pytest.raises(ValueError, match="at the same time, but only 3 of 4 fit into memory. Lower num_samples"):
        sweep()
