"""Runs, read from their folders: results, names that state the settings, and groups of runs that differ only in the
seed.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrl_stack.runs.history import TABLES, History
from jaxrl_stack.runs.origin import PARENT, how_it_ended, read_origin, run_origin
from jaxrl_stack.runs.stored_checkpoints import WITHOUT_FOLDER
from jaxrl_stack.runs.writers import CONFIG_FILE, as_json

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm import Algorithm
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.rewind.inspection import Inspection

# Settings in which runs of one group may differ: they say nothing about what is learned.
_NOT_COMPARED = {"seed", "log_level", "compilation_cache_dir", "loggers", *WITHOUT_FOLDER}


DIVERGED = "diverged"
"""First word of the reason why a run ended, if its numbers became NaN or infinite."""


@dataclasses.dataclass(frozen=True)
class Run:
    """Results, settings and facts of a run, read from its folder.

    Attributes:
        name: Name of the run, such as its folder.
        history: Table of its iterations.
        settings: Config as plain values, the content of ``params.json``; empty if unknown.
        origin: Origin of the run, the content of ``run.json`` (see `run_origin`); empty if unknown.
        folder: Folder of its files; None without files.
    """

    name: str
    history: History
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    origin: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    folder: Path | None = None

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Run:
        """Reads a run from its files.

        Args:
            path: Folder of the run, or a table; see `History.read`.

        Raises:
            FileNotFoundError: If there is none.
            ValueError: If a file is damaged.
        """
        found = Path(path)
        history = History.read(found)
        folder = found if found.is_dir() else found.parent
        # A table with a name of its own is called by that: there may be several in a folder.
        name = folder.absolute().name if found.is_dir() or found.name in TABLES else found.stem
        return cls(name, history, _settings(folder / CONFIG_FILE), read_origin(folder), folder)

    @classmethod
    def of(cls, algorithm: Algorithm, name: str | None = None, folder: Path | None = None) -> Run:
        """Creates a `Run` from an `Algorithm` object in this process, with the results so far.

        Args:
            algorithm: The algorithm; its history is the run's, also if it continues to train.
            name: Name of the run; None for the name of the algorithm's class.
            folder: Folder of its files, or None.
        """
        kind = type(algorithm).__name__
        origin = {**run_origin(algorithm=kind), **how_it_ended(algorithm.stop_reason)}
        return cls(name or kind, algorithm.history, as_json(algorithm.config.to_dict()), origin, folder)

    def at(
        self,
        iteration: int,
        *,
        config: AlgorithmConfig | None = None,
        allow: Iterable[Any] = (),
        evaluations: bool = False,
    ) -> Algorithm:
        """Recomputes the training state after an iteration, bit for bit. Returns an algorithm with this state.

        The recomputation begins with the nearest stored checkpoint at or before the iteration, or with the config, and
        repeats the iterations since. Nothing is written to the run's folder; the returned algorithm has no folder.

        Args:
            iteration: Number of finished iterations; 0 is the state before the first one.
            config: Config of the run, if it contains code that checkpoints lack, such as lambdas; None for the stored
                config. Numbers and texts must equal the stored ones.
            allow: Classes and functions of yours that the checkpoints name; see `Algorithm.from_checkpoint`.
            evaluations: Also repeat evaluations. They do not change the training state, so they are skipped, unless
                callbacks can read their results or the config has a ``custom_evaluation_function``.

        Returns:
            The algorithm. Commands that followed the iteration, such as `change_settings`, are not applied to it,
            unless a stored checkpoint of the iteration contains them.

        Raises:
            NotRecomputableError: If the iteration never happened, there is nothing to begin with, or a recorded call
                cannot be repeated. It is a ValueError.
            ValueError: If a file of the run has changed.
        """
        # By name: that package imports algorithms, which import this module.
        replay = importlib.import_module("jaxrl_stack.rewind.replay")
        return replay.recomputed(self, iteration, config=config, allow=allow, evaluations=evaluations).trained

    def inspect(
        self, iteration: int, *, num_rows: int = 20, config: AlgorithmConfig | None = None, allow: Iterable[Any] = ()
    ) -> Inspection:
        """Recomputes an iteration of the run, bit for bit, and returns an `Inspection` of this iteration.

        The `Inspection` contains the iteration's minibatches and episodes, and the rows (samples) of each minibatch
        that have the largest losses.

        Args:
            iteration: Number of the iteration, from 1.
            num_rows: Number of rows with large losses that each minibatch records.
            config, allow: See `at`.

        Raises:
            NotRecomputableError: See `at`.
            ValueError: If learners or environments are in actors, or a file of the run has changed.
        """
        # By name, as in `at`.
        inspection = importlib.import_module("jaxrl_stack.rewind.inspection")
        return inspection.inspect_run(self, iteration, num_rows=num_rows, config=config, allow=allow)

    @property
    def algorithm(self) -> str | None:
        """Name of the algorithm, such as ``"PPO"``; None if unknown."""
        known = self.origin.get("algorithm")
        if isinstance(known, str):
            return known
        # This package and Tune call a folder by algorithm, environment, and what tells runs of these apart.
        env = re.sub(r"[^\w.-]+", "-", str(self.settings.get("env")))
        found = re.match(rf"(\w+)_{re.escape(env)}(_|$)", self.name)
        return found[1] if found else None

    @property
    def has_reached_goal(self) -> bool:
        """Whether the run ended because it reached its goal, such as a return."""
        stopped = self.origin.get("stopped")
        return isinstance(stopped, Mapping) and stopped.get("is_goal") is True

    @property
    def has_diverged(self) -> bool:
        """Whether the run ended because of NaN or infinite numbers."""
        stopped = self.origin.get("stopped")
        return isinstance(stopped, Mapping) and str(stopped.get("reason")).startswith(DIVERGED)

    @property
    def title(self) -> str:
        """Algorithm and environment, such as ``"PPO on CartPole-v1"``. If the algorithm is unknown, only the
        environment; if the environment is unknown, the run's name.
        """
        env = self.settings.get("env")
        if not isinstance(env, str):
            return self.name
        return f"{self.algorithm} on {env}" if self.algorithm else env


Runs = str | os.PathLike[str] | Run | Sequence[str | os.PathLike[str] | Run]
"""Folders that contain runs, files with the table of a run, or `Run` objects; one or several."""


def _settings(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"{path} is not JSON ({error}). Restore the file, or delete it to read the run without settings."
        ) from error
    if not isinstance(settings, dict):
        raise ValueError(
            f"{path} does not contain a JSON object. Restore the file, or delete it to read the run without settings."
        )
    return settings


def find_runs(paths: Sequence[str | os.PathLike[str]]) -> list[Run]:
    """Finds the runs at the given paths and in folders below them.

    Args:
        paths: Folders of runs, tables (``progress.csv``, ``result.json``), and folders that contain runs at any depth,
            such as Tune's.

    Returns:
        Runs in the order of the paths, and by name below each path; every run once.

    Raises:
        FileNotFoundError: If there is no run at one of the paths.
    """
    found: dict[Path, None] = {}
    for one in map(Path, paths):
        if one.is_file():
            below = [one]
        else:
            tables = sorted(table for name in TABLES for table in one.rglob(name))
            below = sorted(dict.fromkeys(table.parent for table in tables))
        if not below:
            raise FileNotFoundError(
                f"{one} contains no run. Pass a folder that contains {' or '.join(TABLES)}, at any depth."
            )
        found.update(dict.fromkeys(below))
    return [Run.read(path) for path in found]


def as_runs(runs: Runs) -> list[Run]:
    """Converts arguments to `Run` objects: reads the runs at paths (see `find_runs`), and returns `Run` objects
    unchanged.
    """
    several = [runs] if isinstance(runs, str | os.PathLike | Run) else runs
    paths = [one for one in several if not isinstance(one, Run)]
    return [*(one for one in several if isinstance(one, Run)), *find_runs(paths)]


def grouped(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Groups of runs that differ only in their seed.

    A fork (a run that continues another run) is grouped only with forks that begin at the same iteration.

    Args:
        runs: From `find_runs`.

    Returns:
        Label -> its runs. A label contains the differences between groups: the algorithm, the environment, and the
        settings that differ between groups with these. The label of a single group is algorithm and environment. A run
        without known settings is a separate group with its name as label.
    """
    groups = _alike(runs)
    titles = _short_titles([members[0] for members in groups])
    by_title: dict[str, list[list[Run]]] = {}
    for members in groups:
        by_title.setdefault(members[0].title, []).append(members)
    labelled: dict[str, list[Run]] = {}
    for title, alike in by_title.items():
        settings = [_entries(members[0].settings) for members in alike]
        differing = _names_of(settings_that_differ(settings))
        for members, own in zip(alike, settings, strict=True):
            parts = [f"{name}={value_text(own[path])}" for path, name in differing.items() if path in own]
            forked_at = _forked_at(members[0])
            if forked_at is not None and len(alike) > 1:
                parts.append(f"from iteration {forked_at}")
            label = ", ".join(filter(None, [titles[title], " ".join(parts)])) or title
            # Runs of the same name and unknown settings.
            number = 1 + sum(known == label or known.startswith(f"{label} (") for known in labelled)
            labelled[label if number == 1 else f"{label} ({number})"] = members
    return labelled


def common_title(runs: Sequence[Run]) -> str | None:
    """Title of a figure: the algorithm and environment that all runs have in common, such as "PPO on CartPole-v1".

    The labels of the curves then omit the algorithm and environment. Returns None in two cases: the runs differ in
    algorithm or environment, or all runs form one group (they differ only in their seed), whose label contains the
    algorithm and environment.
    """
    titles = {run.title for run in runs}
    return titles.pop() if len(titles) == 1 and len(_alike(runs)) > 1 else None


def _alike(runs: Sequence[Run]) -> list[list[Run]]:
    """Groups runs with equal settings, ignoring seeds, paths and other settings that do not affect training.

    A fork (a run that continues another run) is grouped only with forks that begin at the same iteration.
    """
    groups: dict[str, list[Run]] = {}
    for number, run in enumerate(runs):
        compared = {name: value for name, value in run.settings.items() if name not in _NOT_COMPARED}
        known = [run.algorithm, compared, _forked_at(run)]
        identity = json.dumps(known, sort_keys=True) if compared else f"run {number}"
        groups.setdefault(identity, []).append(run)
    return list(groups.values())


def _forked_at(run: Run) -> int | None:
    """Iteration of the parent run after which a fork (a run that continues another run) begins; None for a run that is
    not a fork.
    """
    parent = run.origin.get(PARENT)
    return parent.get("iteration") if isinstance(parent, Mapping) else None


def _short_titles(firsts: Sequence[Run]) -> dict[str, str]:
    """Maps each title, such as "PPO on CartPole-v1", to a short form that is still distinct.

    If all environments are equal, the short form is the algorithm; if all algorithms are equal, the environment.
    Otherwise, or if an algorithm or environment is unknown, the short form is the whole title. If all groups of runs
    have the same title, the short form is ""; a single group keeps its title.

    Args:
        firsts: First run of each group.
    """
    titles = dict.fromkeys(run.title for run in firsts)
    if len(titles) == 1:
        return dict.fromkeys(titles, "" if len(firsts) > 1 else firsts[0].title)
    algorithms = {run.title: run.algorithm for run in firsts}
    envs = {run.title: run.settings.get("env") for run in firsts}
    for same, told_apart in ((envs, algorithms), (algorithms, envs)):
        is_known = all(isinstance(name, str) for name in (*same.values(), *told_apart.values()))
        if is_known and len(set(same.values())) == 1:
            return {title: str(name) for title, name in told_apart.items()}
    return {title: title for title in titles}


def _entries(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Replaces settings that are dicts by their entries, with names such as ``model_config.fcnet_hiddens``."""
    entries: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping) and value and name not in _NOT_COMPARED:
            entries.update({f"{name}.{inner}": one for inner, one in _entries(value).items()})
        else:
            entries[name] = value
    return entries


def _names_of(paths: Sequence[str]) -> dict[str, str]:
    """Shortens dotted paths of settings, such as ``model_config.fcnet_hiddens``, to their last part where it is unique:
    ``{path: short name}``.
    """
    last = [path.rpartition(".")[2] for path in paths]
    return {path: name if last.count(name) == 1 else path for path, name in zip(paths, last, strict=True)}


def settings_that_differ(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of settings that differ between configs. Ignores the seed, and the settings of logging, folders and
    checkpoints.

    Args:
        settings: Configs as plain values, see `Run.settings`.
    """
    names = sorted({name for one in settings for name in one} - _NOT_COMPARED)
    differing = [name for name in names if len({json.dumps(one.get(name), sort_keys=True) for one in settings}) > 1]
    # A config holds some settings twice: as they were set, and as RLlib calls them.
    return [name for name in differing if not (name.startswith("_") and name[1:] in differing)]


def run_name(seed: int, settings: Mapping[str, Any]) -> str:
    """Name of one of several runs: ``"lr=0.001 seed=3"``, or ``"seed 3"`` if `settings` is empty."""
    if not settings:
        return f"seed {seed}"
    return " ".join([*(f"{name}={value_text(value)}" for name, value in settings.items()), f"seed={seed}"])


def folder_of(name: str, directory: str | os.PathLike[str]) -> Path:
    """Folder of a run with this `run_name`: ``<directory>/lr=0.001_seed=3``."""
    return Path(directory, re.sub(r"[^\w.=+-]+", "_", name))


def distinct_names(names: Sequence[str]) -> list[str]:
    """Returns run names that give distinct folders.

    If several of the given names would have the same folder, appends to each of these names its index in `names`; other
    names are unchanged.

    Names truncate long values, so different settings may have the same name.
    """
    folders = [folder_of(name, "") for name in names]
    shared = {folder for folder, count in Counter(folders).items() if count > 1}
    return [
        f"{name} {i}" if folder in shared else name for i, (name, folder) in enumerate(zip(names, folders, strict=True))
    ]


def value_text(value: Any, max_length: int | None = 40) -> str:
    """A setting's value in a label: JSON, truncated to a maximum length."""
    # JSON has no infinity.
    plain = repr(value) if isinstance(value, float) else as_json(value)
    text = plain if isinstance(plain, str) else json.dumps(plain)
    return text if max_length is None or len(text) <= max_length else f"{text[: max_length - 1]}…"
