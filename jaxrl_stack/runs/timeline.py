"""Timelines of runs and populations, read from their folders: iterations, commands (method calls between iterations)
and stored checkpoints.
"""

from __future__ import annotations

import abc
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from jaxrl_stack.checkpoints.checkpointable import read_state
from jaxrl_stack.checkpoints.checksums import checkpoint_checksum
from jaxrl_stack.checkpoints.files import opened
from jaxrl_stack.checkpoints.names import ALGORITHM_METADATA_FILE
from jaxrl_stack.checkpoints.newest import checkpoints_in
from jaxrl_stack.runs.commands import FROM_CHECKPOINT, RESTORE, SET_STATE, Command, read_commands
from jaxrl_stack.runs.history import History

CALLS = "num_training_step_calls_per_iteration"


class NotRecomputableError(ValueError):
    """Error for an iteration that cannot be recomputed from its run's files. The message gives reason and remedy."""


@dataclasses.dataclass(frozen=True)
class StoredCheckpoint:
    """Checkpoint in the folder of a run.

    Attributes:
        iteration: Iterations done.
        path: Its folder.
        metadata: Content of its metadata file.
    """

    iteration: int
    path: Path
    metadata: dict[str, Any]

    @property
    def num_commands(self) -> int | None:
        """Number of commands (recorded method calls) of the run when the checkpoint was saved; None if unknown."""
        return self.metadata.get("num_commands")

    def state(self) -> dict[str, Any]:
        """Reads the training state from the checkpoint. Checks that its arrays are undamaged, and that modules and
        optimizers contain no NaN.

        Raises:
            ValueError: If the checkpoint is damaged, or weights are NaN.
        """
        with opened(self.path) as stored:
            return read_state(stored, is_weights=False)


def stored_checkpoints(
    directory: Path, *, metadata_file: str = ALGORITHM_METADATA_FILE, numbers: Sequence[str] = ()
) -> dict[int, StoredCheckpoint]:
    """Checkpoints in the folder of a run or a population, ``{iteration: checkpoint}``, the oldest first.

    Args:
        directory: The folder.
        metadata_file: See `checkpoints_in`.
        numbers: Names of further integers that the metadata must have.

    Raises:
        ValueError: If the metadata of a checkpoint is damaged or of another iteration.
    """
    found = {}
    for number, folder in checkpoints_in(directory, metadata_file=metadata_file).items():
        try:
            metadata = json.loads((folder / metadata_file).read_text(encoding="utf-8"))
            iteration, *_ = [int(metadata[name]) for name in ("training_iteration", *numbers)]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"The checkpoint at {folder} is damaged ({metadata_file}: {error!r}). Restore the folder from a "
                "copy, or delete it."
            ) from error
        if iteration != number:
            raise ValueError(
                f"The checkpoint at {folder} is of iteration {iteration}, but its name says {number}. Restore the "
                f"folder from a copy, or delete it."
            )
        found[number] = StoredCheckpoint(number, folder, metadata)
    return found


@dataclasses.dataclass(frozen=True)
class RecordedIteration:
    """Iteration that a run has recorded as a row of the run's table of metrics.

    Attributes:
        iteration: Number of the iteration, from 1.
        num_training_steps: Number of training steps in the iteration.
        row: Index of the row.
        num_commands: Number of commands (recorded calls) before the iteration began.
    """

    iteration: int
    num_training_steps: int
    row: int
    num_commands: int


RecordedT = TypeVar("RecordedT")


class BaseTimeline(abc.ABC, Generic[RecordedT]):
    """Iterations, commands (method calls between iterations) and stored checkpoints of a run or a population.

    Attributes:
        directory: Folder of the run or population.
        commands: Commands in their order.
        iterations: Recorded iterations by number, ascending, since the start or the last restore. In a run, only a
            restore of another iteration counts.
        checkpoints: Stored checkpoints of these iterations and of the iteration before them, by iteration. Checkpoints
            from before that restore are left out, with one exception: a checkpoint in the run's folder that this
            restore has loaded.
        first: Number of the iteration before the recorded ones: 0, or the iteration of a restored state.
        origin: The command that restored the state before the first iteration; None if the run began with new
            parameters.
    """

    directory: Path
    commands: list[Command]
    iterations: dict[int, RecordedT]
    checkpoints: dict[int, StoredCheckpoint]
    first: int
    origin: Command | None

    @property
    def last(self) -> int:
        """Number of the last recorded iteration."""
        return next(reversed(self.iterations), self.first)

    @property
    def first_repeatable(self) -> int:
        """Number of the first iteration that a replay (recomputation of recorded iterations) can begin with."""
        return self.first + 1

    def recorded(self, iteration: int) -> RecordedT:
        """Returns the recorded iteration with this number.

        Raises:
            NotRecomputableError: If the run or population has no such iteration.
        """
        if iteration not in self.iterations:
            kept = f"iterations {self.first + 1} to {self.last}" if self.iterations else "no iteration"
            since = "the start or last restore" if self.origin is None else f"{self.origin.call}()"
            raise NotRecomputableError(
                f"{self.directory}: iteration {iteration} is not recorded. Recorded since {since}: {kept}. "
                f"Choose a recorded iteration."
            )
        return self.iterations[iteration]

    def nearest(self, iteration: int) -> StoredCheckpoint | None:
        """Finds the newest stored checkpoint at or before an iteration."""
        known = [number for number in self.checkpoints if number <= iteration]
        return self.checkpoints[max(known)] if known else None

    @abc.abstractmethod
    def num_commands_before(self, iteration: int) -> int:
        """Number of commands (recorded method calls) that the run or population executed before an iteration."""

    @abc.abstractmethod
    def commands_at(self, checkpoint: StoredCheckpoint) -> int:
        """Number of commands (recorded method calls) whose effects the state in a checkpoint contains. A replay from
        the checkpoint does not repeat these commands.
        """


class Timeline(BaseTimeline[RecordedIteration]):
    """Iterations, commands (method calls between iterations) and stored checkpoints of a run, read from its folder.

    Its iterations are the last rows of the table with consecutive numbers.

    Args:
        directory: Folder of the run.
        history: Table of the run.

    Raises:
        NotRecomputableError: If the table lacks the number of training steps, or a command fits none of its iterations.
        ValueError: If ``commands.jsonl`` or a checkpoint's metadata is damaged.
    """

    def __init__(self, directory: Path, history: History):
        self.directory = directory
        missing = [name for name in ("training_iteration", CALLS) if name not in history]
        if len(history) and missing:
            raise NotRecomputableError(
                f"{directory}: the run's table has no column {missing[0]!r}, which a replay of the iterations needs. "
                "Train the run again."
            )
        self.commands = read_commands(directory)
        pairs = zip(history["training_iteration"], history[CALLS], strict=True) if len(history) else ()
        self._all = self._with_commands([(int(iteration), int(calls)) for iteration, calls in pairs])
        self.iterations = self._last_segment()
        self.first = next(iter(self.iterations), 1) - 1
        calls = (RESTORE, FROM_CHECKPOINT, SET_STATE)
        restores = [own for own in self._commands_before if own.call in calls and own.iteration_after == self.first]
        self.origin = restores[-1] if self.first and restores else None
        self.checkpoints = self._stored()

    def _with_commands(self, rows: list[tuple[int, int]]) -> list[RecordedIteration]:
        """Creates a `RecordedIteration` for each row of the history (table of metrics by iteration).

        Each entry of `rows` is ``(iteration, number of training steps)``. The `RecordedIteration` also contains the
        number of commands (recorded method calls) that the run executed before this iteration.
        """
        done, waiting, found = 0, list(self.commands), []
        for row, (iteration, calls) in enumerate(rows):
            # Iterations that raised an error have commands after them, but no row.
            while waiting and (waiting[0].iteration == done or done < waiting[0].iteration < iteration):
                done = waiting.pop(0).iteration_after
            found.append(RecordedIteration(iteration, calls, row, len(self.commands) - len(waiting)))
            done = iteration
            if waiting and waiting[0].iteration < done:
                raise NotRecomputableError(
                    f"{waiting[0].path}: the recorded call {waiting[0].call}() at iteration {waiting[0].iteration} "
                    "is out of order: the calls and the table rows before it already reach a later iteration. Restore "
                    "the run's files from a copy."
                )
        return found

    def _last_segment(self) -> dict[int, RecordedIteration]:
        start = 0
        for before, own in zip(self._all, self._all[1:], strict=False):
            if own.iteration != before.iteration + 1:
                start = own.row
        return {own.iteration: own for own in self._all[start:]}

    def _stored(self) -> dict[int, StoredCheckpoint]:
        found = {}
        for iteration, checkpoint in stored_checkpoints(self.directory).items():
            is_later = (checkpoint.num_commands or 0) >= self._began_at
            if self.first <= iteration <= self.last and (is_later or self._has_restored(checkpoint)):
                found[iteration] = checkpoint
        return found

    def _has_restored(self, checkpoint: StoredCheckpoint) -> bool:
        """Whether the recorded iterations begin with the state in `checkpoint`.

        Before these iterations, commands (recorded method calls) may have changed the run's iteration. True if the last
        of these commands restored this checkpoint completely. False if the command restored only one component of the
        checkpoint, such as ``"learner_group"``.
        """
        origin = self.origin
        if checkpoint.iteration != self.first or origin is None or origin.number != self._began_at:
            return False
        arguments = origin.encoded
        is_whole = origin.call in (RESTORE, FROM_CHECKPOINT) and arguments.get("component") is None
        return is_whole and arguments.get("checksum") == checkpoint_checksum(checkpoint.path)

    @property
    def _commands_before(self) -> list[Command]:
        """List of the commands (recorded method calls) before the first recorded iteration."""
        return self.commands[: self.iterations[self.first + 1].num_commands] if self.iterations else []

    @property
    def _began_at(self) -> int:
        """Line number in ``commands.jsonl`` of the command (recorded method call) after which the recorded iterations
        began.

        This is the last command that changed the run's iteration, such as a restore, before the recorded iterations
        began. Lines are counted from 1. The result is 0 without such a command.
        """
        return max((own.number for own in self._commands_before if own.iteration != own.iteration_after), default=0)

    @property
    def begins_with_config(self) -> bool:
        """Whether a replay can begin with the run's config, without any of the `checkpoints`.

        Such a replay builds the algorithm and repeats the recorded commands. This requires that the recorded iterations
        include the first row of the run's history, and begin with a new algorithm or with a state that a recorded
        command restored.
        """
        return len(self._all) == len(self.iterations) and (self.first == 0 or self.origin is not None)

    def num_commands_before(self, iteration: int) -> int:
        return self.recorded(iteration).num_commands

    def commands_at(self, checkpoint: StoredCheckpoint) -> int:
        if checkpoint.iteration == self.first:
            return max(checkpoint.num_commands or 0, self._began_at)
        if checkpoint.num_commands is not None:
            return checkpoint.num_commands
        return self.recorded(checkpoint.iteration).num_commands
