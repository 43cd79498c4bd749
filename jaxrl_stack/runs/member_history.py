"""Table of a population: rows are iterations, columns are reported numbers, and a cell has a value for each member."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl_stack.runs.curves import RETURN, STEPS
from jaxrl_stack.runs.history import SETTINGS, History
from jaxrl_stack.utils.optional_packages import optional_import
from jaxrl_stack.utils.results import get_nested

MEMBERS_FILE = "members.csv"
"""File in `Population.directory` with the numbers of all members and iterations, written at the end of `learn` and
removed by a restore.
"""


class MemberHistory:
    """Table of a population's metrics, with one value for each iteration, metric and member; `History` is the table of
    a single run.

    Args:
        settings: Seed and individual settings of each member, with the same names for all.

    Attributes:
        settings: Seeds and settings as passed.
        num_iterations: int64 ``[M]``, number of iterations of each member, up to its divergence.
    """

    def __init__(self, settings: Sequence[Mapping[str, Any]]):
        self.settings = [dict(own) for own in settings]
        self.num_iterations = np.zeros(len(self.settings), np.int64)
        self._num_rows = 0
        # A number that is the same for all members is kept once.
        self._cells: dict[str, list[Any]] = {}

    @property
    def num_members(self) -> int:
        """Number of members M of the population."""
        return len(self.settings)

    def append(self, result: Mapping[str, Any], counts: np.ndarray) -> None:
        """Adds the result of an iteration to the table of the population's members.

        Args:
            result: Nested dicts of numbers and of float64 ``[M]``.
            counts: bool ``[M]``, members for which it counts.
        """
        for name, value in _numbers(result, ""):
            if name not in self._cells:
                self._cells[name] = [math.nan] * self._num_rows
            self._cells[name].append(value)
        self._num_rows += 1
        for column in self._cells.values():
            if len(column) < self._num_rows:
                column.append(math.nan)
        self.num_iterations[counts] = self._num_rows

    def add_setting(self, name: str, values_at: Callable[[int], np.ndarray]) -> None:
        """Adds a column to the table: the values of a setting for each member, in the iterations so far.

        Args:
            name: The setting.
            values_at: Function from a number of env steps to the values, float64 ``[M]``.
        """
        starts = [0, *self._cells.get(STEPS, [])[:-1]][: self._num_rows]
        self._cells[f"{SETTINGS}{name}"] = [values_at(int(num_env_steps)) for num_env_steps in starts]

    def leave_out(self, members: Sequence[int]) -> None:
        """Sets the values of the given members to NaN in iterations in which these members did not train.

        These are the iterations after a member's last iteration. Metrics with one common value for all members are
        unchanged. Call this before the members train again: otherwise, the table would later show these values as
        results of training.
        """
        for member in members:
            for column in self._cells.values():
                for row in range(self.num_iterations[member], self._num_rows):
                    if np.ndim(column[row]):
                        column[row] = np.array(column[row], np.float64)
                        column[row][member] = math.nan

    def __len__(self) -> int:
        """Number of iterations in the table."""
        return self._num_rows

    @property
    def columns(self) -> list[str]:
        """Names of the numbers that at least one member reported in at least one iteration."""
        return [name for name, column in self._cells.items() if not all(np.isnan(value).all() for value in column)]

    def __contains__(self, name: object) -> bool:
        return name in self._cells and name in self.columns

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __getitem__(self, name: str) -> np.ndarray:
        """Returns the values of a metric for all iterations and all M members of the population, ``float64[iterations,
        M]``.

        Returns:
            ``float64[iterations, M]``; NaN if it was not reported, and after a member's last iteration.

        Raises:
            KeyError: If no iteration reported it; the message names similar columns.
        """
        if not self._num_rows:
            raise KeyError(
                f"The history has no column {name!r} before the first train(). Call train(); then the mean return is "
                f"history[{RETURN!r}]."
            )
        if name not in self._cells:
            get_nested(dict.fromkeys(self.columns), (name,))  # raises, with the names that are near
        return self._column(name)

    def cell(self, name: str, row: int) -> np.ndarray:
        """Returns the values of a metric for all members of the population in one iteration.

        The result is ``float64[M]`` for M members. The values are NaN for members that ended before the iteration, and
        for a metric that was not reported.

        Args:
            name: Name of the number.
            row: Row of the iteration, from 0.
        """
        value = self._cells[name][row] if name in self._cells else math.nan
        return np.where(row < self.num_iterations, np.asarray(value, np.float64), math.nan)

    def in_last_iteration(self, name: str) -> np.ndarray:
        """Returns the values of a metric for all M members of the population in the last iteration, ``float64[M]``; NaN
        for members that ended before the iteration.

        Raises:
            KeyError: If no iteration reported it.
        """
        if not self._num_rows or name not in self._cells:
            return self[name][-1]
        return self.cell(name, self._num_rows - 1)

    def _filled(self, name: str) -> np.ndarray:
        """Returns a column as stored, ``float64[iterations, M]``. In the rows after a member's last iteration, the
        column may contain numbers instead of NaN for this member.
        """
        table = np.empty((self._num_rows, self.num_members), np.float64)
        for row, value in zip(table, self._cells[name], strict=True):
            row[:] = value
        return table

    def _column(self, name: str) -> np.ndarray:
        table = self._filled(name)
        table[np.arange(self._num_rows)[:, None] >= self.num_iterations] = math.nan
        return table

    def of_member(self, member: int, num_iterations: int | None = None) -> History:
        """History of one member, in the form of a single run's `History`, up to iteration `num_iterations` (default:
        the member's last).
        """
        length = int(self.num_iterations[member]) if num_iterations is None else num_iterations
        return _history_of({name: self._filled(name)[:length, member] for name in self.columns}, length)

    def of_members(self) -> list[History]:
        """Histories (tables of metrics by iteration) of the members, in the order of the members."""
        columns = {name: self._filled(name) for name in self.columns}
        return [
            _history_of({name: values[:length, i] for name, values in columns.items()}, length)
            for i, length in enumerate(self.num_iterations.tolist())
        ]

    @property
    def last(self) -> dict[str, np.ndarray]:
        """Value of every column in each member's last iteration, ``{name: float64[M]}``."""
        if not self._num_rows:
            return {}
        rows = np.maximum(self.num_iterations - 1, 0)
        return {name: self[name][rows, np.arange(self.num_members)] for name in self.columns}

    # ------------------------------------------------------------------------------------------------- in long form

    def _long(self) -> tuple[list[str], list[np.ndarray]]:
        """Returns ``(names, columns)`` of the table in long form: one row for each member of the population and
        iteration, with member, settings and all metrics.
        """
        counts = np.arange(self._num_rows)[:, None] < self.num_iterations
        member = np.broadcast_to(np.arange(self.num_members), counts.shape)
        # All of a member's rows together.
        place = counts.T
        of_settings = [np.array([own[name] for own in self.settings], object) for name in self.settings[0]]
        columns = [member.T[place], *(values[member.T[place]] for values in of_settings)]
        columns += [self._column(name).T[place] for name in self.columns]
        return ["member", *self.settings[0], *self.columns], columns

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame`` in long form: a row for each iteration of each member, with its settings.

        Raises:
            ImportError: Without pandas.
        """
        pandas = optional_import("pandas", purpose="MemberHistory.to_pandas", install="pandas")
        names, columns = self._long()
        return pandas.DataFrame(dict(zip(names, columns, strict=True))).infer_objects()

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Writes the table of `to_pandas` to a file; cells without a number are empty.

        Args:
            path: File to write; an existing file is replaced.
        """
        names, columns = self._long()
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(names)
            writer.writerows(map(_cell, row) for row in zip(*columns, strict=True))

    # ----------------------------------------------------------------------------------------------------- storage

    def get_state(self) -> dict[str, Any]:
        """Returns the table as a dict for checkpoints: names of the columns, values as arrays, and numbers of
        iterations.
        """
        shared = [name for name, column in self._cells.items() if all(np.ndim(value) == 0 for value in column)]
        return {
            "columns": list(self._cells),
            "num_rows": self._num_rows,
            "num_iterations": self.num_iterations.copy(),
            "shared": {name: np.array(self._cells[name], np.float64) for name in shared},
            "own": {
                name: np.stack([np.broadcast_to(value, self.num_members) for value in column]).astype(np.float64)
                for name, column in self._cells.items()
                if name not in shared
            },
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores the table from a state that `get_state` returned.

        Raises:
            ValueError: If it has another number of members.
        """
        num_iterations = np.array(state["num_iterations"], np.int64)
        if num_iterations.shape != self.num_iterations.shape:
            raise ValueError(
                f"The history to restore has {len(num_iterations)} members, but the population has {self.num_members}. "
                f"Restore it into a population of {len(num_iterations)} members."
            )
        cells = {**state["shared"], **state["own"]}
        self._cells = {name: list(np.asarray(cells[name], np.float64)) for name in state["columns"]}
        self._num_rows, self.num_iterations = int(state["num_rows"]), num_iterations


def _history_of(columns: Mapping[str, np.ndarray], length: int) -> History:
    """Builds the history (table of metrics, one row per iteration) of one member of a population.

    Each array in `columns` has the member's values of one metric in iterations 1 to `length`.
    """
    history = History()
    cells = np.array(list(columns.values()), np.float64).reshape(len(columns), length)
    history.set_state({"columns": list(columns), "cells": cells.T})
    return history


def _numbers(result: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yields ``(path, value)`` for each number in a nested result, and for each array ``[M]`` with one value per member
    of the population.
    """
    for name, value in result.items():
        kind = type(value)
        if kind is float or kind is int:
            yield f"{prefix}{name}", value
        elif isinstance(value, dict):
            yield from _numbers(value, f"{prefix}{name}/")
        elif value.ndim == 1 if kind is np.ndarray else isinstance(value, np.number):
            yield f"{prefix}{name}", value


def _cell(value: Any) -> Any:
    return "" if isinstance(value, float) and math.isnan(value) else value
