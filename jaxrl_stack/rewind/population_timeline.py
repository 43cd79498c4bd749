"""Timeline of a population, read from its folder: iterations, commands (method calls between iterations) and stored
checkpoints.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxrl_stack.checkpoints.names import METADATA_FILE
from jaxrl_stack.checkpoints.newest import checkpoints_in
from jaxrl_stack.runs.commands import CONTINUE_FROM, SET_STATE, read_commands
from jaxrl_stack.runs.member_history import MEMBERS_FILE, MemberHistory
from jaxrl_stack.runs.origin import read_origin
from jaxrl_stack.runs.timeline import CALLS, BaseTimeline, NotRecomputableError, StoredCheckpoint, stored_checkpoints
from jaxrl_stack.utils.fingerprints import FINGERPRINT_COLUMNS

_COLUMNS = ("training_iteration", CALLS, *FINGERPRINT_COLUMNS)


class RecordedMembers(NamedTuple):
    """Recorded iteration of a population: number of training steps, and fingerprints (hashes) of the members'
    parameters.

    Attributes:
        num_training_steps: Number of training steps of the iteration.
        fingerprints: Member -> ``(low, high)``; without members that had diverged or stopped before it.
    """

    num_training_steps: int
    fingerprints: dict[int, tuple[int, int]]


class PopulationTimeline(BaseTimeline[RecordedMembers]):
    """Iterations, commands (method calls between iterations) and stored checkpoints of a population, read from its
    folder.

    The numbers of the iterations are in ``members.csv``, which `Population.learn` writes, and in each checkpoint. The
    newest is used. After a restore, a table from before the restore is not used.

    Args:
        directory: Folder of the population, ``results_dir/population``.

    Raises:
        NotRecomputableError: If the folder is not the folder of a population, has no checkpoint, or lacks numbers.
        ValueError: If a file is damaged.
    """

    def __init__(self, directory: Path):
        self.directory = directory
        stored = self._stored()
        if not stored:
            raise NotRecomputableError(
                f"{directory} contains no checkpoint of a population, so no iteration can be recomputed. Train with "
                "reporting(results_dir=..., checkpoint_frequency=10)."
            )
        self.commands = read_commands(directory)
        restores = [own for own in self.commands if own.call in (SET_STATE, CONTINUE_FROM)]
        self.origin = restores[-1] if restores else None
        self.first = 0 if self.origin is None else self.origin.iteration_after
        recorded = self._recorded(stored)
        self.iterations = {number: own for number, own in sorted(recorded.items()) if number > self.first}
        self.checkpoints = {
            number: own
            for number, own in stored.items()
            if self.first <= number <= self.last and self._follows_restore(own)
        }

    def _stored(self) -> dict[int, StoredCheckpoint]:
        found = stored_checkpoints(self.directory, metadata_file=METADATA_FILE, numbers=("num_members",))
        for own in found.values():
            if own.num_commands is None or int(own.metadata["num_members"]) <= 0:
                raise NotRecomputableError(
                    f"The checkpoint {own.path} was saved by a release that did not record method calls on "
                    "populations. Train the population again."
                )
        return found

    def _recorded(self, stored: dict[int, StoredCheckpoint]) -> dict[int, RecordedMembers]:
        table = self.directory / MEMBERS_FILE
        of_table = _iterations(_rows_of_table(table)) if table.is_file() else {}
        if self.origin is None:
            newest = max(stored)
            return of_table if max(of_table, default=-1) >= newest else _iterations(_rows_of_checkpoint(stored[newest]))
        # Other checkpoints, and perhaps the table, contain iterations that the restore has abandoned.
        valid = [number for number, own in stored.items() if number > self.first and self._follows_restore(own)]
        if not valid:
            # Nothing to repeat the iterations from.
            return of_table
        newest = max(valid)
        of_checkpoint = _iterations(_rows_of_checkpoint(stored[newest]))
        return of_table if of_table.get(newest) == of_checkpoint.get(newest) else of_checkpoint

    def _follows_restore(self, checkpoint: StoredCheckpoint) -> bool:
        """Whether a checkpoint was saved after the last recorded call that restored a state of the population; True if
        no call has restored a state.
        """
        return self.commands_at(checkpoint) >= self._num_restored

    @property
    def _num_restored(self) -> int:
        """Number of commands (recorded calls) up to and including the last restore of a state; 0 if there was none."""
        return 0 if self.origin is None else self.origin.number

    @property
    def first_repeatable(self) -> int:
        # Commands of populations do not contain the restored state.
        return 1 + (self.first if self.origin is None else min(self.checkpoints, default=self.first))

    def num_commands_before(self, iteration: int) -> int:
        later = self.commands[self._num_restored :]
        return self._num_restored + sum(command.iteration < iteration for command in later)

    def commands_at(self, checkpoint: StoredCheckpoint) -> int:
        return int(checkpoint.metadata["num_commands"])


def is_population(directory: Path) -> bool:
    """Whether a folder is the folder of a population. The checkpoints in such a folder contain all members together.

    Without its ``run.json``, the table of the members or the checkpoints show it.
    """
    if read_origin(directory).keys() >= {"members", "num_members"} or (directory / MEMBERS_FILE).is_file():
        return True
    # Checkpoints of single runs have both metadata files.
    return bool(checkpoints_in(directory, metadata_file=METADATA_FILE)) and not checkpoints_in(directory)


class _Row(NamedTuple):
    member: int
    iteration: float
    calls: float
    low: float
    high: float


def _rows_of_table(table: Path) -> Iterator[_Row]:
    """Yields the rows of ``members.csv``. The rows of each member are in the order of its training.

    Raises:
        ValueError: If it is damaged.
    """
    with table.open(newline="", encoding="utf-8") as file:
        for number, row in enumerate(csv.DictReader(file), start=2):
            try:
                yield _Row(int(row["member"]), *(float(row[name] or math.nan) for name in _COLUMNS))
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(
                    f"Line {number} of {table} is damaged: {error!r}. Restore the file from a copy."
                ) from error


def _rows_of_checkpoint(checkpoint: StoredCheckpoint) -> Iterator[_Row]:
    """Yields the rows of a population's history, read from a checkpoint: one row for each iteration of each member, one
    member after the other.
    """
    state: dict[str, Any] = checkpoint.state()["history"]
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
    """Groups the rows of a population's table by iteration.

    If an iteration number does not exceed the previous one (the population went back to an earlier state), the older
    rows from this number on are dropped. This includes the rows of members that stopped.
    """
    # The n-th rows of all members are of the same iteration; members that do not continue have fewer rows.
    num_rows: Counter[int] = Counter()
    together: list[list[_Row]] = []
    for row in rows:
        if num_rows[row.member] == len(together):
            together.append([])
        together[num_rows[row.member]].append(row)
        num_rows[row.member] += 1
    found: dict[int, RecordedMembers] = {}
    for of_members in together:
        known = [row for row in of_members if not (math.isnan(row.iteration) or math.isnan(row.calls))]
        # The keys ascend.
        while known and found and next(reversed(found)) >= known[0].iteration:
            found.popitem()
        for row in known:
            recorded = found.setdefault(int(row.iteration), RecordedMembers(int(row.calls), {}))
            if not (math.isnan(row.low) or math.isnan(row.high)):
                recorded.fingerprints[row.member] = (int(row.low), int(row.high))
    return found
