"""Timeline of a population, read from its folder: iterations, commands (method calls between them) and stored
checkpoints.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl_stack.checkpoints.checkpointable import read_state
from jaxrl_stack.checkpoints.files import opened
from jaxrl_stack.checkpoints.names import METADATA_FILE
from jaxrl_stack.runs.commands import CONTINUE_FROM, SET_STATE, read_commands
from jaxrl_stack.runs.member_history import MEMBERS_FILE, MemberHistory
from jaxrl_stack.runs.origin import read_origin
from jaxrl_stack.runs.timeline import CALLS, NotRecomputableError, StoredCheckpoint, stored_checkpoints
from jaxrl_stack.utils.fingerprints import FINGERPRINT

_ITERATION, _LOW, _HIGH = "training_iteration", f"{FINGERPRINT}/low", f"{FINGERPRINT}/high"
_COLUMNS = (_ITERATION, CALLS, _LOW, _HIGH)


class RecordedMembers(NamedTuple):
    """Recorded iteration of a population: number of training steps, and fingerprints (hashes) of the members'
    parameters.

    Attributes:
        num_training_steps: Number of training steps of the iteration.
        fingerprints: Member -> ``(low, high)``; without members that had diverged or stopped before it.
    """

    num_training_steps: int
    fingerprints: dict[int, tuple[int, int]]


class PopulationTimeline:
    """Iterations, commands (method calls between them) and stored checkpoints of a population, read from its folder.

    The numbers of the iterations are in ``members.csv``, which `Population.learn` writes, and in each checkpoint. The
    newest is used.

    Args:
        directory: Folder of the population, ``results_dir/population``.

    Attributes:
        origin: Content of ``run.json``.
        commands: Commands in their order.
        iterations: Recorded iterations by number, since the population was built or another state was restored.
        first: Iteration before the first of them.
        num_restored: Number of commands up to the one that restored a state; 0 without.
        checkpoints: Stored checkpoints of these iterations, by iteration.

    Raises:
        NotRecomputableError: If the folder is not that of a population, has no checkpoint, or lacks numbers.
        ValueError: If a file is damaged.
    """

    def __init__(self, directory: Path):
        self.directory = directory
        self.origin = read_origin(directory)
        stored = self._stored()
        if not stored:
            raise NotRecomputableError(
                f"{directory}: has no checkpoint of a population to begin with. Train with "
                "reporting(results_dir=..., checkpoint_frequency=10)."
            )
        self.commands = read_commands(directory)
        restores = [own for own in self.commands if own.call in (SET_STATE, CONTINUE_FROM)]
        self.num_restored, self.first = (restores[-1].number, restores[-1].iteration_after) if restores else (0, 0)
        recorded = self._recorded(stored)
        self.iterations = {number: own for number, own in sorted(recorded.items()) if number > self.first}
        self.checkpoints = {
            number: own
            for number, own in stored.items()
            if self.first <= number <= self.last and self.commands_at(own) >= self.num_restored
        }

    def _stored(self) -> dict[int, StoredCheckpoint]:
        found = stored_checkpoints(self.directory, metadata_file=METADATA_FILE, numbers=("num_members",))
        for own in found.values():
            if own.num_commands is None or int(own.metadata["num_members"]) <= 0:
                raise NotRecomputableError(
                    f"{own.path}: was saved by a version that did not record method calls on populations. Train the "
                    f"population again."
                )
        return found

    def _recorded(self, stored: dict[int, StoredCheckpoint]) -> dict[int, RecordedMembers]:
        table, newest = self.directory / MEMBERS_FILE, max(stored)
        found = _iterations(_rows_of_table(table)) if table.is_file() else {}
        if not found or max(found) < newest:
            found = _iterations(_rows_of_checkpoint(stored[newest]))
        return found

    @property
    def last(self) -> int:
        """Number of the last recorded iteration."""
        return max(self.iterations, default=self.first)

    def recorded(self, iteration: int) -> RecordedMembers:
        """Returns the recorded iteration with this number.

        Raises:
            NotRecomputableError: If the population has no such iteration.
        """
        if iteration not in self.iterations:
            since = ""
            if self.num_restored:
                since = f" since {self.commands[self.num_restored - 1].call}()"
            kept = f"iterations {self.first + 1} to {self.last}" if self.iterations else "no iteration"
            raise NotRecomputableError(
                f"{self.directory}: iteration {iteration} is not recorded; the folder has {kept}{since}. Choose a "
                f"recorded iteration."
            )
        return self.iterations[iteration]

    def nearest(self, iteration: int) -> StoredCheckpoint | None:
        """Finds the newest stored checkpoint at or before an iteration."""
        known = [number for number in self.checkpoints if number <= iteration]
        return self.checkpoints[max(known)] if known else None

    def num_commands_before(self, iteration: int) -> int:
        """Number of commands (recorded method calls) before an iteration began."""
        later = self.commands[self.num_restored :]
        return self.num_restored + sum(command.iteration < iteration for command in later)

    @staticmethod
    def commands_at(checkpoint: StoredCheckpoint) -> int:
        """Number of commands (recorded method calls) that were made before a checkpoint was saved."""
        return int(checkpoint.metadata["num_commands"])


def is_population(directory: Path) -> bool:
    """Whether a folder is the folder of a population, whose checkpoints contain all members together."""
    return read_origin(directory).keys() >= {"members", "num_members"}


class _Row(NamedTuple):
    member: int
    iteration: float
    calls: float
    low: float
    high: float


def _rows_of_table(table: Path) -> Iterator[_Row]:
    """Yields the rows of ``members.csv``, in the order of each member's iterations.

    Raises:
        ValueError: If it is damaged.
    """
    with table.open(newline="", encoding="utf-8") as file:
        for number, row in enumerate(csv.DictReader(file), start=2):
            try:
                yield _Row(int(row["member"]), *(float(row[name] or math.nan) for name in _COLUMNS))
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{table}, line {number}: is damaged: {error!r}. Restore the file.") from error


def _rows_of_checkpoint(checkpoint: StoredCheckpoint) -> Iterator[_Row]:
    """Yields the rows of the members' history (table of metrics by iteration) that a checkpoint of a population
    contains.
    """
    with opened(checkpoint.path) as stored:
        state: dict[str, Any] = read_state(stored, is_weights=False)["history"]
    num_members = len(np.asarray(state["num_iterations"]))
    history = MemberHistory([{}] * num_members)
    history.set_state(state)
    if any(name not in history for name in _COLUMNS):
        return
    columns: Sequence[np.ndarray] = [history[name] for name in _COLUMNS]
    for member in range(num_members):
        for values in zip(*(column[:, member].tolist() for column in columns), strict=True):
            yield _Row(member, *values)


def _iterations(rows: Iterable[_Row]) -> dict[int, RecordedMembers]:
    """Groups the rows of a population's table by iteration. If a member goes back to an earlier iteration, its rows
    from there on are replaced.
    """
    of_members: dict[int, dict[int, _Row]] = {}
    for row in rows:
        if not (math.isnan(row.iteration) or math.isnan(row.calls)):
            own = of_members.setdefault(row.member, {})
            # The keys ascend.
            while own and next(reversed(own)) >= row.iteration:
                own.popitem()
            own[int(row.iteration)] = row
    found: dict[int, RecordedMembers] = {}
    for own in of_members.values():
        for iteration, row in own.items():
            recorded = found.setdefault(iteration, RecordedMembers(int(row.calls), {}))
            if not (math.isnan(row.low) or math.isnan(row.high)):
                recorded.fingerprints[row.member] = (int(row.low), int(row.high))
    return found
