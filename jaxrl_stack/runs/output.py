"""Output of a run: the files of its directory, and data for experiment trackers, such as Weights & Biases."""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import logging.handlers
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jaxrl_stack.runs.history import RESULT_FILE, TABLE_FILE, TABLES, named_settings, numbers_of
from jaxrl_stack.runs.origin import ORIGIN_FILE, add_to_origin, write_end, write_origin
from jaxrl_stack.runs.run import Run
from jaxrl_stack.runs.stop import StopReason
from jaxrl_stack.runs.trackers import RunInfo, Tracker, check_installed, start_trackers
from jaxrl_stack.runs.writers import CONFIG_FILE, ResultWriter, as_json, curves_of
from jaxrl_stack.utils.interrupts import deferred_interrupt

LOG_FILE = "log.txt"
_LOGGER = logging.getLogger("jaxrl_stack")
_FORMAT = logging.Formatter("%(asctime)s %(levelname)s %(message)s")


class RunOutput:
    """Writes the results of a run to files and experiment trackers, and log messages to ``log.txt``.

    Output begins with the first result: a run that ends before it writes nothing.

    Args:
        algorithm: Name of the algorithm.
        env: Name of the environment.
        config: Settings as ``config.to_dict()`` returns them.
        directory: Folder for `ResultWriter`'s files, ``run.json`` and ``log.txt``; None writes no files. If it contains
            another run, ``<directory>_2`` and so on is used.
        loggers: Name of a tracker -> its options.
        facts: Function that returns more facts for ``run.json``, called before the first result is written.

    Attributes:
        directory: Folder of this run; None before the first result.

    Raises:
        ImportError: If the package of a tracker is not installed.
    """

    def __init__(
        self,
        algorithm: str,
        env: str,
        config: Mapping[str, Any],
        directory: str | os.PathLike[str] | None = None,
        loggers: Mapping[str, Mapping[str, Any]] | None = None,
        facts: Callable[[], Mapping[str, Any]] = dict,
    ):
        self._facts = facts
        self._loggers = loggers or {}
        check_installed(self._loggers)
        self._algorithm, self._env, self._config = algorithm, env, config
        self._asked_for = None if directory is None else Path(directory)
        self.directory: Path | None = None
        self._writer: ResultWriter | None = None
        self._trackers: list[Tracker] | None = None
        self._log: logging.Handler | None = None
        if self._asked_for is not None:
            # Keeps what is logged before there is a file.
            self._log = logging.handlers.MemoryHandler(10_000, flushLevel=logging.CRITICAL + 1, flushOnClose=False)
            _LOGGER.addHandler(self._log)

    def write(self, result: Mapping[str, Any], settings: Mapping[str, float] = {}) -> None:
        """Writes an iteration's result, with the values of settings that changed during the run, to the run's files and
        to experiment trackers.
        """
        if self._writer is None and self._asked_for is not None:
            with deferred_interrupt():
                self._open(self._asked_for)
        if self._writer is not None:
            self._writer.write(result, settings)
        if self._loggers:
            values = curves_of(numbers_of(result) | named_settings(settings))
            step = int(result["num_env_steps_sampled_lifetime"])
            for tracker in self._started_trackers():
                tracker.log(values, step)

    def _open(self, asked_for: Path) -> None:
        # The program may change its working directory later.
        directory = Path(os.path.abspath(free_directory(asked_for)))
        self._writer, self.directory = ResultWriter(directory, self._config), directory
        if not (directory / ORIGIN_FILE).exists():
            write_origin(directory, algorithm=self._algorithm)
        add_to_origin(directory, self._facts())
        kept, self._log = self._log, logging.FileHandler(directory / LOG_FILE, encoding="utf-8")
        self._log.setFormatter(_FORMAT)
        _LOGGER.addHandler(self._log)
        if isinstance(kept, logging.handlers.MemoryHandler):
            _LOGGER.removeHandler(kept)
            kept.setTarget(self._log)
            kept.flush()

    def _started_trackers(self) -> list[Tracker]:
        if self._trackers is None:
            name = f"{self._algorithm} {self._env} {datetime.datetime.now():%Y-%m-%d %H:%M:%S}"
            directory = None if self.directory is None else str(self.directory)
            self._trackers = start_trackers(self._loggers, RunInfo(name, as_json(self._config), directory))
        return self._trackers

    def log(self, text: str) -> None:
        """Writes a text to the log file only. The first result creates this file; a text that is passed before the
        first result is dropped.
        """
        if self._log is not None and self.directory is not None:
            self._log.handle(logging.LogRecord("jaxrl_stack", logging.INFO, "", 0, text, None, None))

    def note_end(self, reason: StopReason, text: str) -> None:
        """Writes the reason why a run ended to ``run.json``, and a text about the end of the run to the log file."""
        if self.directory is not None:
            write_end(self.directory, reason)
        self.log(text)

    def close(self) -> None:
        """Closes the files, and ends the run in each experiment tracker. Later results go to a new folder
        and to a new run in each tracker.
        """
        with contextlib.ExitStack() as stack:
            for tracker in self._trackers or ():
                stack.callback(tracker.close)
            if self._writer is not None:
                stack.callback(self._writer.close)
            if self._log is not None:
                _LOGGER.removeHandler(self._log)
                stack.callback(self._log.close)
        self._writer = self._trackers = self._log = None


def free_directory(asked_for: Path) -> Path:
    """Finds a folder that contains no other run: `asked_for`, or ``<asked_for>_2`` and so on. Does not create it."""
    directory, number = asked_for, 1
    while any((directory / table).exists() for table in TABLES):
        number += 1
        directory = asked_for.with_name(f"{asked_for.name}_{number}")
    return directory


def new_directory(asked_for: Path) -> Path:
    """Creates a new folder and returns its absolute path: `asked_for`, or ``<asked_for>_2`` and so on if it exists."""
    directory, number = Path(os.path.abspath(asked_for)), 1
    while True:
        try:
            directory.mkdir(parents=True)
            return directory
        except FileExistsError:
            number += 1
            directory = directory.with_name(f"{asked_for.name}_{number}")


def write_run(run: Run, directory: Path) -> None:
    """Writes the metrics, settings and origin (command, versions, git commit) of a run to the files that `Run.read`
    reads; existing files are replaced.

    Args:
        run: The run.
        directory: Folder of the run, which is created.
    """
    directory.mkdir(parents=True, exist_ok=True)
    run.history.to_csv(directory / TABLE_FILE)
    run.history.to_json_lines(directory / RESULT_FILE)
    for name, content in ((CONFIG_FILE, run.settings), (ORIGIN_FILE, run.origin)):
        (directory / name).write_text(json.dumps(content, indent=2), encoding="utf-8")
