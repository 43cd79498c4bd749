"""Runs: read from their folders, described by their settings, and grouped."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrl_stack.runs.history import TABLES, History
from jaxrl_stack.runs.origin import how_it_ended, read_origin, run_origin
from jaxrl_stack.runs.writers import CONFIG_FILE, as_json

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm import Algorithm

# Settings in which runs of one group may differ: they say nothing about what is learned.
_NOT_COMPARED = {"seed", "log_level", "compilation_cache_dir", "results_dir", "keep_best", "loggers"}


DIVERGED = "diverged"
"""How the reason begins for which a run was stopped that was not finite any more."""


@dataclasses.dataclass(frozen=True)
class Run:
    """Facts and numbers of a run.

    Attributes:
        name: Its name, such as its folder.
        history: The table of its iterations.
        settings: Its config as plain values, what ``params.json`` holds; empty if that is not known.
        origin: Where it comes from, what ``run.json`` holds (see `run_origin`); empty if that is not known.
        folder: Where its files are; None if it has none.
    """

    name: str
    history: History
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    origin: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    folder: Path | None = None

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Run:
        """A run from its files.

        Args:
            path: Its folder, or a table; see `History.read`.

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
        """The run of an algorithm in this process, as far as it has come.

        Args:
            algorithm: It may go on training: its history is the run's.
            name: None for the name of its class.
            folder: Where its files are, if it has any.
        """
        kind = type(algorithm).__name__
        origin = {**run_origin(algorithm=kind), **how_it_ended(algorithm.stop_reason)}
        return cls(name or kind, algorithm.history, as_json(algorithm.config.to_dict()), origin, folder)

    @property
    def algorithm(self) -> str | None:
        """Its name, ``"PPO"``; None if nothing says it."""
        known = self.origin.get("algorithm")
        if isinstance(known, str):
            return known
        # This package and Tune call a folder by algorithm, environment, and what tells runs of these apart.
        env = re.sub(r"[^\w.-]+", "-", str(self.settings.get("env")))
        found = re.match(rf"(\w+)_{re.escape(env)}(_|$)", self.name)
        return found[1] if found else None

    @property
    def has_reached_goal(self) -> bool:
        """Whether it was stopped by what it was trained for, such as a return."""
        stopped = self.origin.get("stopped")
        return isinstance(stopped, Mapping) and stopped.get("is_goal") is True

    @property
    def has_diverged(self) -> bool:
        """Whether it was stopped because it was not finite any more."""
        stopped = self.origin.get("stopped")
        return isinstance(stopped, Mapping) and str(stopped.get("reason")).startswith(DIVERGED)

    @property
    def title(self) -> str:
        """``"PPO on CartPole-v1"`` as far as that is known, else its name."""
        env = self.settings.get("env")
        if not isinstance(env, str):
            return self.name
        return f"{self.algorithm} on {env}" if self.algorithm else env


Runs = str | os.PathLike[str] | Run | Sequence[str | os.PathLike[str] | Run]
"""Folders of runs or of many, and tables; or what has been read."""


def _settings(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(settings, dict):
        raise ValueError(f"{path} is not a JSON object.")
    return settings


def find_runs(paths: Sequence[str | os.PathLike[str]]) -> list[Run]:
    """The runs at some paths and below them.

    Args:
        paths: Folders of runs, tables (``progress.csv``, ``result.json``), and folders that hold runs at any depth,
            such as Tune's.

    Returns:
        In the order of the paths, and by name below each; every run once.

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
            raise FileNotFoundError(f"{one}: contains no run. The folder of a run has a {' or a '.join(TABLES)}.")
        found.update(dict.fromkeys(below))
    return [Run.read(path) for path in found]


def as_runs(runs: Runs) -> list[Run]:
    """The runs that have been read, and the ones at paths (see `find_runs`)."""
    several = [runs] if isinstance(runs, str | os.PathLike | Run) else runs
    paths = [one for one in several if not isinstance(one, Run)]
    return [*(one for one in several if isinstance(one, Run)), *find_runs(paths)]


def grouped(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs that differ in nothing but their seed, together.

    Args:
        runs: From `find_runs`.

    Returns:
        Label -> its runs. A label says what a group differs in from the others: the algorithm, the environment, and
        the settings that are not the same in all groups of these. One group alone is called by algorithm and
        environment; a run whose settings are not known is a group of its own, called by its name.
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
            label = ", ".join(filter(None, [titles[title], " ".join(parts)])) or title
            # Runs of the same name and unknown settings.
            number = 1 + sum(known == label or known.startswith(f"{label} (") for known in labelled)
            labelled[label if number == 1 else f"{label} ({number})"] = members
    return labelled


def common_title(runs: Sequence[Run]) -> str | None:
    """The words that labels of `grouped` leave out: algorithm and environment, if all runs have them in common; None if
    there is one group, whose label says it."""
    titles = {run.title for run in runs}
    return titles.pop() if len(titles) == 1 and len(_alike(runs)) > 1 else None


def _alike(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs with the same settings together, but for those that are not compared."""
    groups: dict[str, list[Run]] = {}
    for number, run in enumerate(runs):
        compared = {name: value for name, value in run.settings.items() if name not in _NOT_COMPARED}
        identity = json.dumps([run.algorithm, compared], sort_keys=True) if compared else f"run {number}"
        groups.setdefault(identity, []).append(run)
    return list(groups.values())


def _short_titles(firsts: Sequence[Run]) -> dict[str, str]:
    """Title -> what of it differs from the other titles; nothing if there is one, of several groups."""
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
    """Settings with the entries of dicts one by one: ``model_config.fcnet_hiddens``."""
    entries: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping) and value and name not in _NOT_COMPARED:
            entries.update({f"{name}.{inner}": one for inner, one in _entries(value).items()})
        else:
            entries[name] = value
    return entries


def _names_of(paths: Sequence[str]) -> dict[str, str]:
    """Path of an entry -> its last part where that is no other one's, too."""
    last = [path.rpartition(".")[2] for path in paths]
    return {path: name if last.count(name) == 1 else path for path, name in zip(paths, last, strict=True)}


def settings_that_differ(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of the settings that are not the same in all configs; seeds and places of files do not count.

    Args:
        settings: Configs as plain values, as in `Run.settings`.
    """
    names = sorted({name for one in settings for name in one} - _NOT_COMPARED)
    differing = [name for name in names if len({json.dumps(one.get(name), sort_keys=True) for one in settings}) > 1]
    # A config holds some settings twice: as they were set, and as RLlib calls them.
    return [name for name in differing if not (name.startswith("_") and name[1:] in differing)]


def run_name(seed: int, settings: Mapping[str, Any]) -> str:
    """Name of one of several runs: ``"lr=0.001 seed=3"``; without settings of its own ``"seed 3"``."""
    if not settings:
        return f"seed {seed}"
    return " ".join([*(f"{name}={value_text(value)}" for name, value in settings.items()), f"seed={seed}"])


def folder_of(name: str, directory: str | os.PathLike[str]) -> Path:
    """The folder of a run of this `run_name` below the folder of all: ``<directory>/lr=0.001_seed=3``."""
    return Path(directory, re.sub(r"[^\w.=+-]+", "_", name))


def distinct_names(names: Sequence[str]) -> list[str]:
    """Names with different folders: where folders would be the same, a name ends with its place.

    Names cut long values, so settings that differ may have the same name.
    """
    folders = [folder_of(name, "") for name in names]
    shared = {folder for folder, count in Counter(folders).items() if count > 1}
    return [
        f"{name} {i}" if folder in shared else name for i, (name, folder) in enumerate(zip(names, folders, strict=True))
    ]


def value_text(value: Any, max_length: int | None = 40) -> str:
    """A setting's value in a label: JSON, cut off where it is longer than that."""
    # JSON has no infinity.
    plain = repr(value) if isinstance(value, float) else as_json(value)
    text = plain if isinstance(plain, str) else json.dumps(plain)
    return text if max_length is None or len(text) <= max_length else f"{text[: max_length - 1]}…"
