"""Benchmark of algorithms on tasks: scores of their runs, tables with intervals, and figures."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np

from jaxrl_stack.runs.axes import AxisOptions
from jaxrl_stack.runs.curves import RETURN, STEPS, Band, Curve, axis_label, iqm, key_label
from jaxrl_stack.runs.plots import bands_of, mean_of_end
from jaxrl_stack.runs.run import Run
from jaxrl_stack.runs.score_references import ScoreReference, with_references
from jaxrl_stack.runs.score_statistics import (
    MIN_SEEDS_OF_IQM,
    Statistic,
    iqm_score,
    mean_score,
    median_score,
    normalised,
    optimality_gap,
    probability_of_improvement,
    score_distribution,
    score_interval,
)
from jaxrl_stack.runs.series_folder import finished_runs, write_json
from jaxrl_stack.runs.stop import StopCriteria
from jaxrl_stack.runs.tables import check_format, formatted_table
from jaxrl_stack.runs.terminal import number_text
from jaxrl_stack.runs.writers import as_json

BENCHMARK_FILE = "benchmark.json"
NUM_EPISODES = 100
SCORES = {
    "evaluation": f"mean return of {NUM_EPISODES} evaluation episodes of the final policy, "
    f"which acts as its evaluation settings say",
    "curve": "mean of the last tenth of its curve of returns in training",
}
"""Scores of a run: ``{name: definition}``."""
_NUM_THRESHOLDS = 101


class Estimate(NamedTuple):
    """Estimated score with its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """Formats an estimated score with its interval: ``"486 [470, 500]"``, or ``"486"`` for a single run, which has
        no interval.
        """
        if math.isnan(self.low):
            return number_text(self.value)
        return f"{number_text(self.value)} [{number_text(self.low)}, {number_text(self.high)}]"


@dataclasses.dataclass(frozen=True)
class Cell:
    """Cell of a benchmark's table: the runs of an algorithm on a task, and their scores.

    Attributes:
        algorithm: Label of the algorithm.
        task: Name of the environment.
        settings: Origin of the settings, in words.
        skipped: Why the algorithm was not trained on the task; None if it was.
        runs: Finished runs, in the order of the seeds.
        scores: ``float64[finished runs]``.
    """

    algorithm: str
    task: str
    settings: str
    skipped: str | None
    runs: tuple[Run, ...] = ()
    scores: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """Algorithms that were trained on the same tasks, with the same seeds and stop criteria, and the scores of their
    runs.

    Attributes:
        path: Folder of the results.
        seeds: Seeds of each algorithm on each task.
        until: Path in the result -> value at which each run ends.
        score: Name of the score in `SCORES`.
        cells: Runs of each algorithm on each task.
    """

    path: Path
    seeds: tuple[int, ...]
    until: Mapping[str, float]
    score: str
    cells: tuple[Cell, ...]

    @classmethod
    def read(
        cls, path: str | os.PathLike[str], algorithms: Sequence[str] | None = None, tasks: Sequence[str] | None = None
    ) -> Benchmark:
        """Reads the results that `run_benchmark` has written to its folder so far.

        Args:
            path: The folder.
            algorithms: Labels of the algorithms to read. None reads all.
            tasks: Tasks to read. None reads all.

        Raises:
            FileNotFoundError: The folder has no benchmark.
        """
        below = Path(path)
        content = read_content(below)
        if content is None:
            raise FileNotFoundError(
                f"{below} is not the folder of a benchmark (no {BENCHMARK_FILE}). Pass the results_dir of "
                "run_benchmark()."
            )
        cells = [
            _cell(below, one, content["score"])
            for one in content["cells"]
            if (algorithms is None or one["algorithm"] in algorithms) and (tasks is None or one["task"] in tasks)
        ]
        return cls(below, tuple(content["seeds"]), content["until"], content["score"], tuple(cells))

    @property
    def algorithms(self) -> list[str]:
        """Labels of the algorithms, each once, in the order of the entries in ``benchmark.json``."""
        return list(dict.fromkeys(cell.algorithm for cell in self.cells))

    @property
    def tasks(self) -> list[str]:
        """Names of the environments, each once, in the order of the entries in ``benchmark.json``."""
        return list(dict.fromkeys(cell.task for cell in self.cells))

    @property
    def is_finished(self) -> bool:
        """Whether all runs of the benchmark are finished (with or without a score) or skipped."""
        return all(cell.skipped is not None or len(cell.runs) == len(self.seeds) for cell in self.cells)

    def cell(self, algorithm: str, task: str) -> Cell | None:
        """Runs of an algorithm on a task, with their scores; None if the benchmark does not contain this pair."""
        found = (cell for cell in self.cells if (cell.algorithm, cell.task) == (algorithm, task))
        return next(found, None)

    def _is_complete(self, cell: Cell | None) -> bool:
        """Whether all runs of an algorithm on a task are finished and have a finite score."""
        return cell is not None and len(_known_scores(cell)) == len(self.seeds)

    def common_tasks(self) -> list[str]:
        """Tasks on which all runs of all algorithms have scores. Statistics over tasks use only these."""
        return [
            task for task in self.tasks if all(self._is_complete(self.cell(name, task)) for name in self.algorithms)
        ]

    def scores(self, algorithm: str, tasks: Sequence[str] | None = None) -> np.ndarray:
        """Scores of an algorithm's runs on the given tasks, ``float64[runs, tasks]``, not normalised.

        Args:
            algorithm: Label of the algorithm.
            tasks: Tasks on which all runs are finished. None for `common_tasks`.
        """
        chosen = self.common_tasks() if tasks is None else tasks
        cells = [self.cell(algorithm, task) for task in chosen]
        return np.stack([cell.scores for cell in cells if cell is not None], axis=1)

    # ----------------------------------------------------------------------------------------------------- statistics

    def task_estimates(self, task: str) -> dict[str, Estimate]:
        """Estimates the score of each algorithm on a task from the algorithm's finished runs.

        The estimate is the interquartile mean of the runs, or the mean for fewer than 4 runs. Returns ``{label of the
        algorithm: estimate}``.

        Intervals are percentile bootstraps over runs. A single run has no interval.
        """
        found = {}
        for cell in self.cells:
            scores = _known_scores(cell)
            if cell.task == task and len(scores):
                found[cell.algorithm] = _estimate(_over_runs(len(scores)), scores[:, None])
        return found

    def aggregates(
        self, references: Mapping[str, tuple[float, float, str]] | None = None, baseline: str | None = None
    ) -> dict[str, dict[str, Estimate]]:
        """Computes statistics of each algorithm's scores over `common_tasks`: the tasks on which all runs of all
        algorithms have scores.

        Args:
            references: Task -> ``(low, high, source)``, in addition to `score_references`.
            baseline: Label of the algorithm to compare the others with.

        Returns:
            Name of the statistic -> label -> value and interval. Without references of all tasks, it only has the
            probability of improvement, which compares scores of one task.

        Raises:
            ValueError: The folder has no such baseline.
        """
        self._check_baseline(baseline)
        tasks = self.common_tasks()
        found: dict[str, dict[str, Estimate]] = {}
        if not tasks:
            return found
        bounds = self._bounds(references)
        if bounds is not None:
            scores = {name: normalised(self.scores(name), bounds) for name in self.algorithms}
            for label, statistic in _aggregates(len(self.seeds) * len(tasks)).items():
                found[label] = {name: _estimate(statistic, own) for name, own in scores.items()}
        if baseline is not None:
            others = self.scores(baseline)
            found[f"P(higher score than {baseline})"] = {
                name: _estimate(probability_of_improvement, self.scores(name), others)
                for name in self.algorithms
                if name != baseline
            }
        return found

    def _bounds(self, references: Mapping[str, tuple[float, float, str]] | None) -> list[tuple[float, float]] | None:
        known, tasks = with_references(references), self.common_tasks()
        return [known[task][:2] for task in tasks] if all(task in known for task in tasks) else None

    def _check_baseline(self, baseline: str | None) -> None:
        if baseline is not None and baseline not in self.algorithms:
            raise ValueError(
                f"baseline={baseline!r}: must be an algorithm of {self.path}: {', '.join(map(repr, self.algorithms))}."
            )

    # ---------------------------------------------------------------------------------------------------------- table

    def table(
        self,
        format: str = "text",
        *,
        baseline: str | None = None,
        references: Mapping[str, tuple[float, float, str]] | None = None,
    ) -> str:
        """Formats a table of scores: a row for each task, then a row for each statistic over tasks.

        Each algorithm has a column. Notes below the table define the score.

        Args:
            format: "text", "md", "html", "latex" or "json".
            baseline: Label of an algorithm; adds the probability that others score higher.
            references: Task -> ``(low, high, source)`` for statistics over tasks, in addition to the known ones.

        Raises:
            ValueError: Unknown format, baseline not in the folder, or a malformed reference.
        """
        check_format(format)
        aggregates = self.aggregates(references, baseline)
        notes = self._notes(references, baseline)
        if format == "json":
            return json.dumps(as_json(self._content(aggregates, notes)), indent=2, ensure_ascii=False)
        rows = [[task, *(self._text(task, name) for name in self.algorithms)] for task in self.tasks]
        for label, of_algorithms in aggregates.items():
            rows.append([label, *(str(of_algorithms.get(name, "–")) for name in self.algorithms)])
        return formatted_table(["task", *self.algorithms], rows, format, notes)

    def __str__(self) -> str:
        return self.table()

    def _text(self, task: str, algorithm: str) -> str:
        cell = self.cell(algorithm, task)
        if cell is None:
            return "–"
        if cell.skipped is not None:
            return "skipped"
        num_scores = len(_known_scores(cell))
        if not num_scores:
            return "no score" if len(cell.runs) == len(self.seeds) else f"{len(cell.runs)} of {len(self.seeds)} runs"
        text = str(self.task_estimates(task)[algorithm])
        return text if self._is_complete(cell) else f"{text} ({num_scores} of {len(self.seeds)} runs)"

    def _content(self, aggregates: Mapping[str, Mapping[str, Estimate]], notes: Sequence[str]) -> dict[str, Any]:
        """Converts the benchmark's table to a dict for JSON."""
        return {
            "score": SCORES[self.score],
            "seeds": self.seeds,
            "until": self.until,
            "cells": [
                {
                    "task": cell.task,
                    "algorithm": cell.algorithm,
                    "settings": cell.settings,
                    "skipped": cell.skipped,
                    "scores": cell.scores,
                    "statistic": "IQM" if len(_known_scores(cell)) >= MIN_SEEDS_OF_IQM else "mean",
                    **self._values(cell),
                }
                for cell in self.cells
            ],
            "aggregates": {
                label: {name: one._asdict() for name, one in of_algorithms.items()}
                for label, of_algorithms in aggregates.items()
            },
            "notes": notes,
        }

    def _values(self, cell: Cell) -> dict[str, float]:
        """Converts the estimated score of an algorithm on a task, with its interval, to a dict; {} if no finished
        run has a score.
        """
        estimate = self.task_estimates(cell.task).get(cell.algorithm)
        return {} if estimate is None else estimate._asdict()

    def _note_of_tasks(self) -> str:
        """Sentence below the benchmark's table that names the statistic of each task's scores: mean or interquartile
        mean over runs.
        """
        numbers = [number for cell in self.cells if (number := len(_known_scores(cell)))] or [len(self.seeds)]
        has_iqm = max(numbers) >= MIN_SEEDS_OF_IQM
        statistic = "interquartile mean" if has_iqm else "mean"
        exception = f", mean where fewer than {MIN_SEEDS_OF_IQM} runs have a score"
        exception = exception if has_iqm and min(numbers) < MIN_SEEDS_OF_IQM else ""
        interval = "" if max(numbers) == 1 else ", with 95 % bootstrap intervals"
        return f"Rows of tasks: {statistic} of {_seeds_text(self.seeds)}{exception}{interval}."

    def _notes(self, references: Mapping[str, tuple[float, float, str]] | None, baseline: str | None) -> list[str]:
        """Notes below the benchmark's table, such as the definition of the score and the number of diverged runs."""
        notes = [
            f"{self._note_of_tasks()} Each run ends when {StopCriteria(self.until)}.",
            f"Score of a run: {SCORES[self.score]}.",
            *self._notes_of_aggregates(with_references(references), baseline),
        ]
        by_episodes = " Set evaluation(evaluation_duration_unit='episodes') in another folder."
        remedy = by_episodes if self.score == "evaluation" else ""
        for cell in self.cells:
            if cell.skipped is not None:
                notes.append(f"Skipped: {cell.algorithm} on {cell.task}: {cell.skipped}")
            pairs = zip(cell.runs, cell.scores, strict=True)
            num_without = sum(not math.isfinite(score) and not run.has_diverged for run, score in pairs)
            if num_without:
                runs = f"{num_without} run{'s' * (num_without > 1)}"
                notes.append(f"No score: no episode ended in {runs} of {cell.algorithm} on {cell.task}.{remedy}")
            num_diverged = sum(run.has_diverged for run in cell.runs)
            if num_diverged:
                notes.append(f"Diverged: {num_diverged} of {len(cell.runs)} runs of {cell.algorithm} on {cell.task}.")
        defaults = [f"{c.algorithm} on {c.task}" for c in self.cells if c.settings == DEFAULT_SETTINGS and c.runs]
        if defaults:
            notes.append(f"Default settings, because there are no tuned ones: {', '.join(defaults)}.")
        return notes

    def _notes_of_aggregates(self, known: Mapping[str, ScoreReference], baseline: str | None) -> list[str]:
        tasks = self.common_tasks()
        if not tasks:
            return ["No statistics over tasks: no task has scores of all runs of every algorithm."]
        notes = []
        left_out = [task for task in self.tasks if task not in tasks]
        if left_out:
            notes.append(
                f"Statistics over tasks leave out {', '.join(left_out)}: not every algorithm has all scores there."
            )
        missing = [task for task in tasks if task not in known]
        if missing:
            notes.append(
                f"Not normalised: no reference scores of {', '.join(missing)}. Pass references={{{missing[0]!r}: "
                f"(low, high, 'source')}} for statistics over tasks."
            )
        else:
            notes.append("Statistics over tasks use normalised scores: 0 and 1 stand for these scores.")
            sources: dict[ScoreReference, list[str]] = {}
            for task in tasks:
                sources.setdefault(known[task], []).append(task)
            for reference, of in sources.items():
                low, high = number_text(reference.low), number_text(reference.high)
                notes.append(f"{', '.join(of)}: {low} and {high} ({reference.source}).")
        if baseline is not None:
            notes.append(
                "P(higher score), the probability of improvement: mean over tasks of the Mann–Whitney statistic, ties "
                "count ½."
            )
        return notes

    # -------------------------------------------------------------------------------------------------------- figures

    def plot(
        self,
        path: str | os.PathLike[str] | None = None,
        key: str = RETURN,
        x: str = STEPS,
        *,
        aggregate: str = "iqm",
        band: float = 0.95,
        **options: Unpack[AxisOptions],
    ) -> Any:
        """Draws a panel for each task. A panel contains a curve of each algorithm, aggregated over its seeds, with a
        bootstrap confidence interval.

        Args:
            path: File to write, a ``.png``, ``.svg`` or ``.pdf``; None writes none.
            key: Number to draw.
            x: The x axis: "steps", "seconds", "iterations", or the name of a column.
            aggregate: Aggregate of the seeds: "iqm", "mean" or "median".
            band: Confidence of the bands.
            **options: ``ylim=(low, high)``, ``xscale``, ``yscale``: see `AxisOptions`.

        Returns:
            The `RunFigure`, which notebooks show.

        Raises:
            ImportError: Without matplotlib: ``pip install 'jaxrl-stack[plots]'``.
            ValueError: No finished run has the metric `key`, or `path` has another ending.
        """
        from jaxrl_stack.runs.figures import draw_panels

        panels: dict[str, list[Band]] = {}
        for task in self.tasks:
            cells = {name: self.cell(name, task) for name in self.algorithms}
            bands = {}
            for name, cell in cells.items():
                if cell is not None and cell.runs and any(key in run.history for run in cell.runs):
                    (one,) = bands_of(cell.runs, key, x, aggregate=aggregate, band=band)
                    bands[name] = dataclasses.replace(one, label=name)
            if bands:
                panels[task] = [bands.get(name) or _empty_band(name) for name in cells]
        if not panels:
            raise ValueError(f"{self.path}: no finished run has the metric {key!r}. Choose another: plot(key=...).")
        return draw_panels(panels, x_label=axis_label(x), y_label=key_label(key), path=path, **options)

    def plot_profiles(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        references: Mapping[str, tuple[float, float, str]] | None = None,
        **options: Unpack[AxisOptions],
    ) -> Any:
        """Draws the distribution of each algorithm's normalised scores over all `common_tasks`: for each threshold, the
        fraction of runs with a score above the threshold.

        Args:
            path: File to write, a ``.png``, ``.svg`` or ``.pdf``; None writes none.
            references: See `table`.
            **options: ``ylim=(low, high)``, ``xscale``, ``yscale``: see `AxisOptions`.

        Returns:
            The `RunFigure`, which notebooks show.

        Raises:
            ImportError: Without matplotlib: ``pip install 'jaxrl-stack[plots]'``.
            ValueError: A task has no reference, no task is finished, or `path` has another ending.
        """
        from jaxrl_stack.runs.figures import draw

        tasks, bounds = self.common_tasks(), self._bounds(references)
        if not tasks:
            raise ValueError(
                f"{self.path}: the plot needs a task with scores of all runs of every algorithm, but no task has all "
                "these scores. Call run_benchmark() again to finish the runs."
            )
        if bounds is None:
            missing = next(task for task in tasks if task not in with_references(references))
            raise ValueError(
                f"plot_profiles() needs reference scores to normalise {missing!r}. Pass "
                f"plot_profiles(references={{{missing!r}: (low, high, 'source')}})."
            )
        scores = {name: normalised(self.scores(name), bounds) for name in self.algorithms}
        values = np.stack(list(scores.values()))
        thresholds = np.linspace(min(0.0, values.min()), max(0.1, values.max()), _NUM_THRESHOLDS)
        bands = []
        for name, own in scores.items():
            low, high = score_interval(lambda drawn: score_distribution(drawn, thresholds), own)
            # A band is shaded if it has several curves.
            ends = (Curve(thresholds, low), Curve(thresholds, high)) if len(self.seeds) > 1 else ()
            bands.append(Band(name, ends, thresholds, score_distribution(own, thresholds), low, high))
        drawn = {"ylim": (0.0, 1.0), **options}
        title = f"{len(tasks)} task{'s' * (len(tasks) > 1)}, {_seeds_text(self.seeds)}"
        return draw(bands, x_label="normalised score τ", y_label="P(score > τ)", title=title, path=path, **drawn)


DEFAULT_SETTINGS = "default settings"
"""`Cell.settings` of an algorithm without tuned settings for the task."""


def _seeds_text(seeds: Sequence[int]) -> str:
    return f"{len(seeds)} seed{'s' * (len(seeds) > 1)}"


def _known_scores(cell: Cell) -> np.ndarray:
    """Finite scores of the finished runs of an algorithm on a task."""
    return cell.scores[np.isfinite(cell.scores)]


def _over_runs(num_runs: int) -> Statistic:
    """Returns a function that summarises the scores of one task over `num_runs` runs.

    The function computes the IQM (interquartile mean) for at least `MIN_SEEDS_OF_IQM` runs, else the mean. The function
    takes an array ``[..., runs, 1]``; the last axis, of length 1, is the task.
    """
    return (lambda scores: iqm(scores[..., 0], axis=-1)) if num_runs >= MIN_SEEDS_OF_IQM else mean_score


def _aggregates(num_runs: int) -> dict[str, Statistic]:
    """Returns functions that compute statistics over all tasks from normalised scores.

    The result is ``{label of the table row: function}``. The IQM (interquartile mean) is omitted if `num_runs` is below
    `MIN_SEEDS_OF_IQM`.
    """
    own_iqm: dict[str, Statistic] = {"IQM": iqm_score} if num_runs >= MIN_SEEDS_OF_IQM else {}
    found = {"mean": mean_score, "median": median_score, **own_iqm, "optimality gap": optimality_gap}
    return {f"{name}, normalised": statistic for name, statistic in found.items()}


def _estimate(statistic: Callable[..., np.ndarray], *scores: np.ndarray) -> Estimate:
    value = float(statistic(*scores))
    if all(len(one) == 1 for one in scores):
        return Estimate(value, math.nan, math.nan)
    low, high = score_interval(statistic, *scores)
    return Estimate(value, float(low), float(high))


def _empty_band(label: str) -> Band:
    """Band (curve with an interval) without points. It reserves an algorithm's colour in a panel without a curve of the
    algorithm.
    """
    nothing = np.zeros(0)
    return Band(label, (), nothing, nothing, nothing, nothing)


# ----------------------------------------------------------------------------------------------------------- files


def read_content(path: Path) -> dict[str, Any] | None:
    """Reads ``benchmark.json`` in the folder of a benchmark; returns None if the folder has no such file.

    Raises:
        ValueError: The file is damaged, or not a file of `run_benchmark`; names it.
    """
    file = path / BENCHMARK_FILE
    if not file.exists():
        return None
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        keys = {"algorithm", "task", "settings", "skipped", "folder"}
        is_own = {"seeds", "until", "score"} <= content.keys() and all(keys <= one.keys() for one in content["cells"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        is_own = False
    if not is_own:
        raise ValueError(
            f"{file} is damaged, or was not written by run_benchmark(). Move the file away and call run_benchmark() "
            f"again, which keeps finished runs."
        )
    return content


def write_content(
    path: Path,
    seeds: Sequence[int],
    until: Mapping[str, float],
    score: str,
    cells: Sequence[Cell],
    folders: Sequence[str],
) -> None:
    """Writes an entry for each cell (pair of algorithm and task) to ``benchmark.json``.

    If the file already has the same `seeds`, `until` and `score`, its entries of other pairs remain. Otherwise, its old
    entries are dropped.

    Args:
        path: The folder.
        seeds, until, score: See `Benchmark`.
        cells: Cells to add; an earlier entry of the same algorithm and task is replaced. If `seeds`, `until` or
            `score` differ from the earlier ones, all earlier entries are dropped.
        folders: Folder of each cell, below `path`.
    """
    content = {"seeds": list(seeds), "until": dict(until), "score": score}
    known = read_content(path)
    if known is None or {name: known[name] for name in content} != content:
        known = {"cells": []}
    by_name = {(one["algorithm"], one["task"]): one for one in known["cells"]}
    for cell, folder in zip(cells, folders, strict=True):
        by_name[cell.algorithm, cell.task] = {
            "algorithm": cell.algorithm,
            "task": cell.task,
            "settings": cell.settings,
            "skipped": cell.skipped,
            "folder": folder,
        }
    write_json(path / BENCHMARK_FILE, {**content, "cells": list(by_name.values())})


def _cell(path: Path, entry: Mapping[str, Any], score: str) -> Cell:
    """Reads the finished runs of an algorithm on a task, from an entry of ``benchmark.json``."""
    found = list(finished_runs(path / entry["folder"]).values())
    runs = tuple(run for run, _ in found)
    scores = [_end_of_curve(run) if score == "curve" else own for run, own in found]
    texts = (entry[name] for name in ("algorithm", "task", "settings", "skipped"))
    return Cell(*texts, runs=runs, scores=np.array(scores, np.float64))


def _end_of_curve(run: Run) -> float:
    """Mean of the last tenth of a run's curve of the training return; NaN if no episode has ended."""
    curve = run.history.curve() if RETURN in run.history else None
    return math.nan if curve is None or not len(curve.x) else mean_of_end(curve)
