"""Benchmark of algorithms that are trained on the same tasks with the same seeds: `run_benchmark`."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from jaxrl_stack.algorithms.population import Population
from jaxrl_stack.algorithms.registry import get_algorithm_config_class, tuned_evidence, tuned_settings
from jaxrl_stack.env.task_names import matching_tasks
from jaxrl_stack.runs.benchmark import (
    BENCHMARK_FILE,
    DEFAULT_SETTINGS,
    NUM_EPISODES,
    SCORES,
    Benchmark,
    Cell,
    read_content,
    write_content,
)
from jaxrl_stack.runs.run import value_text
from jaxrl_stack.runs.series import MAX_GROUPS, Trial, check_until, chosen_seeds, kept_in_folder, train_all
from jaxrl_stack.runs.series_folder import SeriesFolder, has_progress
from jaxrl_stack.runs.series_processes import train_in_processes
from jaxrl_stack.runs.stop import StopCriteria
from jaxrl_stack.runs.stored_checkpoints import WITHOUT_FOLDER
from jaxrl_stack.runs.writers import as_json

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm import Algorithm
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig

_WHERE = "run_benchmark"
_MAX_EMPTY_EVALUATIONS = 100


def run_benchmark(
    algorithms: Mapping[str, AlgorithmConfig | None],
    tasks: str | Sequence[str],
    *,
    seeds: int | Iterable[int] = 5,
    until: Mapping[str, float],
    results_dir: str | os.PathLike[str],
    score: Literal["evaluation", "curve"] = "evaluation",
    checkpoint_seconds: float = 300.0,
    jobs: int = 1,
    progress: bool = True,
) -> Benchmark:
    """Trains algorithms on the same tasks with the same seeds, and compares their scores.

    On a JAX environment, the seeds of an algorithm are the members of a `Population`, one compiled program. On other
    environments, seeds train one after the other, or in several processes. The same call continues after a kill.
    Further calls with the same folder can add algorithms and tasks.

    ::

        result = run_benchmark(
            {"PPO": None, "mine": my_config},
            ["gymnax/CartPole-v1", "gymnax/Acrobot-v1"],
            seeds=5,
            until={"num_env_steps_sampled_lifetime": 300_000},
            results_dir="results/classic",
        )
        print(result.table(baseline="PPO"))

    Args:
        algorithms: Label -> config. Its environment and seed are replaced by each task and seed. None stands for the
            tuned settings of the algorithm of that name. If it has none for a task, its default settings are used.
        tasks: Names of environments, or patterns such as ``"gymnax/*-MinAtar"``.
        seeds: Number of seeds, which are then 0, 1, 2, ...; or the seeds themselves.
        until: When each run ends: path in the result -> value.
        results_dir: Folder for all results. It stores configs, seeds and checkpoints.
        score: Score of a run. "evaluation" is the mean return of 100 evaluation episodes of the final policy. "curve"
            is the mean of the last tenth of the curve of returns in training.
        checkpoint_seconds: Time between two checkpoints of a population or run. A kill loses at most this time.
        jobs: Number of processes, with one thread each, that train the runs outside of populations.
        progress: Whether to print how it goes.

    Returns:
        The results, with ``table()``, ``plot()`` and ``plot_profiles()``. After Ctrl-C, they contain the finished runs.

    Raises:
        ValueError: No task matches, a label cannot name a folder, no algorithm can act in a task, or `results_dir` has
            runs with other settings, seeds or goals. The message names them.
        KeyboardInterrupt: If no run was finished.
    """
    check_until(until, _WHERE)
    if score not in SCORES:
        raise ValueError(f"{_WHERE}(score={score!r}): must be one of {', '.join(map(repr, SCORES))}.")
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1:
        raise ValueError(f"{_WHERE}(jobs={jobs!r}): must be an integer of at least 1.")
    if not isinstance(until, Mapping):
        raise ValueError(f"{_WHERE}(until={until!r}): must be a dict: {{'num_env_steps_sampled_lifetime': 200_000}}.")
    path, chosen = Path(results_dir), chosen_seeds(seeds, _WHERE)
    names = matching_tasks([tasks] if isinstance(tasks, str) else tasks, f"{_WHERE}: tasks")
    _check_labels(algorithms)
    if path.exists() and not path.is_dir():
        raise ValueError(
            f"{_WHERE}(results_dir={str(path)!r}): must be a folder, but is a file. Use results_dir='results/mine'."
        )
    goal = StopCriteria(until).targets
    _check_same(path, chosen, goal, score)
    plans = [_plan(path, label, config, task, score) for task in names for label, config in algorithms.items()]
    _check_some_can_act(plans, names)
    _check_folders(path, plans)
    trained = [plan for plan in plans if plan.cell.skipped is None]
    series = [_series(plan, chosen, until, score, checkpoint_seconds) for plan in trained]
    cells, folders = [plan.cell for plan in plans], [plan.folder for plan in plans]
    write_content(path, chosen, as_json(goal), score, cells, folders)
    try:
        _train(trained, series, until, jobs=jobs, progress=progress)
    except KeyboardInterrupt:
        if not any(folder.finished() for _, folder in series):
            raise
        print(f"Ctrl-C: the same call continues from the checkpoints in {path}.", flush=True)
    return Benchmark.read(path, list(algorithms), names)


@dataclasses.dataclass(frozen=True)
class _Plan:
    """Planned training of one algorithm on one task. If the algorithm does not support the task, the plan describes the
    skipped combination.

    Attributes:
        cell: Result cell, still without runs.
        folder: Folder of the runs, relative to the benchmark's.
        config: Config for all seeds; None if the pair is skipped.
    """

    cell: Cell
    folder: str
    config: AlgorithmConfig | None


def _check_labels(algorithms: Mapping[str, AlgorithmConfig | None]) -> None:
    """Checks the labels of the compared algorithms. A label must be usable as a folder name; a label without a config
    must be an algorithm's name.

    Raises:
        ValueError: Names the label.
    """
    if not isinstance(algorithms, Mapping) or not algorithms:
        raise ValueError(
            f"{_WHERE}(algorithms={algorithms!r}): must be a dict, such as {{'PPO': None, 'mine': config}}."
        )
    for label, config in algorithms.items():
        if not isinstance(label, str) or not any(map(str.isalnum, label)) or label == BENCHMARK_FILE:
            raise ValueError(
                f"{_WHERE}(algorithms={{{label!r}: ...}}): labels become names of folders. Use a string with a letter "
                f"or digit, other than {BENCHMARK_FILE!r}: {{'mine': ...}}."
            )
        if config is None:
            get_algorithm_config_class(label)
        elif not hasattr(config, "build_algo"):
            raise ValueError(
                f"{_WHERE}(algorithms={{{label!r}: {value_text(config)}}}): must be an AlgorithmConfig, or None for "
                f"the tuned settings of {label!r}."
            )


def _check_same(path: Path, seeds: Sequence[int], goal: Mapping[str, float], score: str) -> None:
    """Raises if the runs in the benchmark folder have other seeds, another training goal (`until`), or another kind of
    score ("evaluation" or "curve") than the arguments.

    Raises:
        ValueError: Names what differs.
    """
    known = read_content(path)
    if known is None or not any(has_progress(path / one["folder"]) for one in known["cells"]):
        return
    for name, own in (("seeds", list(seeds)), ("until", as_json(goal)), ("score", score)):
        if known[name] != own:
            raise ValueError(
                f"{_WHERE}({name}={value_text(own)}): must be the same for all runs of a folder, but the runs in "
                f"{path} have {name}={value_text(known[name])}. Use the value of these runs, or another results_dir."
            )


def _plan(path: Path, label: str, given: AlgorithmConfig | None, task: str, score: str) -> _Plan:
    """Plans the training of an algorithm on a task: its config, or the reason why the algorithm does not support the
    task.
    """
    folder = f"{_slug(label)}/{_slug(task)}"
    if given is not None:
        config, settings = given.copy(copy_frozen=False).environment(task), "a config"
    else:
        config, settings = get_algorithm_config_class(label)().environment(task), DEFAULT_SETTINGS
        tuned = tuned_settings(label)
        if task in tuned:
            config.update_from_dict(tuned[task])
            settings = f"tuned settings, {tuned_evidence(label)[task]}"
    if score == "evaluation" and not config.evaluation_interval:
        # Only evaluations of the final policy use these.
        config.evaluation(
            evaluation_duration=NUM_EPISODES, evaluation_duration_unit="episodes", evaluation_sample_timeout_s=None
        )
    config.reporting(results_dir=path / folder)
    # Runs that have begun show that it can act.
    reason = None if has_progress(path / folder) else _why_not(config)
    return _Plan(Cell(label, task, settings, reason), folder, None if reason is not None else config)


def _slug(text: str) -> str:
    """Converts a text to a folder name without leading dots."""
    return re.sub(r"^\.+|[^\w.+-]+", "_", text)


def _why_not(config: AlgorithmConfig) -> str | None:
    """Tries to build the algorithm of a config in this process, and returns the error message if this fails.

    Builds the algorithm without actors. Returns the message of the ValueError, for example because the algorithm does
    not support the environment; None if the build succeeds.
    """
    in_this_process = config.copy(copy_frozen=False).env_runners(num_env_runners=0).learners(num_learners=0)
    try:
        in_this_process.reporting(**WITHOUT_FOLDER).build_algo().stop()
    except ValueError as error:
        return str(error)
    return None


def _check_some_can_act(plans: Sequence[_Plan], tasks: Sequence[str]) -> None:
    """Raises for tasks that none of the compared algorithms supports.

    Raises:
        ValueError: Names the task and the first reason.
    """
    for task in tasks:
        own = [plan for plan in plans if plan.cell.task == task]
        if all(plan.cell.skipped is not None for plan in own):
            raise ValueError(
                f"{_WHERE}: no algorithm can act in {task!r}. Leave this task out, or add an algorithm that can act in "
                f"it. Building {own[0].cell.algorithm!r} raised: {own[0].cell.skipped}"
            )


def _check_folders(path: Path, plans: Sequence[_Plan]) -> None:
    """Raises if two combinations of algorithm label and task would use the same folder. Checks the planned
    combinations, and combinations that the benchmark folder already contains.

    Raises:
        ValueError: Names both.
    """
    stored = (read_content(path) or {"cells": []})["cells"]
    owners = {one["folder"]: (one["algorithm"], one["task"]) for one in stored}
    for plan in plans:
        own = plan.cell.algorithm, plan.cell.task
        other = owners.setdefault(plan.folder, own)
        if other != own:
            raise ValueError(
                f"{_WHERE}: {own[0]!r} on {own[1]!r} and {other[0]!r} on {other[1]!r} would write to the same folder, "
                f"{plan.folder!r}. Use labels that differ in letters or digits."
            )


def _series(
    plan: _Plan, seeds: Sequence[int], until: Mapping[str, float], score: str, checkpoint_seconds: float
) -> tuple[list[Trial], SeriesFolder]:
    """Creates the runs of an algorithm on a task, one `Trial` per seed, and the `SeriesFolder` in which these runs are
    stored. Returns both.
    """
    assert plan.config is not None
    trials = [Trial(plan.config, seed) for seed in seeds]
    measure = final_scores if score == "evaluation" else None
    where = f"{_WHERE}: {plan.cell.algorithm} on {plan.cell.task}"
    return trials, kept_in_folder(trials, until, checkpoint_seconds, measure=measure, where=where)


def _train(
    plans: Sequence[_Plan],
    series: Sequence[tuple[list[Trial], SeriesFolder]],
    until: Mapping[str, float],
    *,
    jobs: int,
    progress: bool,
) -> None:
    """Trains all unfinished runs in this process, or some of them in child processes.

    If ``jobs > 1`` and the seeds of a config cannot train as a population (in one compiled program), the runs of this
    config are trained last, in child processes. All other runs are trained in this process.

    Raises:
        KeyboardInterrupt: After Ctrl-C.
    """
    elsewhere = []
    for plan, (trials, folder) in zip(plans, series, strict=True):
        cell, num_done = plan.cell, len(folder.finished())
        if num_done == len(trials):
            continue
        alone = jobs > 1 and trials[0].without_folder().base.why_no_population() is not None
        if progress:
            done = f", {num_done} of them finished" if num_done else ""
            seeds = f"{len(trials)} seed{'s' * (len(trials) > 1)}"
            print(f"{cell.algorithm} on {cell.task}, {seeds}{done}: {cell.settings}", flush=True)
        if alone:
            elsewhere.append((trials, folder))
            continue
        trained = train_all(
            trials, until, progress=progress, one_program=True, max_groups=MAX_GROUPS, where=_WHERE, folder=folder
        )
        if len(trained.runs) < len(trials):
            raise KeyboardInterrupt
    if elsewhere:
        train_in_processes(elsewhere, until, jobs, progress=progress)


def final_scores(trained: Algorithm | Population) -> list[float]:
    """Scores of trained runs. A run's score is the mean return of its current policy over at least 100 evaluation
    episodes.

    If 100 evaluations in sequence end none of a run's episodes, the score is the mean over the fewer episodes that
    ended before, or NaN if no episode ended.

    Args:
        trained: An algorithm, or a population of several runs.
    """
    num_runs = len(trained) if isinstance(trained, Population) else 1
    num_episodes, sums, num_empty = np.zeros(num_runs), np.zeros(num_runs), np.zeros(num_runs)
    while ((num_episodes < NUM_EPISODES) & (num_empty < _MAX_EMPTY_EVALUATIONS)).any():
        results = trained.evaluate()
        found = [results] if isinstance(results, dict) else list(results)
        own = np.array([one["env_runners"]["num_episodes"] for one in found], np.float64)
        means = np.array([one["env_runners"]["episode_return_mean"] for one in found], np.float64)
        num_episodes += own
        sums += np.where(own > 0, own * means, 0.0)
        num_empty = np.where(own > 0, 0, num_empty + 1)
    return np.where(num_episodes > 0, sums / np.maximum(num_episodes, 1), np.nan).tolist()
