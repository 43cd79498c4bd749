"""All that a run writes: the files of its directory, and what trackers get."""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import logging.handlers
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxrl_stack.runs.history import RESULT_FILE, TABLE_FILE, TABLES, named_settings, numbers_of
from jaxrl_stack.runs.origin import ORIGIN_FILE, write_end, write_origin
from jaxrl_stack.runs.run import Run
from jaxrl_stack.runs.stop import StopReason
from jaxrl_stack.runs.trackers import RunInfo, Tracker, check_installed, start_trackers
from jaxrl_stack.runs.writers import CONFIG_FILE, ResultWriter, as_json
from jaxrl_stack.utils.interrupts import deferred_interrupt

LOG_FILE = "log.txt"
_LOGGER = logging.getLogger("jaxrl_stack")
_FORMAT = logging.Formatter("%(asctime)s %(levelname)s %(message)s")


class RunOutput:
    """Results as files, in trackers, and a log.

    Everything begins with the first result: what ends before it writes nothing.

    Args:
        algorithm: The algorithm's name.
        env: Name of its environment.
        config: Its settings, as ``config.to_dict()`` returns them.
        directory: Where to write `ResultWriter`'s files, ``run.json`` and ``log.txt``; None for nowhere. If a run has
            written there before, ``<directory>_2`` and so on.
        loggers: Name of a tracker -> its options.

    Attributes:
        directory: Where this run writes; None before the first result.

    Raises:
        ImportError: If the package of a tracker is absent.
    """

    def __init__(
        self,
        algorithm: str,
        env: str,
        config: Mapping[str, Any],
        directory: str | os.PathLike[str] | None = None,
        loggers: Mapping[str, Mapping[str, Any]] | None = None,
    ):
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
        """Add the result of an iteration, and values of the settings that were changed during the run."""
        if self._writer is None and self._asked_for is not None:
            with deferred_interrupt():
                self._open(self._asked_for)
        if self._writer is not None:
            self._writer.write(result, settings)
        if self._loggers:
            numbers = numbers_of(result) | named_settings(settings)
            values = {name: value for name, value in numbers.items() if math.isfinite(value)}
            step = int(result["num_env_steps_sampled_lifetime"])
            for tracker in self._started_trackers():
                tracker.log(values, step)

    def _open(self, asked_for: Path) -> None:
        directory = free_directory(asked_for)
        self._writer, self.directory = ResultWriter(directory, self._config), directory
        if not (directory / ORIGIN_FILE).exists():
            write_origin(directory, algorithm=self._algorithm)
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
        """Add a text to the log file, and to nothing else; there is none before the first result."""
        if self._log is not None and self.directory is not None:
            self._log.handle(logging.LogRecord("jaxrl_stack", logging.INFO, "", 0, text, None, None))

    def note_end(self, reason: StopReason, text: str) -> None:
        """Write down how a run has ended: why into ``run.json``, a text about it into the log file."""
        if self.directory is not None:
            write_end(self.directory, reason)
        self.log(text)

    def close(self) -> None:
        """Close the files, and end the runs in trackers. A result after it goes to a new run."""
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
    """Where a run may write: there, or, if a run has written there before, to ``<directory>_2`` and so on."""
    directory, number = asked_for, 1
    while any((directory / table).exists() for table in TABLES):
        number += 1
        directory = asked_for.with_name(f"{asked_for.name}_{number}")
    return directory


def write_run(run: Run, directory: Path) -> None:
    """Write what is known of a run, in the files that `Run.read` reads; those that are there are replaced.

    Args:
        run: The run.
        directory: Its folder, which is made.
    """
    directory.mkdir(parents=True, exist_ok=True)
    run.history.to_csv(directory / TABLE_FILE)
    run.history.to_json_lines(directory / RESULT_FILE)
    for name, content in ((CONFIG_FILE, run.settings), (ORIGIN_FILE, run.origin)):
        (directory / name).write_text(json.dumps(content, indent=2), encoding="utf-8")
