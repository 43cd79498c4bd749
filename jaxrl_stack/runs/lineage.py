"""Lineage of population-based training: which members were copied over which, and their settings."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_stack.runs.run import value_text
from jaxrl_stack.runs.terminal import number_text, table_text
from jaxrl_stack.runs.writers import as_json
from jaxrl_stack.utils.optional_packages import optional_import

if TYPE_CHECKING:
    import pandas

LINEAGE_FILE = "lineage.jsonl"


@dataclasses.dataclass(frozen=True)
class Copy:
    """Event of population-based training: a member is replaced by a copy of another member, with new settings.

    Attributes:
        iteration: Last iteration before the copy.
        source: Index of the copied member.
        target: Index of the replaced member.
        source_score: Score of the copied member.
        target_score: Score of the replaced member; NaN without one.
        old: Settings of the replaced member.
        new: Settings of the copy.
        operations: Setting -> change in words, starting from the source's value: "resample", "* 1.2".
    """

    iteration: int
    source: int
    target: int
    source_score: float
    target_score: float
    old: Mapping[str, Any]
    new: Mapping[str, Any]
    operations: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Lineage:
    """All copies of members over other members in the training of a population; ``print(lineage)`` shows a table.

    Attributes:
        first: Settings of each member before the first copy.
        copies: Copies, in the order of time.
    """

    first: tuple[Mapping[str, Any], ...]
    copies: tuple[Copy, ...] = ()

    def until(self, iteration: int) -> Lineage:
        """Returns a lineage (record of copies of members over other members) that contains only the copies whose
        `Copy.iteration` (last iteration before the copy) is at most `iteration`.
        """
        return dataclasses.replace(self, copies=tuple(one for one in self.copies if one.iteration <= iteration))

    @property
    def present(self) -> list[dict[str, Any]]:
        """Present settings of each member of the population.

        These are the settings of the copy that last replaced the member, or the member's first settings if no copy has
        replaced the member.
        """
        settings = [dict(own) for own in self.first]
        for one in self.copies:
            settings[one.target] = dict(one.new)
        return settings

    def ancestors(self, member: int) -> list[tuple[int, int]]:
        """Lists the population members whose training led to the present state of `member`, traced back over all
        copies.

        Args:
            member: Index of the member.

        Returns:
            ``(first iteration, index)`` in the order of time: the member ``index`` trained from that iteration on. The
            first iteration of all is 1, and the last index is `member`.
        """
        found, place = [], member
        for one in reversed(self.copies):
            if one.target == place:
                found.append((one.iteration + 1, place))
                place = one.source
        return [(1, place), *reversed(found)]

    def schedule(self, member: int, name: str) -> list[tuple[int, Any]]:
        """Lists the values that a setting had in the training that led to a member's present state.

        If copies replaced the member, this training includes the training of the copied members.

        Args:
            member: Index of the member.
            name: The setting.

        Returns:
            ``(first iteration, value)`` in the order of time.
        """
        return [(start, self._value(place, name, start)) for start, place in self.ancestors(member)]

    def _value(self, member: int, name: str, iteration: int) -> Any:
        """Returns the value of a member's setting in an iteration."""
        own = [one.new[name] for one in self.copies if one.target == member and one.iteration < iteration]
        return own[-1] if own else self.first[member][name]

    def values_of(self, member: int, name: str, num_iterations: int) -> list[Any]:
        """Returns the values of a member's setting in iterations 1 to `num_iterations`."""
        values = [self.first[member][name]] * num_iterations
        for one in self.copies:
            if one.target == member:
                values[one.iteration :] = [one.new[name]] * (num_iterations - one.iteration)
        return values

    @property
    def names(self) -> list[str]:
        """Names of the settings whose values may differ between members of the population."""
        return list(self.first[0])

    def __str__(self) -> str:
        header = ["iteration", "target", "source", "score", "source's", *self.names]
        rows = [
            [
                str(one.iteration),
                str(one.target),
                str(one.source),
                number_text(one.target_score),
                number_text(one.source_score),
                *(f"{_short(one.old[name])} → {_short(one.new[name])}" for name in self.names),
            ]
            for one in self.copies
        ]
        return table_text(header, rows)

    def to_pandas(self) -> pandas.DataFrame:
        """DataFrame with a row for each copy of a member over another, and the columns ``old/<setting>`` and
        ``new/<setting>``.

        Raises:
            ImportError: Without pandas: ``pip install pandas``.
        """
        module = optional_import("pandas", purpose="Lineage.to_pandas", install="pandas")
        numbers = ("iteration", "source", "target", "source_score", "target_score")
        return module.DataFrame(
            [
                {name: getattr(one, name) for name in numbers}
                | {f"{when}/{name}": getattr(one, when)[name] for name in self.names for when in ("old", "new")}
                for one in self.copies
            ]
        )

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes JSON lines: the members' first settings, then a line for each `Copy` (replacement of a member)."""
        lines = [{"first": [dict(own) for own in self.first]}, *map(dataclasses.asdict, self.copies)]
        file = Path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f".{file.name}.{os.getpid()}.new")
        draft.write_text("".join(f"{json.dumps(as_json(line))}\n" for line in lines), encoding="utf-8")
        draft.replace(file)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Lineage:
        """Reads the lineage of a population (all copies of members over other members) from a file that `write` wrote.

        Raises:
            ValueError: If the file is missing or damaged.
        """
        try:
            first, *copies = map(json.loads, Path(path).read_text(encoding="utf-8").splitlines())
            return cls(tuple(first["first"]), tuple(Copy(**{**one, **_scores(one)}) for one in copies))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"Lineage.read() cannot read {path} ({error}). Pass a file that Lineage.write() wrote, or restore the "
                "file from a copy."
            ) from error

    def values(self, name: str, num_iterations: int) -> np.ndarray:
        """Values of a setting in each iteration for the M members of the population, ``float64[num_iterations, M]``."""
        table = np.empty((num_iterations, len(self.first)), np.float64)
        table[:] = [float(own[name]) for own in self.first]
        for one in self.copies:
            table[one.iteration :, one.target] = float(one.new[name])
        return table


def _scores(line: Mapping[str, Any]) -> dict[str, float]:
    """Reads ``source_score`` and ``target_score`` from the JSON line of a `Copy`; null in the line becomes NaN."""
    names = ("source_score", "target_score")
    return {name: math.nan if line[name] is None else line[name] for name in names}


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else value_text(value)
