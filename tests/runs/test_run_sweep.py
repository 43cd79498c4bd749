"""A config with every combination of some settings."""

from __future__ import annotations

import dataclasses
import signal

import numpy as np
import pytest

from jaxrl_stack.runs import run_sweep
from jaxrl_stack.runs.curves import RETURN
from jaxrl_stack.runs.search_space import combinations
from jaxrl_stack.runs.seeds import run_seeds
from jaxrl_stack.runs.sweep import Sweep
from jaxrl_stack.utils.compile_clock import CompileClock
from tests import programs

CONFIG = programs.run(seed=77)
GOAL = {"training_iteration": 3}


@pytest.fixture(scope="module")
def sweep() -> Sweep:
    return run_sweep(CONFIG, {"lr": [1e-4, 1e-2], "gamma": [0.9, 0.99]}, seeds=[5, 6], until=GOAL, progress=False)


def test_every_combination_has_every_seed_and_the_config_stays(sweep):
    pairs = [(lr, gamma) for lr in (1e-4, 1e-2) for gamma in (0.9, 0.99)]
    assert [tuple(one.values()) for one in sweep.combinations] == pairs and sweep.names == ["lr", "gamma"]
    assert list(sweep.members) == [(place, seed) for place in range(4) for seed in (5, 6)]
    for run, (place, seed) in zip(sweep.runs, sweep.members, strict=True):
        lr, gamma = pairs[place]
        assert (run.settings["lr"], run.settings["gamma"], run.settings["seed"]) == (lr, gamma, seed)
        assert run.name == f"lr={lr} gamma={gamma} seed={seed}" and len(run.history) == 3
    assert (CONFIG.lr, CONFIG.gamma, CONFIG.seed) == (5e-5, 0.99, 77)


def test_all_of_it_is_one_program_and_each_run_is_as_one_alone(sweep):
    assert sweep.is_one_program
    alone = run_seeds(CONFIG.copy().training(lr=1e-2, gamma=0.9), [6], GOAL, progress=False).runs[0]
    (place,) = (i for i, run in enumerate(sweep.runs) if run.name == "lr=0.01 gamma=0.9 seed=6")
    for name in (RETURN, "learners/default_policy/total_loss", "learners/default_policy/entropy"):
        np.testing.assert_allclose(sweep.histories[place][name], alone.history[name], rtol=1e-3)


def test_one_after_the_other_each_run_has_the_bits_that_it_has_alone():
    loop = run_sweep(CONFIG, {"lr": [1e-4, 1e-2]}, until=GOAL, one_program=False, progress=False)
    compiled = [float(history["timers/compile_s"].sum()) for history in loop.histories]
    assert not loop.is_one_program and compiled[0] > 0.0 == compiled[1]
    alone = run_seeds(CONFIG.copy().training(lr=1e-2), [0], GOAL, progress=False)
    for name in (RETURN, "learners/default_policy/total_loss", "learners/default_policy/entropy"):
        np.testing.assert_array_equal(loop.histories[1][name], alone.histories[0][name])


def test_static_settings_make_a_population_each_and_too_many_are_refused(capsys):
    space = {"lr": [1e-4, 1e-2], "num_epochs": [1, 2]}
    done = run_sweep(CONFIG, space, until={"training_iteration": 1})
    assert capsys.readouterr().out.startswith("4 runs as members of 2 programs, each compiled once.")
    assert [(run.settings["lr"], run.settings["num_epochs"]) for run in done.runs] == [
        (lr, epochs) for lr in (1e-4, 1e-2) for epochs in (1, 2)
    ]
    with pytest.raises(
        ValueError, match=r"max_groups=1.*these 4 runs need 2 compiled programs, because they differ in num_epochs"
    ):
        run_sweep(CONFIG, space, until={"training_iteration": 1}, max_groups=1)


def test_settings_that_change_programs_are_compiled_once_each():
    clock, compiled = CompileClock(), []

    def note(*, algorithm, **kwargs):
        compiled.append((algorithm.config.num_epochs, algorithm.config.lr, clock.compiles > 0))
        clock.reset()

    config = CONFIG.copy().callbacks(on_train_result=note)
    space = {"lr": [1e-4, 1e-2], "num_epochs": {"grid_search": [1, 2]}}
    done = run_sweep(config, space, until={"training_iteration": 1}, progress=False)
    assert [(epochs, lr) for epochs, lr, _ in compiled] == [(1, 1e-4), (1, 1e-2), (2, 1e-4), (2, 1e-2)]
    assert [is_compiled for *_, is_compiled in compiled] == [True, False, True, False]
    # Results are in the order in which they were asked for.
    assert [(run.settings["lr"], run.settings["num_epochs"]) for run in done.runs] == [
        (lr, epochs) for lr in (1e-4, 1e-2) for epochs in (1, 2)
    ]


def test_its_table_is_sorted_and_names_the_best(sweep):
    rows = sweep.rows()
    assert [row.last for row in rows] == sorted((row.last for row in rows), reverse=True)
    assert all(row.num_seeds == 2 and row.low <= row.last <= row.high and row.x == 3 * 128 for row in rows)
    lowest = sweep.rows(mode="min")
    assert [row.last for row in lowest] == [row.last for row in reversed(rows)]
    assert sweep.best() == rows[0] and sweep.best(mode="min") == lowest[0]
    best = sweep.best_config()
    assert (best.lr, best.gamma) == tuple(rows[0].settings.values()) and best.seed == 77
    header, first, *others = str(sweep).splitlines()
    assert header.split()[:3] == ["lr", "gamma", "seeds"] and len(others) == 3
    assert first.split()[:3] == [*map(str, rows[0].settings.values()), "2"]
    with pytest.raises(ValueError, match="mode='most': must be 'max' or 'min'"):
        sweep.rows(mode="most")
    with pytest.raises(KeyError, match="env_runners/episode_return_mean"):
        sweep.rows("episode_return_mean")


def test_the_best_config_has_the_best_entry_of_env_config(sweep):
    done = dataclasses.replace(sweep, combinations=tuple({"env_config/gravity": 5.0 + i} for i in range(4)))
    gravity = done.best().settings["env_config/gravity"]
    assert done.best_config().env_config == {"gravity": gravity}


def test_its_long_form_has_a_row_for_each_iteration_of_each_run(sweep):
    frame = sweep.to_pandas()
    assert len(frame) == 4 * 2 * 3 and list(frame.columns[:3]) == ["lr", "gamma", "seed"]
    one = frame[(frame["lr"] == 1e-2) & (frame["gamma"] == 0.9) & (frame["seed"] == 6)]
    assert one["training_iteration"].tolist() == [1, 2, 3]
    assert frame.groupby(["lr", "gamma"])[RETURN].last().shape == (4,)


def test_a_figure_has_a_band_for_each_combination_and_a_map_a_cell(sweep, tmp_path):
    (axes,) = sweep.plot(tmp_path / "sweep.png").axes
    labels = [line.get_label() for line in axes.lines]
    assert labels[0] == "gamma=0.9 lr=0.0001 (2 seeds)" and len(labels) == len(axes.collections) == 4
    assert axes.get_title(loc="left") == "PPO on gymnax/CartPole-v1"
    axes, _ = sweep.heat_map(tmp_path / "map.png").axes
    np.testing.assert_array_equal(np.sort(axes.images[0].get_array().ravel()), sorted(row.last for row in sweep.rows()))
    assert [text.get_text() for text in axes.get_yticklabels()] == ["0.0001", "0.01"]
    assert (axes.get_ylabel(), axes.get_xlabel(), len(axes.texts)) == ("lr", "gamma", 4)
    three = dataclasses.replace(sweep, combinations=tuple({**one, "clip_param": 0.1} for one in sweep.combinations))
    with pytest.raises(ValueError, match="a sweep over two settings, and this one is over lr, gamma, clip_param"):
        three.heat_map()
    text = sweep.report(tmp_path / "report.html").read_text()
    assert "runs, of several kinds" in text and "gamma=0.9 lr=0.0001 (2 seeds)" in text


class Uniform:
    """A space to sample from, as tuners have them."""

    def __init__(self, low, high):
        self.low, self.high = low, high

    def sample(self, config=None, size=1, random_state=None):
        return random_state.uniform(self.low, self.high)


def test_values_are_sampled_anew_for_each_sample_and_are_the_same_next_time(tmp_path):
    space = {"lr": Uniform(1e-4, 1e-3), "gamma": [0.9, 0.99]}
    config = CONFIG.copy().reporting(results_dir=tmp_path / "sweep")
    first = run_sweep(config, space, num_samples=4, until={"training_iteration": 1}, progress=False)
    assert [list(one) for one in first.combinations] == [["lr", "gamma"]] * 8
    assert [one["gamma"] for one in first.combinations] == [0.9, 0.99] * 4
    rates = [one["lr"] for one in first.combinations]
    assert len(set(rates)) == 8 and all(1e-4 <= lr <= 1e-3 for lr in rates)
    assert combinations(space, 4, "run_sweep") == list(first.combinations)
    # Each run has a folder that says which it is, which keeps none of them from being a member.
    assert first.is_one_program
    folders = {path.name for path in (tmp_path / "sweep").iterdir()}
    assert folders == {run.name.replace(" ", "_") for run in first.runs}
    with pytest.raises(
        ValueError,
        match="heat_map.. needs a full grid of 8 values of lr and 2 of gamma, but the sweep has 8 combinations",
    ):
        first.heat_map()


def test_ctrl_c_ends_the_sweep_and_keeps_what_is_finished(capsys):
    runs = []

    def press(*, algorithm, result, **kwargs):
        runs.append(algorithm.config.lr)
        if len(runs) == 3:
            signal.raise_signal(signal.SIGINT)

    config = CONFIG.copy().callbacks(on_train_result=press)
    done = run_sweep(config, {"lr": [1e-4, 1e-3, 1e-2]}, until={"training_iteration": 2})
    assert runs == [1e-4, 1e-4, 1e-3] and [run.settings["lr"] for run in done.runs] == [1e-4]
    told, *lines = capsys.readouterr().out.splitlines()
    assert told == "3 runs one after the other: callbacks(...) get the iterations of a single algorithm."
    assert lines[0].startswith("lr=0.0001 seed=0 (1 of 3): return ") and lines[-1].startswith("Ctrl-C: 1 of 3 runs")
    assert [row.settings for row in done.rows()] == [{"lr": 1e-4}]


@pytest.mark.parametrize(
    ("space", "options", "message"),
    [
        ({}, {}, r"run_sweep\(space=\{\}\): must be a dict of setting → a list of values"),
        ({"lrr": [1]}, {}, r"PPOConfig has no setting 'lrr'. Did you mean training\(lr="),
        ({"lr": []}, {}, r"lr=\[\] has no values to try. List at least one"),
        ({"lr": {"grid_search": []}}, {}, "has no values to try"),
        ({"lr": 1e-3}, {}, "lr=0.001 must be a list of values, .*If all runs share this value, set it in the config"),
        ({"lr": [1e-3, 1e-3]}, {}, "lr has the value 0.001 twice"),
        ({"lr": [1e-3, -1.0]}, {}, r"lr=-1.0.*must be"),
        ({"minibatch_size": [64, 512]}, {}, "run_sweep with minibatch_size=512: .*minibatch_size"),
        ({"seed": [1, 2]}, {}, r"pass seeds="),
        ({"lr": [1e-3]}, {"seeds": 0}, r"run_sweep\(seeds=0\): must be at least one"),
        ({"lr": [1e-3]}, {"seeds": [1, 1]}, r"run_sweep\(seeds=\[1, 1\]\): contains a seed twice"),
        ({"lr": [1e-3]}, {"until": None}, r"run_sweep\(until=None\): until is required. Set the end of a run"),
        ({"lr": [1e-3]}, {"until": {"training_iteration": "3"}}, "has the bound '3', which must be a number"),
        ({"lr": [1e-3]}, {"until": {"evaluation/env_runners/episode_return_mean": 3}}, "needs evaluations"),
        ({"lr": [1e-3]}, {"num_samples": 2}, r"run_sweep\(num_samples=2\): nothing in lr is sampled"),
        ({"lr": Uniform(0, 1)}, {"num_samples": 0}, r"run_sweep\(num_samples=0\): must be an integer of at least 1"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_built(space, options, message):
    built = []
    config = CONFIG.copy().callbacks(on_algorithm_init=lambda **kwargs: built.append(1))
    with pytest.raises(ValueError, match=message):
        run_sweep(config, space, **{"until": GOAL, **options})
    assert not built
