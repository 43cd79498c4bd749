"""Sweeps with searchers and budgets: waves, honest winners, and the same bits after a kill."""

from __future__ import annotations

import dataclasses
import json
import signal
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from ray import tune

from jaxrl_stack.algorithms.algorithm import Algorithm
from jaxrl_stack.algorithms.population import Population
from jaxrl_stack.runs import run_sweep, searched
from jaxrl_stack.runs import sweep as sweep_module
from jaxrl_stack.runs.budget import Budget, end_of_domain
from jaxrl_stack.runs.curves import RETURN, STEPS
from jaxrl_stack.runs.halving import Halving
from tests import programs

CONFIG = programs.run()
SPACE = {"lr": tune.loguniform(1e-4, 1e-2), "gamma": tune.uniform(0.9, 0.99)}
GOAL = {"training_iteration": 2}
LOSS = "learners/default_policy/total_loss"


class Nearby:
    """Suggests rates near the best one so far, the first two at random and equal."""

    metric, mode = None, "max"

    def __init__(self):
        self.rng, self.rates, self.results, self.best = np.random.default_rng(1), {}, {}, None

    def set_search_properties(self, metric, mode, config, **spec):
        self.metric, self.space = metric, config
        return True

    def suggest(self, trial_id):
        rate = 1e-3 if self.best is None else self.best[1] * float(self.rng.uniform(0.5, 2.0))
        self.rates[trial_id] = rate
        return {"lr": rate, "gamma": 0.95}

    def on_trial_complete(self, trial_id, result=None, error=False):
        assert not error and result is not None
        self.results[trial_id] = result[self.metric]
        self.best = max(filter(None, [self.best, [result[self.metric], self.rates[trial_id]]]))

    def save(self, checkpoint_path):
        state = [self.rng.bit_generator.state, self.rates, self.results, self.best]
        Path(checkpoint_path).write_text(json.dumps(state))

    def restore(self, checkpoint_path):
        self.rng.bit_generator.state, self.rates, self.results, self.best = json.loads(
            Path(checkpoint_path).read_text()
        )


@pytest.fixture(autouse=True)
def small_waves(monkeypatch):
    monkeypatch.setattr(searched, "WAVE", 2)
    monkeypatch.setattr(searched, "WAVE_WITH_HALVING", 4)


def test_a_killed_search_continues_with_the_same_suggestions_and_bits(tmp_path, monkeypatch):
    def search(folder, searcher):
        config = CONFIG.copy().reporting(results_dir=folder)
        more = {"num_samples": 5, "until": GOAL, "progress": False, "checkpoint_seconds": 1e-9}
        return run_sweep(config, SPACE, search_alg=searcher, **more)

    whole_searcher, searcher = Nearby(), Nearby()
    whole = search(tmp_path / "whole", whole_searcher)
    # Two waves of two, and one of one; the first two suggestions are equal.
    assert [own["lr"] for own in whole.combinations[:2]] == [1e-3] * 2 and len(whole.runs) == 5
    assert whole_searcher.metric == RETURN and list(whole_searcher.results) == [f"{i:05}" for i in range(5)]
    told = {rate: whole_searcher.results[trial] for trial, rate in whole_searcher.rates.items()}
    assert {row.settings["lr"]: row.last for row in whole.rows()} == pytest.approx(told)
    train, calls = Population.train, []

    def killed(self):
        calls.append(self)
        if len(calls) == 4:  # in the second iteration of the second wave
            raise KeyError("killed")
        return train(self)

    monkeypatch.setattr(Population, "train", killed)
    with pytest.raises(KeyError, match="killed"):
        search(tmp_path / "killed", Nearby())
    monkeypatch.setattr(Population, "train", train)
    again = search(tmp_path / "killed", searcher)
    assert again.combinations == whole.combinations and str(again) == str(whole)
    for run, other in zip(again.runs, whole.runs, strict=True):
        np.testing.assert_array_equal(run.history[LOSS], other.history[LOSS])
    assert searcher.results == whole_searcher.results
    config = CONFIG.copy().reporting(results_dir=tmp_path / "whole")
    with pytest.raises(ValueError, match="started with other values of num_samples"):
        run_sweep(config, SPACE, search_alg=Nearby(), num_samples=6, until=GOAL, checkpoint_seconds=60.0)


def test_a_budget_of_steps_is_kept_and_its_winner_is_confirmed_with_fresh_seeds():
    """A run has 4 iterations of 128 steps, and a quarter of a wave continues after the second one.

    Of 8,300 steps, 64 iterations, the confirmation of three combinations with three seeds takes 36, two iterations of
    eleven combinations 22, and the other two of three of them 6.
    """
    goal = {"training_iteration": 4}
    space = {"lr": SPACE["lr"], "env_config/gravity": tune.uniform(5.0, 500.0)}
    sweep = run_sweep(CONFIG, space, budget={STEPS: 8300}, until=goal, seeds=[5], progress=False)
    confirmation = sweep.confirmation
    assert confirmation is not None
    assert [len(run.history) for run in sweep.runs].count(4) == 3 and len(sweep.runs) == 11
    steps = sum(run.history[STEPS][-1] for run in (*sweep.runs, *confirmation.runs))
    assert steps == 128 * (36 + 22 + 6)
    assert sorted({seed for _, seed in confirmation.members}) == [6, 7, 8] and len(confirmation.runs) == 9
    rows = sweep.rows()
    assert [row.is_confirmed for row in rows] == [True] * 3 + [False] * 11
    assert sweep.best().num_seeds == 3 and sweep.best_config().lr == rows[0].settings["lr"]
    longest = [row.settings for row in rows if not row.is_confirmed and row.num_iterations == 4]
    assert all(row.settings in longest for row in rows[:3])
    text = str(sweep).splitlines()
    assert text[1].split()[2:4] == ["confirmed", "4"] and text[4].split()[2] == "searched"
    rate = rows[0].settings["lr"]
    at_end = dataclasses.replace(sweep, space={"lr": tune.loguniform(rate / 1.01, rate * 10)})
    assert str(at_end).splitlines()[-1].startswith(f"The best lr={rate} is within 5 % of the lower end of its domain")


def test_a_short_budget_of_seconds_trains_one_wave_and_the_confirmation(capsys):
    sweep = run_sweep(CONFIG, {"lr": SPACE["lr"]}, search_alg=Nearby2(), budget="0.001 s", until=GOAL)
    assert sweep.confirmation is not None and len(sweep.runs) == 2 and len(sweep.confirmation.runs) == 6
    printed = capsys.readouterr().out
    assert (
        "Wave 1: 2 combinations" in printed
        and "s of a budget of 0.0 s. For a smaller wave, set num_samples=2" in printed
    )


class Listed:
    """Suggests settings of a list."""

    def __init__(self, *settings, metric=None, mode=None):
        self.settings, self.metric, self.mode, self.told = list(settings), metric, mode, {}

    def suggest(self, trial_id):
        return self.settings[int(trial_id)] if int(trial_id) < len(self.settings) else "FINISHED"

    def on_trial_complete(self, trial_id, result=None, error=False):
        self.told[trial_id] = None if error or result is None else result[self.metric]

    def save(self, checkpoint_path):
        Path(checkpoint_path).touch()

    def restore(self, checkpoint_path):
        pass


def test_a_combination_without_a_finished_episode_is_told_as_an_error():
    """Without gravity and force the pole takes hundreds of steps to fall."""
    still, usual = ({"env_config/gravity": g, "env_config/force_mag": f} for g, f in ((0.0, 0.0), (9.8, 10.0)))
    searcher = Listed(still, usual, metric="env_runners/episode_len_mean", mode="min")
    sweep = run_sweep(CONFIG, {}, search_alg=searcher, num_samples=2, until=1, progress=False)
    assert searcher.told["00000"] is None and searcher.told["00001"] == sweep.best().last
    assert [row.settings for row in sweep.rows()] == [usual, still] and sweep.mode == "min"


def test_the_first_wave_and_the_confirmation_keep_to_the_budget_and_to_the_end_of_the_scheduler():
    """A run ends after 4 iterations of 128 steps, 512 steps: of 5,200, the confirmation needs 9 runs of them."""
    halving = Halving(max_t=4, grace_period=1)
    budget: dict = {"budget": {STEPS: 5200}, "scheduler": halving, "until": {"training_iteration": 12}}
    sweep = run_sweep(CONFIG, SPACE, progress=False, **budget)
    assert sweep.confirmation is not None and len(sweep.runs) == 1
    assert {len(run.history) for run in (*sweep.runs, *sweep.confirmation.runs)} == {4}


class Callback:
    """Has another text in each process, as its address differs."""

    def __call__(self, **kwargs):
        pass


def test_the_same_call_returns_a_finished_search_of_a_budget_in_seconds(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(searched, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    class Slow(Listed):
        def suggest(self, trial_id):
            now[0] += 30.0
            return {"lr": 1e-3 * (1 + int(trial_id))}

    def search():
        config = CONFIG.copy().callbacks(on_train_result=Callback()).reporting(results_dir=tmp_path)
        searcher: dict = {"search_alg": Slow(metric=RETURN), "budget": "100 s"}
        goal = {"training_iteration": 1}
        return run_sweep(config, {}, **searcher, until=goal, checkpoint_seconds=60.0, progress=False)

    first = search()
    # Two waves of two suggestions; the second ends after 120 seconds.
    assert len(first.combinations) == 4
    monkeypatch.setattr(Population, "train", None)
    again = search()
    assert again.combinations == first.combinations and str(again) == str(first)


def test_an_invalid_suggestion_is_refused_before_it_is_recorded(tmp_path):
    config = CONFIG.copy().reporting(results_dir=tmp_path)
    searcher = Listed({"lr": 1e-3}, {"lr": -1.0})
    with pytest.raises(ValueError, match="run_sweep with lr=-1"):
        run_sweep(config, {}, search_alg=searcher, num_samples=2, until=GOAL, checkpoint_seconds=60.0, progress=False)
    assert not list(tmp_path.rglob(searched.SEARCH_FILE))


def test_ctrl_c_keeps_the_runs_of_a_scheduler_up_to_the_last_iteration(monkeypatch):
    train = Population.train

    def interrupted(self):
        if self.iteration == 1:
            signal.raise_signal(signal.SIGINT)
        return train(self)

    monkeypatch.setattr(Population, "train", interrupted)
    searcher = Listed(*({"lr": 1e-3 * k} for k in range(1, 5)))
    arguments: dict = {"search_alg": searcher, "scheduler": Halving(max_t=4, grace_period=1), "num_samples": 4}
    sweep = run_sweep(CONFIG, {}, until=4, progress=False, **arguments)
    # No run has ended at the first rung, where all have the same return.
    assert [len(run.history) for run in sweep.runs] == [2] * 4


@pytest.fixture
def asked(monkeypatch):
    """A function that returns the `Search` of a call of `run_sweep`, which it does not train."""

    def ask(space, **arguments):
        found = []

        def note(search):
            found.append(search)
            raise InterruptedError

        monkeypatch.setattr(sweep_module, "train_searched", note)
        with pytest.raises(InterruptedError):
            run_sweep(CONFIG, space, until=4, progress=False, **arguments)
        return found[0]

    return ask


@pytest.mark.parametrize(
    ("own", "of_scheduler", "objective", "of_rungs"),
    [
        ((LOSS, "min"), (None, "max"), (LOSS, "min"), (LOSS, "min")),
        ((None, None), (LOSS, "min"), (LOSS, "min"), (LOSS, "min")),
        ((None, None), (None, "min"), (RETURN, "min"), (RETURN, "min")),
        ((RETURN, "max"), (LOSS, "min"), (RETURN, "max"), (LOSS, "min")),
    ],
)
def test_searcher_and_scheduler_take_metric_and_mode_together_from_each_other(
    asked, own, of_scheduler, objective, of_rungs
):
    scheduler = Halving(max_t=4, metric=of_scheduler[0], mode=of_scheduler[1])
    search = asked({}, search_alg=Listed(metric=own[0], mode=own[1]), scheduler=scheduler)
    assert (search.objective, (search.halving.metric, search.halving.mode)) == (objective, of_rungs)


def test_samples_of_a_budget_repeat_the_whole_grid(asked):
    space = {"gamma": [0.9, 0.95, 0.99], "lr": SPACE["lr"]}
    assert asked(space, budget=60.0, num_samples=2).num_samples == 6
    assert asked(space, budget=60.0).num_samples is None


class Nearby2(Nearby):
    """Different rates from the beginning."""

    def suggest(self, trial_id):
        return {"lr": super().suggest(trial_id)["lr"] * (1 + len(self.rates))}


def test_optuna_suggests_settings_and_numbers_of_the_environment():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.tune.search.optuna import OptunaSearch

        searcher = OptunaSearch(seed=0)
        # Of numbers of the environment that differ in another test, too: it is the same program.
        numbers = {f"env_config/{name}": tune.uniform(5.0, 15.0) for name in ("gravity", "force_mag")}
        space = {"lr": SPACE["lr"], **numbers}
        sweep = run_sweep(CONFIG, space, search_alg=searcher, num_samples=3, until=GOAL, progress=False)
    values = [trial.value for trial in searcher._ot_study.trials]
    rows = {row.settings["env_config/gravity"]: row.last for row in sweep.rows()}
    assert [rows[own["env_config/gravity"]] for own in sweep.combinations] == values
    assert searcher._ot_study.best_value == sweep.best().last


def test_runs_one_after_the_other_are_searched_too(capsys):
    sweep = run_sweep(CONFIG, SPACE, search_alg=Nearby(), num_samples=2, until=GOAL, one_program=False, progress=False)
    assert not sweep.is_one_program and len(sweep.runs) == 2


@pytest.mark.parametrize(
    ("budget", "amount"),
    [(90, 90), ("30 s", 30), ("10 min", 600), ("1.5h", 5400), ("2 hours", 7200), ("1 day", 86400), ({STEPS: 5}, 5)],
)
def test_budgets(budget, amount):
    assert Budget.read(budget, "run_sweep") == Budget(amount, is_seconds=not isinstance(budget, dict))


@pytest.mark.parametrize(
    ("domain", "value", "end"),
    [
        (tune.uniform(0.0, 10.0), 0.5, "lower"),
        (tune.uniform(0.0, 10.0), 0.51, None),
        (tune.uniform(0.0, 10.0), 9.5, "upper"),
        # Two decades, of which 5 % are a factor of 1.259.
        (tune.loguniform(1e-4, 1e-2), 1.25e-4, "lower"),
        (tune.loguniform(1e-4, 1e-2), 1.27e-4, None),
        (tune.qloguniform(1e-4, 1e-2, 1e-5), 8e-3, "upper"),
        (tune.randint(1, 100), 99, "upper"),
        (tune.choice([1, 2]), 1, None),
    ],
)
def test_values_near_the_end_of_a_domain(domain, value, end):
    assert end_of_domain(domain, value) == end


def test_budgets_compare_no_combinations_after_iteration_1():
    assert searched.default_halving({"training_iteration": 8}, searched.Objective(RETURN, "max")).grace_period == 2
    assert searched.default_halving({"training_iteration": 160}, searched.Objective(RETURN, "max")).grace_period == 10


def test_cost_of_halving_by_hand():
    """Of 64, 16 continue after iteration 1 of 8, and 4 after iteration 4."""
    halving = Halving(max_t=8, grace_period=1)
    assert searched._num_full_runs(64, halving) == (64 * 1 + 16 * 3 + 4 * 4) / 8
    assert searched._num_full_runs(5, None) == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budget": ""}, r"budget=''\): must be a number above 0 in one of these forms: seconds, \"10 min\""),
        ({"budget": "soon"}, "budget='soon'"),
        ({"budget": 0}, "budget=0"),
        ({"budget": {"steps": 5}}, "budget={'steps': 5}"),
        ({"search_alg": 3}, r"search_alg=3\): has no suggest\(\)"),
        ({"search_alg": Nearby(), "space": {"lr": [1e-3, 1e-2]}}, r"lr=\[0.001, 0.01\] is a list.*tune.choice"),
        (
            {"search_alg": Nearby(), "space": {"lr": tune.uniform(2.0, 1.0)}},
            "lr has the lower end 2.0, which must be below",
        ),
        ({"budget": 5, "space": {"lr": tune.uniform(2.0, 1.0)}}, "lr has the lower end 2.0, which must be below"),
        ({"search_alg": Nearby(), "num_samples": 0}, "num_samples=0"),
        ({"budget": 5, "num_samples": 2, "space": {"lr": [1e-3, 1e-2]}}, "nothing in lr is sampled"),
        (
            {"search_alg": Nearby(), "scheduler": Halving(max_t=2), "one_program": False},
            "one_program=False.*a scheduler trains all runs in one",
        ),
        (
            {"search_alg": Nearby(), "scheduler": Halving(max_t=2, metric=LOSS, mode="min")},
            "search_alg has mode='max' and no metric, so it uses the scheduler",
        ),
    ],
)
def test_bad_input_is_refused_by_name(arguments, message):
    space = arguments.get("space", SPACE)
    with pytest.raises(ValueError, match=message):
        run_sweep(CONFIG, space, until=GOAL, **{name: own for name, own in arguments.items() if name != "space"})


@pytest.mark.parametrize("one_program", [True, False])
def test_a_metric_that_results_do_not_have_is_refused_before_training(monkeypatch, one_program):
    monkeypatch.setattr(Algorithm, "train", None)
    monkeypatch.setattr(Population, "train", None)
    searcher = Nearby()
    searcher.metric = "env_runners/episode_reward_mean"
    arguments: dict = {"search_alg": searcher, "num_samples": 2, "one_program": one_program}
    with pytest.raises(ValueError, match="metric of search_alg.*episode_reward_mean"):
        run_sweep(CONFIG, SPACE, until=GOAL, progress=False, **arguments)
