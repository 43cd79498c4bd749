"""Writers of a run's results to a directory."""

from __future__ import annotations

import csv
import inspect
import json
import math
import numbers
import os
import socket
import time
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl_stack.runs.history import RESULT_FILE, TABLE_FILE, named_settings, numbers_of
from jaxrl_stack.utils.fingerprints import FINGERPRINT
from jaxrl_stack.utils.interrupts import deferred_interrupt
from jaxrl_stack.utils.results import get_nested

CONFIG_FILE = "params.json"


class ResultWriter:
    """Writes the config of a run and the numbers of every iteration to files: JSON, CSV and TensorBoard events.

    * ``params.json``: the config. Values that JSON cannot express are text.
    * ``result.json``: one JSON object per line and iteration. Its config has only the changed settings. Infinities are
      null.
    * ``progress.csv``: one row per iteration, one column per number, ``"/"`` between the parts of a name. A number
      that only comes up later widens the table; it is empty in the rows before.
    * TensorBoard events: one scalar per finite number, without fingerprints; the step is
      ``num_env_steps_sampled_lifetime``.

    A number that has been NaN from the beginning is not written, because it does not apply to the run. Later NaN, such
    as a diverged loss, is "nan" in the table and null in JSON.

    After every `write`, all files are complete up to that iteration, so a crash loses no earlier results.

    Args:
        directory: Folder for the files; created if it does not exist.
        config: Result of ``config.to_dict()``.
        tensorboard: Whether to write TensorBoard events.

    Raises:
        FileExistsError: If there are results already.
    """

    def __init__(self, directory: str | os.PathLike[str], config: Mapping[str, Any], *, tensorboard: bool = True):
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._json = (self.directory / RESULT_FILE).open("x", encoding="utf-8")
        self._csv_file = (self.directory / TABLE_FILE).open("x", newline="", encoding="utf-8")
        params = json.dumps(as_json(config), indent=2, sort_keys=True)
        (self.directory / CONFIG_FILE).write_text(params, encoding="utf-8")
        self._known: set[str] = set()
        self._columns: list[str] | None = None
        self._csv = csv.writer(self._csv_file)
        self._events = _EventFile(self.directory) if tensorboard else None

    def write(self, result: Mapping[str, Any], settings: Mapping[str, float] = {}) -> None:
        """Adds the result of an iteration to all files of the writer.

        Args:
            result: Result of ``train()``.
            settings: Values of changed settings, written below "config".

        Raises:
            KeyError: If it has no ``num_env_steps_sampled_lifetime``.
        """
        step = int(get_nested(result, "num_env_steps_sampled_lifetime"))
        values = numbers_of(result) | named_settings(settings)
        self._known.update(name for name, value in values.items() if not math.isnan(value))
        unknown = values.keys() - self._known
        for name in unknown:
            del values[name]
        written = _without(unknown, {name: value for name, value in result.items() if name != "config"})
        if settings:
            written["config"] = dict(settings)
        line = f"{json.dumps(as_json(written), allow_nan=False)}\n"
        with deferred_interrupt():
            self._json.write(line)
            self._json.flush()
            self._write_row(values)
            if self._events is not None:
                self._events.write(step, curves_of(values))

    def _write_row(self, values: Mapping[str, Any]) -> None:
        if self._columns is None:
            self._columns = list(values)
            self._csv.writerow(self._columns)
        known = set(self._columns)
        new = [name for name in values if name not in known]
        if new:
            self._widen(new)
        self._csv.writerow([values.get(column, "") for column in self._columns])
        self._csv_file.flush()

    def _widen(self, new: list[str]) -> None:
        path = self.directory / TABLE_FILE
        draft = path.with_name(f".{path.name}.tmp")
        self._csv_file.close()
        with path.open(newline="", encoding="utf-8") as file:
            header, *rows = csv.reader(file)
        self._columns = [*header, *new]
        self._csv_file = draft.open("x", newline="", encoding="utf-8")
        self._csv = csv.writer(self._csv_file)
        self._csv.writerows([self._columns, *([*row, *[""] * len(new)] for row in rows)])
        self._csv_file.flush()
        draft.replace(path)

    def close(self) -> None:
        """Closes all files of the writer."""
        self._json.close()
        self._csv_file.close()
        if self._events is not None:
            self._events.close()

    def __enter__(self) -> ResultWriter:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()


class _EventFile:
    """TensorBoard event file that writes every event immediately.

    tensorboardX's SummaryWriter passes every scalar through a queue to a thread. Its `flush` may therefore run before
    the scalar is written, and then waits for the disk (3 ms). This class writes one record per step directly.
    """

    def __init__(self, directory: Path):
        # Takes a while to import, and only writing results needs it.
        # protobuf makes its classes while it is imported, where pyright does not see it.
        from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboardX.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboardX.record_writer import RecordWriter

        self._event, self._summary = Event, Summary
        now = time.time_ns()
        name = f"events.out.tfevents.{now // 10**9}.{socket.gethostname()}.{now}"
        self._records: Any = RecordWriter(str(directory / name))
        self._append(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Adds scalars to the TensorBoard event file, all at position `step` on the x-axis."""
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._append(self._event(wall_time=time.time(), step=step, summary=self._summary(value=values)))

    def _append(self, event: Any) -> None:
        self._records.write(event.SerializeToString())
        # Its own flush waits for the disk.
        self._records._writer.flush()

    def close(self) -> None:
        """Closes the TensorBoard event file."""
        self._records.close()


def curves_of(values: Mapping[str, float]) -> dict[str, float]:
    """Selects the metrics that experiment trackers draw as curves: finite numbers. Fingerprints (hashes) of the
    parameters are left out, because a curve of hashes means nothing.
    """
    prefix = f"{FINGERPRINT}/"
    return {name: value for name, value in values.items() if math.isfinite(value) and not name.startswith(prefix)}


def as_json(value: Any) -> Any:
    """Converts a value to plain JSON types: NaN and infinities become null, unknown objects become text."""
    if type(value) is float:
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (np.bool_, np.ndarray, jax.Array)):
        return as_json(np.asarray(value).tolist())
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): as_json(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    if inspect.isclass(value) or inspect.isroutine(value):
        # Its repr would hold an address that is another one in every run.
        return f"{value.__module__}.{value.__qualname__}"
    return repr(value)


def _without(paths: Set[str], tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Copies nested dicts, but omits the values at `paths`, and dicts that become empty. A path consists of keys that
    are joined by slashes, such as ``"learners/p0/loss"``.
    """
    kept = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            below = _without(paths, value, f"{prefix}{name}/")
            if below or not value:
                kept[name] = below
        elif f"{prefix}{name}" not in paths:
            kept[name] = value
    return kept
