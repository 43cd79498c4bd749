"""Journal of finished runs: a file with one JSON line per run, which tells benchmarks what not to repeat."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Values of a file with one JSON object per line."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def append_line(path: Path, value: Mapping[str, Any]) -> None:
    """Appends a JSON object to a file with one object per line. Missing folders are created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(value) + "\n")


@dataclasses.dataclass(frozen=True)
class Journal:
    """Finished runs, one JSON line each: ``{"commit": ..., "run": {...}, "measured": {...}}``.

    Args:
        path: The file; None stores nothing.
        commit: Commit of the code that makes new runs.
    """

    path: Path | None = None
    commit: str | None = None

    def once(self, run: Mapping[str, Any], measure: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """Line of a run, which is made if the file does not contain it.

        Args:
            run: Identity of the run, as JSON values.
            measure: Function that makes the run and returns its numbers.
        """
        return self.find(run) or self.append(run, measure())

    def once_each(
        self,
        runs: Sequence[Mapping[str, Any]],
        measure: Callable[[list[int]], Sequence[Mapping[str, Any]]],
        *,
        together: bool,
    ) -> list[dict[str, Any]]:
        """Lines of several runs; those that the file does not contain are made.

        Args:
            runs: Identity of each run, as JSON values.
            measure: Function that makes the runs at some indices and returns the numbers of each.
            together: Whether `measure` makes all missing runs in one call, as a population does. Otherwise each run is
                written as soon as it is finished.
        """
        found = [self.find(run) for run in runs]
        missing = [i for i, line in enumerate(found) if line is None]
        for group in [missing] if together and missing else [[i] for i in missing]:
            for i, measured in zip(group, measure(group), strict=True):
                found[i] = self.append(runs[i], measured)
        return [line for line in found if line is not None]

    def find(self, run: Mapping[str, Any]) -> dict[str, Any] | None:
        """Identity, numbers and commit of a run in the file; None if there is none."""
        for done in lines_of(self.path) if self.path and self.path.exists() else ():
            if done["run"] == run:
                return {**run, **done["measured"], "commit": done["commit"]}
        return None

    def append(self, run: Mapping[str, Any], measured: Mapping[str, Any]) -> dict[str, Any]:
        """Writes a run and its numbers.

        Returns:
            The dict that `find` returns from now on.
        """
        if self.path:
            append_line(self.path, {"commit": self.commit, "run": run, "measured": measured})
        return {**run, **measured, "commit": self.commit}
