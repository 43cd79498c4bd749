"""Results of a population's members in one iteration. Each member's result has the form of a single run's result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, overload

import numpy as np

from jaxrl_stack.runs.curves import RETURN, iqm
from jaxrl_stack.runs.result import Result, ResultPart
from jaxrl_stack.utils.results import get_nested


class MemberResults(Sequence[Result]):
    """Sequence of the members' results. A member's result is created only when it is accessed, because callers usually
    read a metric of all members together, with `column`.

    Args:
        numbers: Nested dicts of values that members share, and of arrays ``[M]``.
        num_members: Number of members M.
        configs: ``config`` in each member's result; None for results without it.

    Attributes:
        numbers: Numbers as passed.
    """

    def __init__(
        self, numbers: Mapping[str, Any], num_members: int, configs: Sequence[Mapping[str, Any]] | None = None
    ):
        self.numbers = numbers
        self._num_members, self._configs = num_members, configs

    def __len__(self) -> int:
        return self._num_members

    @overload
    def __getitem__(self, index: int) -> Result: ...

    @overload
    def __getitem__(self, index: slice) -> list[Result]: ...

    def __getitem__(self, index: int | slice) -> Result | list[Result]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"The population has no member {index}. Use an index from 0 to {len(self) - 1}.")
        result = Result()
        for name, value in self.numbers.items():
            is_part = isinstance(value, dict)
            result[name] = _of_member(value, index, ResultPart(name)) if is_part else _scalar(value, index)
        if self._configs is not None:
            result["config"] = self._configs[index]
        return result

    def __repr__(self) -> str:
        return f"<results of {len(self)} members; [0] is the first one's>"

    def only(self, paths: Iterable[str]) -> MemberResults:
        """Returns the results of all members with only the metrics at `paths`; missing metrics are skipped."""
        numbers: dict[str, Any] = {}
        for path in paths:
            *parents, name = path.split("/")
            found = self.numbers
            for parent in parents:
                found = found.get(parent, {})
            if name in found:
                into = numbers
                for parent in parents:
                    into = into.setdefault(parent, {})
                into[name] = found[name]
        return MemberResults(numbers, len(self))

    def column(self, path: str) -> np.ndarray:
        """Values of one metric in one iteration, for all M members of the population, ``float64[M]``.

        Returns:
            ``float64[M]``.

        Raises:
            KeyError: If there is none; names similar ones.
        """
        return np.broadcast_to(np.asarray(get_nested(self.numbers, path), np.float64), len(self))


def _of_member(numbers: Mapping[str, Any], index: int, into: dict[str, Any]) -> dict[str, Any]:
    for name, value in numbers.items():
        into[name] = _of_member(value, index, {}) if isinstance(value, dict) else _scalar(value, index)
    return into


def _scalar(value: Any, index: int) -> Any:
    return value[index].item() if isinstance(value, np.ndarray) else value


def population_numbers(members: MemberResults, is_live: np.ndarray, key: str = RETURN) -> dict[str, Any]:
    """Statistics of one metric over the live members of a population, such as the median and the best value.

    Args:
        members: Results of the members.
        is_live: bool ``[M]``, members that count.
        key: Number to compare members by; NaN if unknown.

    Returns:
        The numbers of members and of live members; of `key` the best value, the index of its member (None if
        unknown for all), the median, the interquartile mean, and the worst value.
    """
    values = np.where(is_live, members.column(key), np.nan)
    known = values[np.isfinite(values)]
    name = key.rpartition("/")[2]
    middle = {"median": np.nan, "iqm": np.nan, "best": np.nan, "worst": np.nan}
    if len(known):
        middle = {"median": np.median(known), "iqm": iqm(known), "best": known.max(), "worst": known.min()}
    return {
        "num_members": len(members),
        "num_live_members": int(is_live.sum()),
        "best_member": int(np.nanargmax(values)) if len(known) else None,
        **{f"{name}_{which}": float(value) for which, value in middle.items()},
    }
