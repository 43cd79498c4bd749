"""Table of a run: a row for each iteration, a column for each reported number."""

from __future__ import annotations

import array
import contextlib
import csv
import dataclasses
import json
import math
import numbers
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, Unpack

import jax
import numpy as np

from jaxrl_stack.runs.agent_returns import SUM, columns_of_agents
from jaxrl_stack.runs.axes import AxisOptions
from jaxrl_stack.runs.curves import RETURN, STEPS, Curve, aggregated, axis_label, key_label, x_axis
from jaxrl_stack.runs.packed_rows import BLOCK_ROWS, packed, unpacked
from jaxrl_stack.runs.terminal import sparkline
from jaxrl_stack.utils.interrupts import deferred_interrupt
from jaxrl_stack.utils.optional_packages import optional_import
from jaxrl_stack.utils.results import NOT_NUMBERS, get_nested

TABLE_FILE, RESULT_FILE = "progress.csv", "result.json"
SETTINGS = "config/"
"""Prefix of the columns with values of settings."""
TABLES = (TABLE_FILE, RESULT_FILE)
"""Files that contain the table of a run, in the order of preference for reading."""


class History:
    """Table of a run's metrics with a row for each iteration; the type of ``algo.history``.

    Columns have the names of results, with ``"/"`` between the parts, in the order in which they were first reported.
    All values are float64, and NaN for iterations that did not report the number. A number that was never reported has
    no column.

    Memory is 8 bytes per cell, and up to a sixteenth more for growth: 10,000 iterations of 100 numbers take 8 to 9 MB.
    """

    def __init__(self) -> None:
        self._num_rows = 0
        self._cells: dict[str, array.array[float]] = {}
        # Of the names in it, those that were a number once.
        self._known: set[str] = set()
        # Whole blocks of rows, packed, and how many columns there were: they do not change any more.
        self._packed: list[tuple[np.ndarray, int]] = []

    def append(self, result: Mapping[str, Any], settings: Mapping[str, float] = {}) -> None:
        """Adds the result of an iteration to the table, as a new row.

        Args:
            result: Result of ``train()``: nested dicts. Python numbers and arrays of shape ``()`` become cells; bools,
                text, larger arrays and the config do not.
            settings: Values of changed settings at the beginning of the iteration, for columns such as ``"config/lr"``.
        """
        row = numbers_of(result) | named_settings(settings)
        with deferred_interrupt():
            for name in row:
                if name not in self._cells:
                    self._cells[name] = array.array("d", [math.nan]) * self._num_rows
            for name, column in self._cells.items():
                column.append(row.get(name, math.nan))
            self._known.update(name for name, value in row.items() if not math.isnan(value))
            self._num_rows += 1

    def add_setting(self, name: str, value_at: Callable[[int], float]) -> None:
        """Adds a column to the table: the value of a setting at the start of each iteration so far.

        Args:
            name: The setting.
            value_at: Function from a number of env steps to the setting's value.
        """
        steps = self._cells.get(x_axis(STEPS), array.array("d", [0.0]) * self._num_rows)
        at_start = [0.0, *steps[:-1]][: self._num_rows]
        values = [value_at(0 if math.isnan(num_steps) else int(num_steps)) for num_steps in at_start]
        self._add_column(f"{SETTINGS}{name}", values)

    def _add_column(self, name: str, values: Sequence[float]) -> None:
        self._cells[name] = array.array("d", values)
        if values:
            self._known.add(name)
        # Blocks that are packed already do not have it.
        self._packed = []

    def __len__(self) -> int:
        """Number of iterations in the table."""
        return self._num_rows

    @property
    def columns(self) -> list[str]:
        """Names of all numbers that at least one iteration reported."""
        return [name for name in self._cells if name in self._known]

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def has_number(self, name: str) -> bool:
        """Whether at least one iteration has a finite number in a column."""
        return name in self and bool(np.isfinite(self[name]).any())

    def __iter__(self) -> Iterator[str]:
        """Iterates over the names of the table's columns, as a dict iterates over its keys."""
        return iter(self.columns)

    def __getitem__(self, name: str) -> np.ndarray:
        """Returns a copy of a column of the table, one number per iteration.

        Args:
            name: Name of the column, such as ``"env_runners/episode_return_mean"``.

        Returns:
            A copy, ``float64[iterations]``; NaN for iterations that did not report the number.

        Raises:
            KeyError: If no iteration reported it; the message names similar columns.
        """
        if not self._num_rows:
            raise KeyError(
                f"The history has no column {name!r} before the first train(). Call train(); then the mean return is "
                f"history[{RETURN!r}]."
            )
        if name not in self:
            get_nested(dict.fromkeys(self.columns), (name,))  # raises, with the names that are near
        return np.array(self._cells[name])

    def cell(self, name: str, row: int) -> float:
        """Returns the value of a metric in one iteration; NaN if the iteration did not report it.

        Args:
            name: Name of the column.
            row: Row of the iteration, from 0.
        """
        return self._cells[name][row] if name in self._cells else math.nan

    @property
    def last(self) -> dict[str, float]:
        """Metrics of the last iteration; empty before the first."""
        last = {name: self._cells[name][-1] for name in self.columns}
        return {name: value for name, value in last.items() if not math.isnan(value)}

    def _table(self) -> np.ndarray:
        """A copy of the table, ``float64[iterations, columns]``."""
        columns = self.columns
        return np.array([self._cells[name] for name in columns]).reshape(len(columns), self._num_rows).T

    def to_pandas(self) -> Any:
        """The table as a ``pandas.DataFrame``, one row for each iteration.

        Raises:
            ImportError: Without pandas.
        """
        pandas = optional_import("pandas", purpose="History.to_pandas", install="pandas")
        return pandas.DataFrame(self._table(), columns=self.columns)

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Writes the table to a file; cells without a number are empty.

        Args:
            path: File to write; an existing file is replaced.
        """
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(self.columns)
            writer.writerows(map(_cell, row) for row in self._table().tolist())

    def to_json_lines(self, path: str | os.PathLike[str]) -> None:
        """Writes the table to a file of JSON lines, one nested JSON object per iteration, similar to the
        ``result.json`` of a run.

        Args:
            path: File to write; an existing file is replaced. Cells without a number are left out, infinities are null.
        """
        places = [name.split("/") for name in self.columns]
        with open(path, "w", encoding="utf-8") as file:
            for row in self._table().tolist():
                result: dict[str, Any] = {}
                for (*parents, name), value in zip(places, row, strict=True):
                    if not math.isnan(value):
                        part = result
                        for parent in parents:
                            part = part.setdefault(parent, {})
                        part[name] = _cell(value) if math.isfinite(value) else None
                file.write(f"{json.dumps(result)}\n")

    # -------------------------------------------------------------------------------------------------------- looking

    def curve(self, key: str = RETURN, x: str = STEPS) -> Curve:
        """Creates the curve of one column over another one, at the iterations that have both numbers.

        Args:
            key: The column.
            x: "steps", "seconds", "iterations", or the name of a column.

        Raises:
            KeyError: If there is no such column.
        """
        return Curve.of(self[x_axis(x)], self[key])

    def plot(
        self,
        key: str | Sequence[str] = RETURN,
        x: str = STEPS,
        path: str | os.PathLike[str] | None = None,
        ax: Any = None,
        title: str | None = None,
        label: str | None = None,
        **options: Unpack[AxisOptions],
    ) -> Any:
        """Draws one or several columns of the run's table, such as the returns of each policy, as curves over env steps
        or another x axis.

        The mean return of several agents has a line for each agent, or for each policy if there are more than 8 agents,
        and a thin line for the sum.

        Args:
            key, x: See `curve`. Several keys become curves of one figure, with the common part of their names at the y
                axis.
            path: File to write, a ``.png``, ``.svg`` or ``.pdf``; None writes none.
            ax: matplotlib axes to draw into; None for a new figure.
            title: Title of the figure.
            label: Name of the curve in the legend, for a single key; curves of agents are then left out. None for the
                column's name.
            **options: ``ylim=(low, high)``, ``xscale``, ``yscale``: see `AxisOptions`.

        Returns:
            The figure, which notebooks display.

        Raises:
            ImportError: Without matplotlib: ``pip install 'jaxrl-stack[plots]'``.
            KeyError: If there is no such column.
            TypeError: If there is no such option.
            ValueError: If there are no numbers to draw, `path` has another ending, or an option is invalid.
        """
        from jaxrl_stack.runs.figures import draw

        keys = [key] if isinstance(key, str) else list(key)
        # Of "…_mean/p0" and "…_mean/p1" the ends differ, which tell the curves apart.
        shared = keys[0] if len(keys) == 1 else os.path.commonpath(keys)
        names = [key if key == shared else key.removeprefix(f"{shared}/") for key in keys]
        if label is not None and len(keys) == 1:
            names = [label]
        bands = [aggregated([self.curve(key, x)], name) for key, name in zip(keys, names, strict=True)]
        parts = columns_of_agents(self.columns, shared) if len(keys) == 1 and label is None else {}
        if parts:
            own = [aggregated([self.curve(column, x)], name) for name, column in parts.items()]
            bands = [*own, dataclasses.replace(bands[0], label=SUM, is_thin=True)]
        y_label = key_label(shared) if shared else ""
        return draw(bands, x_label=axis_label(x), y_label=y_label, title=title, path=path, ax=ax, **options)

    def sparkline(self, key: str = RETURN, width: int = 40) -> str:
        """Draws a column as one line of small bars: ``▁▂▃▅▇█``, with blanks for unknown numbers.

        Args:
            key: The column.
            width: Maximum number of characters.

        Raises:
            KeyError: If there is no such column.
        """
        return sparkline(self[key], width)

    # -------------------------------------------------------------------------------------------------------- storage

    def get_state(self) -> dict[str, Any]:
        """Returns the state for checkpoints: all cells of the table, compressed without loss to about a seventh of
        their size in memory.

        Returns:
            "columns": names; "num_rows": number of iterations; "blocks": list of uint8 ``[bytes]``, see `packed_rows`;
            "widths": number of columns in each block.
        """
        blocks = list(self._packed)
        for start in range(len(blocks) * BLOCK_ROWS, self._num_rows, BLOCK_ROWS):
            cells = [column[start : start + BLOCK_ROWS] for column in self._cells.values()]
            size = min(BLOCK_ROWS, self._num_rows - start)
            blocks.append((packed(np.array(cells, np.float64).reshape(len(cells), size)), len(cells)))
        self._packed = blocks[: self._num_rows // BLOCK_ROWS]
        return {
            "columns": list(self._cells),
            "num_rows": self._num_rows,
            "blocks": [block for block, _ in blocks],
            "widths": [width for _, width in blocks],
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores the table from a state that `get_state` returned, or from a dict ``{"columns": names, "cells":
        [iterations, columns]}``.

        Raises:
            ValueError: If the number of names differs from the number of columns, or the state is damaged.
        """
        columns = list(state["columns"])
        if "cells" in state:  # of files, and of checkpoints of before cells were packed
            cells = np.array(state["cells"], np.float64)
            table, blocks = cells.T, []
        else:
            widths, num_rows = [int(width) for width in state["widths"]], int(state["num_rows"])
            table = unpacked(state["blocks"], widths, len(columns), num_rows)
            blocks = list(zip(map(np.asarray, state["blocks"]), widths, strict=True))
        if table.ndim != 2 or len(table) != len(columns) or len(set(columns)) != len(columns):
            raise ValueError(
                f"The metrics history is damaged: a table of shape (iterations, columns) = {table.shape[::-1]} has "
                f"{len(columns)} column names, but needs a distinct name for each column. Load an unchanged copy of "
                "the checkpoint."
            )
        self._num_rows = table.shape[1]
        self._cells = {name: array.array("d", column.tobytes()) for name, column in zip(columns, table, strict=True)}
        self._known = {name for name, column in zip(columns, table, strict=True) if not np.isnan(column).all()}
        self._packed = blocks[: self._num_rows // BLOCK_ROWS]

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Reads the history of a run (table of metrics by iteration) from its files.

        Args:
            path: A ``progress.csv`` or ``result.json`` of this package, RLlib or Tune, or a folder that contains one.

        Raises:
            FileNotFoundError: If there is none.
            ValueError: If a file is none of these.
        """
        found = Path(path)
        if found.is_dir():
            files = [found / name for name in TABLES if (found / name).is_file()]
            if not files:
                raise FileNotFoundError(
                    f"{found} is not the folder of a run: it has neither {' nor '.join(TABLES)}. Pass a folder that "
                    f"contains one of these files."
                )
            found = files[0]
        if found.suffix not in (".csv", ".json"):
            raise ValueError(
                f"{found} is not a file with the results of a run. Pass the folder of a run, or its "
                f"{' or '.join(TABLES)}."
            )
        with found.open(newline="", encoding="utf-8") as file:
            try:
                return cls._of_csv(file) if found.suffix == ".csv" else cls._of_json(file)
            except (ValueError, csv.Error) as error:
                raise ValueError(
                    f"{found} is not a file with the results of a run, or is damaged ({error}). Restore the file from "
                    "a copy, or pass the folder of another run."
                ) from error

    @classmethod
    def _of_csv(cls, file: Iterable[str]) -> Self:
        header, *rows = [*csv.reader(file)] or [[]]
        # A run that is writing, or was killed at it, leaves a row that is not complete.
        by_column = zip(*(row for row in rows if len(row) == len(header)), strict=True)
        columns = {}
        for name, texts in zip(header, by_column, strict=False):
            # Of the config, which RLlib and Tune write in every row, the history has what has changed.
            if name not in NOT_NUMBERS and not (name.startswith(SETTINGS) and len(set(texts)) == 1):
                with contextlib.suppress(ValueError):  # text
                    columns[name] = [float(text) if text else math.nan for text in texts]
        if header and rows and not columns:
            raise ValueError("no column of the table contains numbers")
        history = cls()
        if columns:
            history.set_state({"columns": list(columns), "cells": np.array(list(columns.values())).T})
        return history

    @classmethod
    def _of_json(cls, file: Iterable[str]) -> Self:
        history = cls()
        lines = [line for line in file if line.strip()]
        # Of the config, which Tune writes in every line, the history has what has changed: (row, value) by name.
        settings: dict[str, list[tuple[int, float]]] = {}
        for number, line in enumerate(lines, start=1):
            try:
                result = json.loads(line)
            except ValueError:
                if number < len(lines):
                    raise
                break  # of a run that is writing, or was killed at it
            if not isinstance(result, dict):
                raise ValueError(f"line {number} is not a JSON object")
            _note_changes(settings, result.get("config"), len(history))
            history.append(result)
        for name, changes in settings.items():
            if len(changes) > 1 or changes[0][0] > 0:
                history._add_column(name, _expanded(changes, len(history)))
        return history


def _note_changes(settings: dict[str, list[tuple[int, float]]], config: Any, row: int) -> None:
    """Records in `settings` which numeric settings of the run's config have changed since the previous iteration.

    If a setting is new, has another value or is missing (value NaN), adds ``(row, value)`` to the setting's list in
    `settings`. `row` is the iteration's row in the table.
    """
    found: dict[str, float] = {}
    if isinstance(config, Mapping):
        _collect(config.items(), SETTINGS, found)
    for name in (*found, *(settings.keys() - found.keys())):
        value = found.get(name, math.nan)
        if name not in settings or settings[name][-1][1] != value:
            settings.setdefault(name, []).append((row, value))


def _expanded(changes: Sequence[tuple[int, float]], num_rows: int) -> list[float]:
    """Expands the changes of a setting, pairs ``(row, value)``, to a list with the setting's value in every row of the
    table; NaN before the first change.
    """
    rows = [row for row, _ in changes]
    values = [math.nan] * rows[0]
    for (row, value), end in zip(changes, [*rows[1:], num_rows], strict=True):
        values += [value] * (end - row)
    return values


def named_settings(settings: Mapping[str, float]) -> dict[str, float]:
    """Renames settings to their columns in the table of a run, such as ``lr`` to ``config/lr``: ``{column: value}``."""
    return {f"{SETTINGS}{name}": value for name, value in settings.items()}


def numbers_of(result: Mapping[str, Any]) -> dict[str, float]:
    """Flattens the nested dicts of a result to ``{"a/b": number}``, without values that are not numbers.

    Args:
        result: Result of ``train()``: nested dicts.

    Returns:
        Path, with ``"/"`` between its parts -> int or float, in the order of the result. Bools, text, arrays of more
        than one number, and everything below ``config`` are left out.
    """
    found: dict[str, float] = {}
    _collect(((name, value) for name, value in result.items() if name != "config"), "", found)
    return found


def _collect(items: Iterable[tuple[Any, Any]], prefix: str, found: dict[str, float]) -> None:
    for name, value in items:
        kind = type(value)
        if kind is float or kind is int:
            found[f"{prefix}{name}"] = value
        elif isinstance(value, dict):
            _collect(value.items(), f"{prefix}{name}/", found)
        elif kind is not bool and (number := _number(value)) is not None:
            found[f"{prefix}{name}"] = number


def _number(value: Any) -> int | float | None:
    if isinstance(value, (np.generic, np.ndarray, jax.Array)) and value.shape == ():
        value = np.asarray(value).item()
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def _cell(value: float) -> int | float | str:
    if math.isnan(value):
        return ""
    return int(value) if value.is_integer() else value
