"""Folder of a series (several runs with one goal): finished runs, and checkpoints of unfinished runs. A killed series
continues from its folder.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrl_stack.runs.learn import CTRL_C
from jaxrl_stack.runs.output import write_run
from jaxrl_stack.runs.run import Run, distinct_names, folder_of, run_name, settings_that_differ, value_text
from jaxrl_stack.runs.writers import as_json

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm import Algorithm
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.algorithms.population import Population

SERIES_FILE, STATE_FOLDER = "series.json", "state"

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""Memory address in the text of an object, which differs between processes."""

Measure = Callable[[Any], Sequence[float]]
"""Function of a trained algorithm or population. Returns the scores of its runs, one per run."""


class SeriesFolder:
    """Folder with the finished runs of a series (several runs with one goal), and checkpoints of its unfinished runs.

    ``series.json`` has settings, seeds and goal. ``state`` has a file for each wave of runs that are trained together,
    and a checkpoint of the wave until it is finished. Files are replaced atomically, so a kill leaves them complete.

    Args:
        path: The folder. None stores nothing.
        base: Common config of all runs.
        runs: Seed and settings of each run, by index.
        until: The goal: path in the result -> value.
        checkpoint_seconds: Time from one checkpoint to the next.
        measure: Function that scores finished runs. None stores no scores.
        schedule: Arguments of the sweep's scheduler; None without one.
        where: Name of the caller, for messages.

    Raises:
        ValueError: If the folder has runs of another series; names the settings that differ.
    """

    def __init__(
        self,
        path: Path | None,
        base: AlgorithmConfig,
        runs: Sequence[tuple[int, Mapping[str, Any]]],
        until: Mapping[str, float],
        *,
        checkpoint_seconds: float = 300.0,
        measure: Measure | None = None,
        schedule: Any = None,
        where: str,
    ):
        self.path, self.checkpoint_seconds, self.measure = path, checkpoint_seconds, measure
        self._names = distinct_names([run_name(seed, settings) for seed, settings in runs])
        if path is None:
            return
        # NaN is not above 0.
        if not (isinstance(checkpoint_seconds, int | float) and checkpoint_seconds > 0):
            raise ValueError(f"{where}(checkpoint_seconds={checkpoint_seconds!r}): must be above 0.")
        for name, off in (("keep_best", False), ("checkpoint_frequency", None)):
            if value := getattr(base, name):
                raise ValueError(
                    f"{where}: checkpoint_seconds={checkpoint_seconds!r} stores checkpoints of each run, and cannot "
                    f"be combined with reporting({name}={value!r}). Set config.reporting({name}={off})."
                )
        self._content = {
            "settings": as_json(base.to_dict()),
            "runs": [{"seed": seed, "settings": as_json(settings)} for seed, settings in runs],
            "until": as_json(until),
            **({} if schedule is None else {"scheduler": schedule_text(schedule)}),
        }
        self._check(where)

    def _check(self, where: str) -> None:
        assert self.path is not None
        stored = read_series(self.path)
        if stored is None or not has_progress(self.path):
            taken = next((name for name in self._names if folder_of(name, self.path).exists()), None)
            if taken is not None and stored != json.loads(json.dumps(self._content)):
                raise ValueError(
                    f"{where}: {folder_of(taken, self.path)} already contains a run of another call. Use another "
                    "results_dir."
                )
            return
        own, stored = (without_addresses(one) for one in (self._content, stored))
        differing = [
            f"{name}={value_text(stored['settings'].get(name))} (now {value_text(own['settings'].get(name))})"
            for name in settings_that_differ([stored["settings"], own["settings"]])
        ]
        differing += [
            f"{label}={value_text(stored.get(name))} (now {value_text(own.get(name))})"
            for name, label in (("runs", "seeds"), ("until", "until"), ("scheduler", "scheduler"))
            if stored.get(name) != own.get(name)
        ]
        if differing:
            raise ValueError(
                f"{where}: the runs in {self.path} were started with other values: {', '.join(differing)}. "
                f"Pass the values of the earlier call, or use another results_dir."
            )

    def run_folder(self, place: int) -> Path:
        """Folder with the files of one run."""
        assert self.path is not None
        return folder_of(self._names[place], self.path)

    def finished(self) -> dict[int, Run]:
        """Finished runs of the series (several runs with one goal): ``{index in the series: run}``."""
        return {} if self.path is None else {place: run for place, (run, _) in finished_runs(self.path).items()}

    def begun(self, places: Sequence[int]) -> list[int]:
        """Finds the first unfinished wave (runs trained together) that has a checkpoint, and returns the indices of its
        runs.

        Considers only waves that contain only runs in `places`. Returns [] without such a wave.
        """
        return next((wave["places"] for wave in self._saved_waves() if set(wave["places"]) <= set(places)), [])

    def _saved_waves(self) -> list[dict[str, Any]]:
        """Reads the unfinished waves (runs trained together) that have a checkpoint."""
        if self.path is None:
            return []
        unfinished = [wave for wave in _waves(self.path) if not wave["is_finished"]]
        return [wave for wave in unfinished if _checkpoint(self.path, wave["places"][0]).exists()]

    def check_kind(self, where: str, *, is_one_program: bool) -> None:
        """Raises ValueError if the runs are now trained one by one, but the folder has checkpoints of a population, or
        the reverse.

        Raises:
            ValueError: Names the former value of ``one_program``.
        """
        for wave in self._saved_waves():
            former = wave.get("is_one_program", len(wave["places"]) > 1)
            if former != is_one_program:
                raise ValueError(
                    f"{where}(one_program={is_one_program}): {self.path} has checkpoints of runs with "
                    f"one_program={former}. Pass one_program={former}, or use another results_dir."
                )

    def wave(self, places: Sequence[int], trained: Algorithm | Population, *, is_one_program: bool) -> Wave:
        """Starts or continues a `Wave`, and returns it: the runs at the indices `places`, which the algorithm or
        population `trained` trains together.

        If the folder has a checkpoint of these runs, `trained` restores it.
        """
        wave = Wave(self, list(places), trained, is_one_program=is_one_program)
        wave.begin()
        return wave

    def write_content(self) -> None:
        """Writes the description of the series (settings, runs and goal) to ``series.json``, unless the file already
        contains it.
        """
        assert self.path is not None
        if read_series(self.path) != json.loads(json.dumps(self._content)):
            write_json(self.path / SERIES_FILE, self._content)


class Wave:
    """Runs of a series that are trained together: the members of a population, or one run.

    Args:
        folder: Folder of the series.
        places: Indices of the runs in the series.
        trained: Algorithm or population that trains the runs.
        is_one_program: Whether `trained` is a population.

    Attributes:
        is_restored: Whether `trained` has restored a checkpoint.
        is_trained: Whether the runs of that checkpoint have reached the goal and only lack their scores.
    """

    def __init__(
        self, folder: SeriesFolder, places: list[int], trained: Algorithm | Population, *, is_one_program: bool
    ):
        self._folder, self._places, self._trained = folder, places, trained
        self._is_one_program = is_one_program
        self._saved_at = time.perf_counter()
        self.is_restored = self.is_trained = False

    def begin(self) -> None:
        """Starts or continues a wave (runs trained together).

        If the folder of the series has a checkpoint of the wave, restores the algorithm or population from it.
        Otherwise, writes the indices and folders of the wave's runs to a file in the folder of the series. Does nothing
        if the series has no folder.
        """
        if self._folder.path is None:
            return
        self._folder.write_content()
        checkpoint = self._checkpoint
        if checkpoint.exists() and self._file.exists():
            self._trained.restore_from_path(checkpoint)
            self.is_restored = True
            # A kill may have come between the note and the checkpoint at the goal.
            self.is_trained = _read_wave(self._file).get("trained_until") == self._trained.iteration
        else:
            self._note()

    def save_if_due(self, reason: str) -> None:
        """Saves a checkpoint of the wave (runs trained together) if it is due; call this after each iteration.

        The checkpoint is due in two cases: training continues and ``checkpoint_seconds`` have passed since the previous
        checkpoint or the start of the wave; or Ctrl-C ends training.

        Args:
            reason: Reason why training ends, in words. Empty if it continues.
        """
        is_due = not reason and time.perf_counter() - self._saved_at >= self._folder.checkpoint_seconds
        if self._folder.path is not None and (is_due or reason == CTRL_C):
            self._trained.save_to_path(self._checkpoint)
            self._saved_at = time.perf_counter()

    def finish(self, runs: Sequence[Run]) -> list[Run]:
        """Writes the files of runs that were trained together into the series' folder, stores their scores, and marks
        the runs as finished.

        A checkpoint is saved first, so a kill during scoring loses only the scores.

        Args:
            runs: The trained runs. If `is_trained`, their files are read instead.

        Returns:
            The runs with their folders.
        """
        folder = self._folder
        if folder.path is None:
            return list(runs)
        folders = [folder.run_folder(place) for place in self._places]
        if self.is_trained:
            own = [_read_run(folder.path, path.name, self._places[0]) for path in folders]
        else:
            own = [dataclasses.replace(run, folder=path) for run, path in zip(runs, folders, strict=True)]
            for run, path in zip(own, folders, strict=True):
                write_run(run, path)
        scores: list[float] = []
        if folder.measure is not None:
            if not self.is_trained:
                self._note(trained_until=self._trained.iteration)
                self._trained.save_to_path(self._checkpoint)
            scores = [float(score) for score in folder.measure(self._trained)]
        self._note(is_finished=True, scores=scores)
        shutil.rmtree(self._checkpoint, ignore_errors=True)
        return own

    @property
    def _checkpoint(self) -> Path:
        assert self._folder.path is not None
        return _checkpoint(self._folder.path, self._places[0])

    @property
    def _file(self) -> Path:
        return self._checkpoint.with_suffix(".json")

    def _note(
        self, *, trained_until: int | None = None, is_finished: bool = False, scores: Sequence[float] = ()
    ) -> None:
        content = {
            "places": self._places,
            "folders": [self._folder.run_folder(place).name for place in self._places],
            "is_one_program": self._is_one_program,
            "trained_until": trained_until,
            "is_finished": is_finished,
            "scores": list(scores),
        }
        write_json(self._file, content)


def schedule_text(schedule: Any) -> str:
    """Formats a scheduler's arguments as text, with the bounds of search spaces.

    When a series or search continues from its folder, this text is compared with the stored text.
    """
    given = {field.name: getattr(schedule, field.name) for field in dataclasses.fields(schedule)}
    return f"{type(schedule).__name__}({', '.join(f'{name}={argument_text(one)}' for name, one in given.items())})"


def argument_text(value: Any) -> str:
    """Formats a value as text. A Ray Tune search space becomes its distribution, its bounds and, if values are rounded,
    the step size q.
    """
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name}: {argument_text(one)}' for name, one in value.items())}}}"
    ends = getattr(value, "domain_str", None)
    if ends is None:
        return value_text(value, None)
    sampler = value.sampler
    quantum = getattr(sampler, "q", None)
    return f"{sampler}{ends}" if quantum is None else f"{sampler.sampler}{ends}, q={quantum!r}"


def without_addresses(content: Any) -> Any:
    """Removes memory addresses from texts in JSON content, such as ``<object at 0x7f...>``, because addresses differ
    between processes.
    """
    return json.loads(_ADDRESS.sub("", json.dumps(content)))


def write_json(path: Path, content: Any) -> None:
    """Writes `content` to a JSON file. Replaces an existing file atomically: readers never see a partial file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Several processes may write the same file at the same time.
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    draft.write_text(json.dumps(content, indent=2, allow_nan=True), encoding="utf-8")
    draft.replace(path)


def read_series(path: Path) -> dict[str, Any] | None:
    """Settings, runs and goal of the series (several runs with one goal) in a folder; None if the folder contains no
    series.
    """
    file = path / SERIES_FILE
    return _read_json(file, ("settings", "runs", "until"), "Choose another results_dir.") if file.exists() else None


def finished_runs(path: Path) -> dict[int, tuple[Run, float | None]]:
    """Reads the finished runs of the series (several runs with one goal) in a folder: ``{index: (run, score)}``. The
    score is None for runs without one.
    """
    found: dict[int, tuple[Run, float | None]] = {}
    for wave in _waves(path):
        if wave["is_finished"]:
            scores = wave["scores"] or [None] * len(wave["places"])
            for place, name, score in zip(wave["places"], wave["folders"], scores, strict=True):
                found[place] = _read_run(path, name, wave["places"][0]), score
    return dict(sorted(found.items()))


def has_progress(path: Path) -> bool:
    """Whether the series (several runs with one goal) in a folder has a finished run or a checkpoint. If not, another
    series may replace it.
    """
    return any(wave["is_finished"] or _checkpoint(path, wave["places"][0]).exists() for wave in _waves(path))


def _waves(path: Path) -> list[dict[str, Any]]:
    return [_read_wave(file) for file in sorted((path / STATE_FOLDER).glob("[0-9]*.json"))]


def _read_wave(file: Path) -> dict[str, Any]:
    remedy = (
        f"Delete {file} and {file.with_suffix('')}, and repeat the call that started the runs: it trains the runs of "
        "these files again."
    )
    return _read_json(file, ("places", "folders", "is_finished", "scores"), remedy)


def _read_json(file: Path, keys: Sequence[str], remedy: str) -> dict[str, Any]:
    """Reads a JSON object from a file. Raises an error if the file does not contain a JSON object with all the given
    keys.

    Raises:
        ValueError: The file is damaged; names it and the remedy.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is damaged: {error}. {remedy}") from error
    missing = [key for key in keys if not isinstance(content, dict) or key not in content]
    if missing:
        raise ValueError(f"{file} is damaged: it contains no JSON object with the key {missing[0]!r}. {remedy}")
    return content


def _read_run(path: Path, name: str, place: int) -> Run:
    """Reads a finished run of a series from its folder.

    Raises:
        ValueError: Its files are missing or damaged; names the remedy.
    """
    try:
        return Run.read(path / name)
    except (OSError, ValueError) as error:
        file = _checkpoint(path, place).with_suffix(".json")
        raise ValueError(
            f"{path / name} contains a finished run with missing or damaged files: {error} Restore the files from a "
            f"copy. Or delete {file} and repeat the call that started the runs: it trains all runs listed in this file "
            "again."
        ) from error


def _checkpoint(path: Path, place: int) -> Path:
    return path / STATE_FOLDER / f"{place:04d}"
