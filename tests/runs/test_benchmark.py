"""Algorithms on tasks: training that continues after a kill, tables, figures, and wrong input."""

from __future__ import annotations

import functools
import json
import math
import pickle
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from jaxrl_stack import cli
from jaxrl_stack.algorithms import benchmark
from jaxrl_stack.algorithms.algorithm import Algorithm
from jaxrl_stack.algorithms.benchmark import run_benchmark
from jaxrl_stack.algorithms.member_runs import folders_of
from jaxrl_stack.algorithms.members import checked_members
from jaxrl_stack.algorithms.population import Population
from jaxrl_stack.env.task_names import matching_tasks
from jaxrl_stack.runs import series_processes, tables
from jaxrl_stack.runs.benchmark import DEFAULT_SETTINGS, Benchmark, Cell, write_content
from jaxrl_stack.runs.curves import RETURN
from jaxrl_stack.runs.history import History
from jaxrl_stack.runs.output import write_run
from jaxrl_stack.runs.run import DIVERGED, Run
from jaxrl_stack.runs.score_statistics import MIN_SEEDS_OF_IQM, probability_of_improvement
from jaxrl_stack.runs.seeds import run_seeds
from jaxrl_stack.runs.series import Trial, chosen_seeds, kept_in_folder, train_all
from jaxrl_stack.runs.series_folder import SeriesFolder, finished_runs, read_series, write_json
from tests import programs
from tests.interrupted import interrupted, untraced

CONFIG = programs.run()
KEEPING = CONFIG.copy().reporting(results_dir="results", keep_best=True)
TASK = "gymnax/CartPole-v1"
GOAL = {"training_iteration": 3}
STEPS = {"num_env_steps_sampled_lifetime": 1_000.0}


# ------------------------------------------------------------------------------------------ folders without training


def history(*returns: float) -> History:
    made = History()
    for i, value in enumerate(returns):
        made.append({"env_runners": {"episode_return_mean": value}, "num_env_steps_sampled_lifetime": 100 * (i + 1)})
    return made


def write_benchmark(
    path: Path, scores: dict[tuple[str, str], Sequence[float] | str], num_seeds: int = 4, score: str = "evaluation"
) -> Path:
    """A folder as `run_benchmark` leaves it: scores of each algorithm and task, or why it was skipped."""
    cells, folders = [], []
    for place, ((label, task), own) in enumerate(scores.items()):
        folder, skipped = f"{label}/{place}", own if isinstance(own, str) else None
        cells.append(Cell(label, task, DEFAULT_SETTINGS if label == "default" else "a config", skipped))
        folders.append(folder)
        for seed, value in enumerate(() if isinstance(own, str) else own):
            ended = {"stopped": {"reason": f"{DIVERGED}: no", "is_goal": False}} if value < -999 else {}
            curve = history(value) if math.isnan(value) else history(0.0, value)
            run = Run(f"seed {seed}", curve, {"env": task, "seed": seed}, {"algorithm": label, **ended})
            write_run(run, path / folder / f"seed_{seed}")
            wave = {"places": [seed], "folders": [f"seed_{seed}"], "is_finished": True, "scores": [value]}
            write_json(path / folder / "state" / f"{seed:04d}.json", wave)
    write_content(path, range(num_seeds), STEPS, score, cells, folders)
    return path


FOUR = {
    ("A", "CartPole-v1"): [100.0, 200.0, 300.0, 500.0],
    ("B", "CartPole-v1"): [50.0, 100.0, 100.0, 150.0],
    ("A", "Acrobot-v1"): [-100.0, -100.0, -100.0, -80.0],
    ("B", "Acrobot-v1"): [-500.0, -300.0, -100.0, -100.0],
}


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> Path:
    """Two algorithms on two tasks with references, four seeds."""
    return write_benchmark(tmp_path_factory.mktemp("two"), FOUR)


def test_a_table_has_a_row_for_each_task_then_statistics_over_tasks(two):
    done = Benchmark.read(two)
    assert done.is_finished and done.common_tasks() == ["CartPole-v1", "Acrobot-v1"]
    lines = done.table(baseline="B").splitlines()
    names = [line.split("  ")[0] for line in lines[:8]]
    statistics = ["mean, normalised", "median, normalised", "IQM, normalised", "optimality gap, normalised"]
    assert names == ["task", "CartPole-v1", "Acrobot-v1", *statistics, "P(higher score than B)"]
    assert done.task_estimates("CartPole-v1")["A"].value == 250.0
    found = done.aggregates(baseline="B")
    own = np.array([[0.2, 1.0], [0.4, 1.0], [0.6, 1.0], [1.0, 1.05]])
    np.testing.assert_allclose(found["mean, normalised"]["A"].value, own.mean(), rtol=1e-12)
    np.testing.assert_allclose(found["IQM, normalised"]["A"].value, np.mean([0.6, 1.0, 1.0, 1.0]), rtol=1e-12)
    np.testing.assert_allclose(found["optimality gap, normalised"]["A"].value, 1.8 / 8, rtol=1e-12)
    wanted = probability_of_improvement(done.scores("A"), done.scores("B"))
    assert found["P(higher score than B)"] == {"A": found["P(higher score than B)"]["A"]}
    np.testing.assert_allclose(found["P(higher score than B)"]["A"].value, wanted, rtol=1e-12)
    text = "\n".join(lines[8:])
    assert "Rows of tasks: interquartile mean of 4 seeds, with 95 % bootstrap intervals." in text
    assert "P(higher score), the probability of improvement: " in text and "stand for these scores" in text
    assert "Score of a run: mean return of 100 evaluation episodes of the final policy" in text
    assert "Acrobot-v1: -500 and -100 (time limit of 500 steps, reward_threshold of Gymnasium)." in text


def test_formats_have_the_same_cells(two):
    done = Benchmark.read(two)
    cells = done.table().splitlines()[1].split("  ")
    cell = next(one.strip() for one in cells if "250" in one)
    assert f"| CartPole-v1 | {cell} |" in done.table("md")
    assert f"<td>{cell}</td>" in done.table("html") and "95 % bootstrap" in done.table("html")
    assert tables.formatted_table(["a|b"], [], "latex").splitlines()[2].startswith(r"a\textbar{}b")
    latex = done.table("latex", baseline="B")
    assert rf"CartPole-v1 & {cell} &" in latex and r"95 \% bootstrap" in latex and "P(higher score than B)" in latex
    content = json.loads(done.table("json", baseline="B"))
    assert content["cells"][0]["scores"] == [100.0, 200.0, 300.0, 500.0] and content["cells"][0]["value"] == 250.0
    assert content["aggregates"]["P(higher score than B)"]["A"]["low"] <= 1.0 and content["until"] == STEPS
    with pytest.raises(ValueError, match="format='doc': must be one of 'text', 'md'"):
        done.table("doc")
    with pytest.raises(ValueError, match="baseline='C': must be an algorithm of .*: 'A', 'B'"):
        done.table(baseline="C")


def test_few_seeds_are_means_and_tasks_without_references_are_not_normalised(tmp_path):
    scores = {("A", "Mine-v0"): [1.0, 2.0, 9.0], ("default", "Mine-v0"): [1.0, 1.0, 1.0]}
    done = Benchmark.read(write_benchmark(tmp_path, scores, num_seeds=MIN_SEEDS_OF_IQM - 1))
    text = done.table(baseline="A")
    assert done.task_estimates("Mine-v0")["A"].value == 4.0
    assert "Rows of tasks: mean of 3 seeds" in text and "interquartile" not in text and "IQM" not in text
    assert "Not normalised: no reference scores of Mine-v0. Pass references={'Mine-v0': (low, high, 'source')}" in text
    assert [*done.aggregates(baseline="A")] == ["P(higher score than A)"]
    assert "Default settings, because there are no tuned ones: default on Mine-v0." in text
    found = done.aggregates({"Mine-v0": (0.0, 8.0, "paper")})
    assert [*found] == ["mean, normalised", "median, normalised", "optimality gap, normalised"]
    assert "Mine-v0: 0 and 8 (paper)." in done.table(references={"Mine-v0": (0.0, 8.0, "paper")})
    with pytest.raises(ValueError, match="needs reference scores to normalise 'Mine-v0'"):
        done.plot_profiles()


def test_skipped_unfinished_and_diverged_runs_are_named(tmp_path):
    scores = {
        ("A", "CartPole-v1"): [10.0, 20.0, 30.0, -1000.0],
        ("B", "CartPole-v1"): [1.0, 2.0],
        ("A", "Pendulum-v1"): [1.0, 2.0, 3.0, 4.0],
        ("B", "Pendulum-v1"): "needs a Discrete action space",
        ("A", "Acrobot-v1"): [],
    }
    done = Benchmark.read(write_benchmark(tmp_path, scores))
    text = done.table()
    rows = {line.split()[0]: line for line in text.splitlines()[:4]}
    assert "(2 of 4 runs)" in rows["CartPole-v1"] and rows["Pendulum-v1"].endswith("skipped")
    assert "0 of 4 runs" in rows["Acrobot-v1"] and rows["Acrobot-v1"].endswith("–")
    assert "No statistics over tasks: no task has scores of all runs of every algorithm." in text
    assert "Rows of tasks: interquartile mean of 4 seeds, mean where fewer than 4 runs have a score, with" in text
    assert [one["statistic"] for one in json.loads(done.table("json"))["cells"]][:3] == ["IQM", "mean", "IQM"]
    assert done.task_estimates("CartPole-v1")["B"].value == 1.5
    assert "Skipped: B on Pendulum-v1: needs a Discrete action space" in text
    assert "Diverged: 1 of 4 runs of A on CartPole-v1." in text and not done.is_finished
    own = Benchmark.read(tmp_path, algorithms=["A"], tasks=["CartPole-v1"])
    assert own.is_finished and own.common_tasks() == ["CartPole-v1"]


def test_the_score_of_a_curve_is_the_mean_of_its_last_tenth(tmp_path):
    scores = {("A", "CartPole-v1"): [10.0], ("A", "Acrobot-v1"): [math.nan]}
    done = Benchmark.read(write_benchmark(tmp_path, scores, num_seeds=1, score="curve"))
    # From 0 to 10 over the axis: the last tenth is 9 to 10.
    np.testing.assert_allclose(done.cell("A", "CartPole-v1").scores, [9.5], rtol=1e-12)
    text = done.table()
    assert "Score of a run: mean of the last tenth of its curve" in text and "Rows of tasks: mean of 1 seed." in text
    assert "leave out Acrobot-v1" in text and text.splitlines()[1].split() == ["CartPole-v1", "9.5"]
    assert "No score: no episode ended in 1 run of A on Acrobot-v1." in text and done.is_finished
    assert done.table(format="json") and text.splitlines()[2].split() == ["Acrobot-v1", "no", "score"]


def test_runs_without_score_are_finished_and_have_a_note(tmp_path):
    done = Benchmark.read(write_benchmark(tmp_path, {("A", "CartPole-v1"): [math.nan, 1.0]}, num_seeds=2))
    text = done.table()
    assert done.is_finished and text.splitlines()[1].split() == ["CartPole-v1", "1", "(1", "of", "2", "runs)"]
    assert "in 1 run of A on CartPole-v1. Set evaluation(evaluation_duration_unit='episodes')" in text


def test_figures_have_a_panel_for_each_task_and_a_line_for_each_algorithm(two, tmp_path):
    done = Benchmark.read(two)
    figure = done.plot(tmp_path / "curves.png")
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["CartPole-v1", "Acrobot-v1"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["A", "B"]
    (axes,) = done.plot_profiles(tmp_path / "profiles.svg").axes
    first = axes.lines[0].get_xydata()
    assert (
        axes.lines[0].get_label() == "A"
        and first[0, 1] == 1.0
        and first[-1, 1] == 0.0
        and (np.diff(first[:, 1]) <= 0).all()
    )
    assert (tmp_path / "curves.png").stat().st_size > 10_000 and (tmp_path / "profiles.svg").exists()


# ---------------------------------------------------------------------------------------------------- wrong input


def test_damaged_foreign_and_taken_files_are_named(tmp_path):
    given = {"algorithms": {"PPO": CONFIG}, "tasks": [TASK], "until": GOAL, "progress": False}
    file = tmp_path / "benchmark.json"
    for text in ("", "[]", "{}", '{"seeds": [0], "until": {}, "score": "curve", "cells": [{"task": "a"}]}'):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"benchmark.json is damaged, or was not written .* Move the file away"):
            run_benchmark(**given, results_dir=tmp_path)
        with pytest.raises(ValueError, match=r"benchmark.json is damaged"):
            Benchmark.read(tmp_path)
    with pytest.raises(ValueError, match=r"results_dir='.*benchmark.json'\): must be a folder, but is a file"):
        run_benchmark(**given, results_dir=file)


def test_a_label_of_an_earlier_call_keeps_its_folder(tmp_path):
    write_content(tmp_path, [0], GOAL, "curve", [Cell("a b", TASK, "a config", None)], ["a_b/gymnax_CartPole-v1"])
    with pytest.raises(ValueError, match="'a/b' on .* and 'a b' on .* would write to the same folder"):
        run_benchmark({"a/b": CONFIG}, [TASK], until=GOAL, results_dir=tmp_path, seeds=2, score="evaluation")
    # Nothing has begun, so other seeds are no error above, and replace the content.
    write_content(tmp_path, [0, 1], GOAL, "curve", [Cell("c", TASK, "a config", None)], ["c/gymnax_CartPole-v1"])
    assert Benchmark.read(tmp_path).algorithms == ["c"]


@pytest.mark.parametrize(("episodes", "score"), [([0, 40], 7.0), ([0], math.nan)])
def test_scores_add_up_evaluations_that_may_end_no_episode(episodes, score):
    class Trained:
        num_calls = 0

        def evaluate(self) -> dict:
            number = episodes[self.num_calls % len(episodes)]
            self.num_calls += 1
            mean = 7.0 if number else math.nan
            return {"env_runners": {"num_episodes": number, "episode_return_mean": mean}}

    one = Trained()
    np.testing.assert_array_equal(benchmark.final_scores(one), [score])
    assert one.num_calls == (6 if score == 7.0 else 100)


def test_patterns_name_gymnax_gymnasium_and_suites():
    games = matching_tasks(["gymnax/*-MinAtar", "CartPole-v1", "gymnax/Asterix-*"], "tasks")
    assert games[0] == "gymnax/Asterix-MinAtar" and len(games) == len(set(games)) and games[-1] == "CartPole-v1"
    assert "HalfCheetah-v5" in matching_tasks(["Half*-v5"], "tasks")
    assert matching_tasks(["my_maze:MyMaze"], "tasks") == ["my_maze:MyMaze"]
    with pytest.raises(ValueError, match=r"tasks='gymnax/\*-Foo': no environment matches"):
        matching_tasks(["CartPole-v1", "gymnax/*-Foo"], "tasks")
    with pytest.raises(ValueError, match="must be a name or a pattern"):
        matching_tasks([gym.Env], "tasks")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"tasks": []}, r"tasks=\[\]: must name at least one"),
        ({"seeds": 0}, r"run_benchmark\(seeds=0\): must be at least one"),
        ({"until": None}, r"run_benchmark\(until=None\)"),
        ({"until": 5}, r"run_benchmark\(until=5\): must be a dict"),
        ({"score": "best"}, "score='best'.: must be one of 'evaluation', 'curve'"),
        ({"jobs": 0}, "jobs=0.: must be an integer of at least 1"),
        ({"algorithms": {}}, "must be a dict"),
        ({"algorithms": {"..": CONFIG}}, r"algorithms={'\.\.': ...}\): labels become names of folders"),
        ({"algorithms": {"": CONFIG}}, "a string with a letter or digit"),
        ({"algorithms": {3: CONFIG}}, "a string with a letter or digit"),
        ({"algorithms": {"benchmark.json": CONFIG}}, "other than 'benchmark.json'"),
        (
            {"algorithms": {"a b": CONFIG, "a/b": CONFIG}},
            "'a/b' on .* and 'a b' on .* would write to the same folder, 'a_b/",
        ),
        ({"algorithms": {"mine": None}}, "There is no algorithm 'mine'"),
        ({"algorithms": {"mine": {"lr": 1}}}, "must be an AlgorithmConfig, or None"),
        ({"checkpoint_seconds": 0}, r"checkpoint_seconds=0\): must be above 0"),
        ({"checkpoint_seconds": math.nan}, r"checkpoint_seconds=nan\): must be above 0"),
        (
            {"algorithms": {"PPO": KEEPING}},
            r"cannot be combined with reporting\(keep_best=.*\. Set config.reporting\(keep_best=False\)",
        ),
        ({"tasks": ["gymnax/CartPole"]}, "'gymnax/CartPole'.*Building 'PPO' raised: gymnax has no environment"),
    ],
)
def test_what_cannot_be_is_refused_before_training(changed, message, tmp_path):
    given = {"algorithms": {"PPO": CONFIG}, "tasks": [TASK], "until": GOAL, "results_dir": tmp_path / "new"}
    with pytest.raises(ValueError, match=message):
        run_benchmark(**{**given, **changed}, progress=False)
    assert not (tmp_path / "new").exists()


def series_folder(path: Path, *runs: tuple[int, dict], until: dict | None = None, **changed) -> SeriesFolder:
    """A folder of runs with these seeds and settings, for the members of a population or one after the other."""
    return SeriesFolder(path, CONFIG, runs or [(0, {}), (1, {})], until or GOAL, where="run_seeds", **changed)


def test_runs_whose_settings_differ_late_have_folders_of_their_own(tmp_path):
    settings = [{"model_config": {"fcnet_hiddens": [8] * 20, "head_fcnet_hiddens": [i]}} for i in range(2)]
    folder = series_folder(tmp_path, *((seed, own) for own in settings for seed in range(2)))
    folders = [folder.run_folder(i) for i in range(4)]
    assert len(set(folders)) == 4 and folders[3].name.endswith("seed=1_3")
    assert series_folder(tmp_path, (0, {"lr": 1e-3}), (0, {"lr": 1e-4})).run_folder(1).name == "lr=0.0001_seed=0"
    members = checked_members([{"seed": 0, "settings": own} for own in settings])
    assert len(set(folders_of(members, tmp_path))) == 2
    with pytest.raises(ValueError, match="Two members have the same seed and settings"):
        checked_members([*members, members[0]])


def test_a_series_without_finished_run_and_checkpoint_is_replaced(tmp_path):
    series_folder(tmp_path, until={"wrong": 3}).write_content()
    folder = series_folder(tmp_path)
    folder.write_content()
    assert read_series(tmp_path)["until"] == GOAL
    (tmp_path / "seed_0").mkdir()
    with pytest.raises(ValueError, match="seed_0 already contains a run of another call"):
        series_folder(tmp_path, until={"training_iteration": 4})
    series_folder(tmp_path)


def write_wave(path: Path, *places: int, **changed) -> Path:
    """The file of a wave of the runs at some places."""
    folders = [f"seed_{place}" for place in places]
    wave = {"places": places, "folders": folders, "is_one_program": False, "is_finished": False, "scores": []}
    file = path / "state" / f"{places[0]:04d}.json"
    write_json(file, {**wave, **changed})
    return file


def test_runs_continue_with_the_one_program_of_their_checkpoints(tmp_path):
    folder = series_folder(tmp_path)
    write_wave(tmp_path, 0).with_suffix("").mkdir()
    folder.check_kind("run_seeds", is_one_program=False)
    message = r"run_seeds\(one_program=True\): .* with one_program=False. Pass one_program=False, or use"
    with pytest.raises(ValueError, match=message):
        folder.check_kind("run_seeds", is_one_program=True)
    # Finished runs continue with either.
    write_wave(tmp_path, 0, is_finished=True)
    folder.check_kind("run_seeds", is_one_program=True)


def test_damaged_files_of_a_series_are_named_with_the_remedy(tmp_path):
    folder = series_folder(tmp_path)
    folder.write_content()
    file = write_wave(tmp_path, 1, is_finished=True)
    with pytest.raises(
        ValueError, match=r"seed_1 contains a finished run with missing .* delete .*0001.json and repeat"
    ):
        folder.finished()
    file.write_text("")
    with pytest.raises(ValueError, match=r"0001.json is damaged: .* Delete .*0001.json and .*0001, and repeat"):
        folder.finished()
    for text in ('{"settings": {', "[]"):
        (tmp_path / "series.json").write_text(text)
        with pytest.raises(ValueError, match=r"series.json is damaged: .* Choose another results_dir"):
            series_folder(tmp_path)


@pytest.mark.parametrize("seeds", [2.0, True, "01", [0, 1.0], [False], None])
def test_seeds_are_integers(seeds):
    with pytest.raises(ValueError, match=r"run_seeds\(seeds=.*\): must be a number of seeds, or a list of integers"):
        run_seeds(CONFIG, seeds, GOAL)


def test_seeds_of_numpy_are_integers():
    for seeds in (2, np.int64(2), np.arange(2), range(2)):
        chosen = chosen_seeds(seeds, "run_seeds")
        assert chosen == [0, 1] and all(type(seed) is int for seed in chosen)


# -------------------------------------------------------------------------------------------------------- training


def trained(path: Path, **changed) -> Benchmark:
    given = {"algorithms": {"small": CONFIG}, "tasks": [TASK], "seeds": 2, "until": GOAL, "results_dir": path}
    return run_benchmark(**{**given, "checkpoint_seconds": 1e-9, "progress": False, **changed})


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A benchmark that was not interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "results"
    trained(folder)
    return folder


def numbers(folder: Path) -> list[np.ndarray]:
    """Scores and returns of all runs."""
    cells = Benchmark.read(folder).cells
    return [one for cell in cells for one in (cell.scores, *(run.history[RETURN] for run in cell.runs))]


@pytest.fixture
def fast_training(monkeypatch):
    """No line that `interrupted` counts is run by these, which compile."""
    methods = {
        type(CONFIG): ("build_algo", "build_population"),
        Algorithm: ("train",),
        Population: ("train", "evaluate"),
    }
    for owner, names in methods.items():
        for name in names:
            monkeypatch.setattr(owner, name, untraced(getattr(owner, name)))


@pytest.mark.usefixtures("fast_training")
def test_it_continues_after_kills_and_ends_with_the_same_numbers(whole, tmp_path):
    folder = tmp_path / "results"
    # Before the first iteration (twice), at a checkpoint, before runs are scored, and after it.
    for line in (73, 92, 140, 307, 280):
        assert interrupted(lambda: trained(folder), "runs/series_folder.py", line)
    trained(folder)
    for own, wanted in zip(numbers(folder), numbers(whole), strict=True):
        np.testing.assert_array_equal(own, wanted)
    assert Benchmark.read(folder).table() == Benchmark.read(whole).table()
    assert not any(path.is_dir() for path in (folder / "small" / "gymnax_CartPole-v1" / "state").iterdir())


@pytest.mark.parametrize("one_program", [True, False])
def test_ctrl_c_while_runs_are_scored_costs_the_scores_only(one_program, tmp_path):
    trials = [Trial(CONFIG.copy().reporting(results_dir=tmp_path), seed) for seed in range(2)]
    scored = []

    def measure(trained):
        scored.append(trained.iteration)
        if len(scored) == 1:
            raise KeyboardInterrupt
        return [7.0] * (2 if one_program else 1)

    def train():
        folder = kept_in_folder(trials, GOAL, 300.0, measure=measure, where="run_seeds")
        how = {"progress": False, "one_program": one_program, "max_groups": 1, "where": "run_seeds"}
        return train_all(trials, GOAL, **how, folder=folder)

    with pytest.raises(KeyboardInterrupt):
        train()
    done = train()
    # The first wave is not trained again.
    assert scored == [3] * (2 if one_program else 3) and [len(run.history) for run in done.runs] == [3, 3]
    found = finished_runs(tmp_path)
    assert [score for _, score in found.values()] == [7.0, 7.0]
    assert [run.settings["seed"] for run, _ in found.values()] == [0, 1]


def test_a_second_call_with_other_settings_is_refused_and_names_them(whole):
    again = trained(whole)
    assert len(again.cells[0].runs) == 2
    for changed, message in (
        ({"until": {"training_iteration": 4}}, r"until=.*4.* have until=.*3"),
        ({"seeds": 3}, r"seeds=\[0, 1, 2\]\): .* have seeds=\[0, 1\]"),
        ({"score": "curve"}, "have score=evaluation"),
    ):
        with pytest.raises(ValueError, match=message):
            trained(whole, **changed)
    with pytest.raises(
        ValueError, match=r"small on gymnax/CartPole-v1: .* were started with other values: lr=5e-05 .now 0.001.\. Pass"
    ):
        trained(whole, algorithms={"small": CONFIG.copy().training(lr=1e-3)})
    assert [cell.algorithm for cell in Benchmark.read(whole).cells] == ["small"]


@pytest.mark.usefixtures("fast_training")
def test_seeds_continue_too_and_do_not_overwrite_other_runs(tmp_path):
    config = CONFIG.copy().reporting(results_dir=tmp_path)
    how = {"progress": False, "one_program": False}
    call = functools.partial(run_seeds, config, 2, GOAL, **how, checkpoint_seconds=1e-9)
    # At a checkpoint of the first seed.
    assert interrupted(call, "runs/series_folder.py", 87)
    done, alone = call(), run_seeds(CONFIG, 2, GOAL, **how)
    for run, wanted in zip(done.runs, alone.runs, strict=True):
        np.testing.assert_array_equal(run.history[RETURN], wanted.history[RETURN])
        np.testing.assert_array_equal(Run.read(run.folder).history[RETURN], run.history[RETURN])
    shutil.rmtree(tmp_path / "state")
    (tmp_path / "series.json").unlink()
    with pytest.raises(ValueError, match="seed_0 already contains a run of another call. Use another results_dir"):
        run_seeds(config, 2, GOAL, progress=False, checkpoint_seconds=300.0)
    with pytest.raises(ValueError, match=r"checkpoint_seconds=300\) needs a folder for checkpoints"):
        run_seeds(CONFIG, 2, GOAL, progress=False, checkpoint_seconds=300)


@pytest.mark.usefixtures("fast_training")
def test_an_algorithm_that_cannot_act_in_a_task_is_skipped(tmp_path):
    task, algorithms = "gymnax/Pendulum-v1", {"DQN": None, "small": CONFIG}
    # It begins to train the other one.
    assert interrupted(lambda: trained(tmp_path, algorithms=algorithms, tasks=[task]), "runs/series_folder.py", 60)
    done = Benchmark.read(tmp_path)
    assert done.cell("DQN", task).skipped.startswith("DQN needs a Discrete action space")
    assert done.table().splitlines()[1].split() == [task, "skipped", "0", "of", "2", "runs"]
    with pytest.raises(ValueError, match="'gymnax/Pendulum-v1'.* Building 'DQN' raised: DQN needs a Discrete"):
        trained(tmp_path, algorithms={"DQN": None}, tasks=[task])


def test_runs_that_are_no_members_are_shared_by_processes(tmp_path, monkeypatch, capsys):
    def in_this_process(calls: Sequence[Path], jobs: int) -> list[int]:
        assert (len(calls), jobs) == (2, 3)
        for call in calls:
            pickle.loads(call.read_bytes())()
        return [0, 0]

    monkeypatch.setattr(series_processes, "_run_all", in_this_process)
    host = CONFIG.copy().env_runners(num_env_runners=0)
    given = {"algorithms": {"small": host, "same": host}, "jobs": 3, "score": "curve", "seeds": 1, "progress": True}
    done = trained(tmp_path, **given, tasks=["CartPole-v1"])
    assert done.is_finished and [len(cell.runs) for cell in done.cells] == [1, 1]
    assert "small on CartPole-v1, 1 seed: a config" in capsys.readouterr().out


def test_processes_are_limited_and_their_exit_codes_are_known(tmp_path):
    calls = [tmp_path / str(code) for code in (0, 3, 130)]
    for path in calls:
        path.write_bytes(pickle.dumps(functools.partial(sys.exit, int(path.name))))
    assert series_processes._run_all(calls, 2) == [0, 3, 130]


def test_processes_end_without_their_parent():
    def wait() -> None:
        series_processes._interrupt_without(parent=-1)
        time.sleep(1.0)

    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            wait()
    finally:
        signal.signal(signal.SIGINT, previous)


def test_the_command_continues_and_compare_prints_the_table(whole, tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(
        "from jaxrl_stack import PPOConfig\n"
        "config = PPOConfig().env_runners(num_envs_per_env_runner=8).training(train_batch_size_per_learner=128,\n"
        "    minibatch_size=64, num_epochs=1).rl_module(model_config={'fcnet_hiddens': [8]})\n"
    )
    words = ["benchmark", f"small={file}", TASK, "--seeds", "2", "--stop", json.dumps(GOAL), "--quiet"]
    folder = ["--results-dir", str(whole)]
    assert cli.main([*words, *folder, "--baseline", "small"]) == 0
    text = Benchmark.read(whole).table(baseline="small")
    assert text in capsys.readouterr().out
    assert cli.main(["compare", str(whole), "--baseline", "small", "--format", "md"]) == 0
    assert capsys.readouterr().out.startswith("| task | small |")
    run_folder = str(whole / "small" / "gymnax_CartPole-v1")
    assert cli.main(["compare", run_folder, "--format", "latex"]) == 0
    assert capsys.readouterr().out.startswith(r"\begin{tabular}")
    for argv, message in (
        (["compare", str(whole), "--baseline", "PPO"], "baseline='PPO': "),
        (["compare", str(whole), "--key", "x"], "--key: applies to curves"),
        (["compare", str(whole), run_folder], "is a benchmark, which cannot be compared with other runs"),
        (["compare", run_folder, "--baseline", "PPO"], "--baseline PPO: needs the folder of a benchmark"),
        ([*words, *folder, "--baseline", "PPO"], "--baseline PPO: must be one of small"),
        (["compare", str(whole), "--references", str(file)], f"--references {file}: the file is not JSON"),
        (["compare", str(whole), "--references", str(file)], """Write it like {"CartPole-v1": [9, 475, "random"""),
        (["benchmark", "mine=nofile.py", TASK, "--steps", "5", *folder], "error: mine=nofile.py: cannot be read"),
        (["benchmark", "PPO", TASK, *folder], "--steps is missing"),
        (["benchmark", "PPO", "gymnax/*-Foo", "--steps", "5e3", *folder], "no environment matches"),
        (["benchmark", "PPO", TASK, "--steps", "0.5", *folder], "'0.5' must be a whole number"),
    ):
        assert cli.main(argv) == 2
        assert message in capsys.readouterr().err
