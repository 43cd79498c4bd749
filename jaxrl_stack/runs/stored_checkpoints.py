"""Checkpoints in the folder of a run. Settings such as ``reporting(checkpoint_frequency=...)`` determine which
checkpoints are saved and which are removed.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from jaxrl_stack.checkpoints.folder_replacement import remove
from jaxrl_stack.checkpoints.newest import name_of
from jaxrl_stack.checkpoints.saves import saves
from jaxrl_stack.utils.devices import of_first_process
from jaxrl_stack.utils.fingerprints import FINGERPRINT_COLUMNS
from jaxrl_stack.utils.memory import format_bytes
from jaxrl_stack.utils.notices import notice_once

if TYPE_CHECKING:
    from jaxrl_stack.runs.history import History
    from jaxrl_stack.runs.member_history import MemberHistory

WITHOUT_FOLDER = {
    "results_dir": None,
    "keep_best": False,
    "checkpoint_frequency": None,
    "num_to_keep": None,
    "checkpoint_max_bytes": None,
}
"""Settings of `reporting` for a run that writes no files."""

LARGEST_SHARE = 0.02
"""Share of a run's time that saving takes at most with ``num_to_keep="sparse"``."""


class _Kept(NamedTuple):
    """Complete checkpoint in the folder of a run.

    Attributes:
        path: Folder of the checkpoint.
        number: Number of this save among all saves of the run, from 1.
        num_bytes: Size of its files.
        mark: Mark of its iteration in the history of the run.
    """

    path: Path
    number: int
    num_bytes: int
    mark: object


class _Pending(NamedTuple):
    """Checkpoint that a thread is writing.

    Attributes:
        path: Folder of the checkpoint.
        iteration: Iteration of the checkpoint.
        seconds: Time that the run has waited for it.
        mark: Mark of its iteration in the history of the run.
        course: Number of restores before it.
    """

    path: Path
    iteration: int
    seconds: float
    mark: object
    course: int


class StoredCheckpoints:
    """Saves checkpoints of a run in its folder, and removes old ones as ``num_to_keep`` and other settings require.

    One checkpoint is written at a time, in the background. The new one is complete before others are removed. Only
    checkpoints that this object has saved are removed.

    With ``num_to_keep="sparse"``, saving takes at most 2 % of the run's time: after a checkpoint, the next one waits 50
    times as long as it took, and a later iteration is saved instead. The first and the last one do not wait.

    Args:
        save: Function that writes a checkpoint to a path in the background:
            ``lambda path: algorithm.save_to_path(path, blocking=False)``. All joined processes call it.
        frequency: Iterations from one checkpoint to the next; None saves only what `save_last` asks for.
        num_to_keep: Number of the newest checkpoints to keep; "sparse" also keeps older ones at distances that double;
            None keeps all.
        max_bytes: Maximum size of all checkpoints together, of which the newest is always kept; None is no limit.
        mark: Function that returns the mark of an iteration in the run's present history. After a restore, checkpoints
            with another mark belong to another history.
    """

    def __init__(
        self,
        save: Callable[[str], object],
        *,
        frequency: int | None = None,
        num_to_keep: int | Literal["sparse"] | None = None,
        max_bytes: int | None = None,
        mark: Callable[[int], object] = lambda iteration: None,
    ):
        self.frequency, self._num_to_keep, self._max_bytes = frequency, num_to_keep, max_bytes
        self._save, self._mark = save, mark
        self._kept: dict[int, _Kept] = {}
        self._pending: _Pending | None = None
        self._num_saves, self._next_at = 0, 0.0
        # Iterations: the last one saved or restored, the one before the first, and those of a history that a restore
        # has given up.
        self._due_after = self._base = 0
        self._given_up: set[int] = set()
        # Number of restores so far.
        self._course = 0
        # Whether a save has begun since the last wait; joined processes agree on it.
        self._may_be_writing = False

    @property
    def paths(self) -> dict[int, Path]:
        """Folders of the complete checkpoints by iteration, the oldest first."""
        return {iteration: kept.path for iteration, kept in sorted(self._kept.items())}

    def find(self, iteration: int) -> Path | None:
        """Finds the folder of an iteration's complete checkpoint. None without such a checkpoint, or if a restore has
        removed the iteration from the run's history.
        """
        return None if iteration in self._given_up else self.paths.get(iteration)

    def after_iteration(self, folder: Path | None, iteration: int) -> None:
        """Saves a checkpoint of the run if the checkpoint settings of the run require one after this iteration, for
        example every tenth iteration.

        Args:
            folder: Folder of the run; None in joined processes that do not write.
            iteration: Number of the iteration that has ended.
        """
        if self.frequency is None or iteration // self.frequency <= self._due_after // self.frequency:
            return
        if self._num_to_keep != "sparse" or of_first_process(lambda: "yes" * self._may_save_again()) == "yes":
            self._start(folder, iteration)

    def save_last(self, folder: Path | None, iteration: int) -> Path:
        """Saves a checkpoint of the last iteration of a run, unless it exists already, and waits until it is written.

        Args:
            folder, iteration: See `after_iteration`.

        Returns:
            Folder of the checkpoint.
        """
        self.close()
        if of_first_process(lambda: "yes" * (self.find(iteration) is not None)) != "yes":
            self._start(folder, iteration)
            self.close()
        return Path(of_first_process(lambda: str(_place(folder, iteration))))

    def close(self) -> None:
        """Waits until the checkpoint that is being written is complete.

        Raises:
            OSError: If it cannot be written.
            RuntimeError: In other joined processes than the first, if it cannot be written.
        """
        if self._may_be_writing:
            self._may_be_writing = False
            of_first_process(lambda: self._complete() or "")

    def restored(self, iteration: int) -> None:
        """Marks outdated checkpoints for removal; called when the run continues from a restored state.

        Outdated checkpoints are checkpoints of later iterations, and checkpoints that do not belong to the history of
        the restored state (see `mark_of`).

        These checkpoints are removed when the next checkpoint is complete.

        Args:
            iteration: Iteration of the restored state.
        """
        marks = {own: kept.mark for own, kept in self._kept.items()}
        if self._pending is not None:
            marks[self._pending.iteration] = self._pending.mark
        self._given_up = {own for own, mark in marks.items() if own > iteration or mark != self._mark(own)}
        if marks.keys() == self._given_up:
            self._base = iteration
        self._due_after = iteration
        self._course += 1

    # ----------------------------------------------------------------------------------------------------- saving

    def _may_save_again(self) -> bool:
        """Whether the next checkpoint may be saved now, with ``num_to_keep="sparse"``.

        False while a checkpoint is being written, and afterwards for 50 times as long as saving this checkpoint took:
        saving then takes at most 2 % (`LARGEST_SHARE`) of the run's time.
        """
        if self._pending is not None and saves.finished(os.path.realpath(self._pending.path)) is not None:
            self._complete()
        return self._pending is None and time.perf_counter() >= self._next_at

    def _start(self, folder: Path | None, iteration: int) -> None:
        self.close()
        path = of_first_process(lambda: str(_place(folder, iteration)))
        started = time.perf_counter()
        self._may_be_writing = True
        self._save(path)
        self._due_after = iteration
        self._num_saves += 1
        if folder is not None:
            seconds = time.perf_counter() - started
            self._pending = _Pending(Path(path), iteration, seconds, self._mark(iteration), self._course)

    def _complete(self) -> None:
        """Waits until the checkpoint that is being written is complete, then removes checkpoints that are not needed.

        Removes two kinds of checkpoints: checkpoints that `num_to_keep` and `max_bytes` do not keep, and checkpoints
        that `restored` has marked for removal. If the run was restored after this save began, the marked checkpoints
        stay until the next save is complete. If the save has failed, removes nothing.

        Raises:
            OSError: If the checkpoint cannot be written, unless another call has already raised this error.
        """
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        key = os.path.realpath(pending.path)
        saves.wait(key)
        finished = saves.finished(key)
        if finished is not None:
            self._next_at = finished.at + (pending.seconds + finished.seconds) / LARGEST_SHARE
            if finished.has_failed:  # which another call has raised
                return
        self._kept[pending.iteration] = _Kept(pending.path, self._num_saves, _num_bytes(pending.path), pending.mark)
        if pending.course == self._course:
            self._remove(self._given_up - {pending.iteration})
            self._given_up = set()
        self._remove_others()

    # --------------------------------------------------------------------------------------------------- removing

    def _remove_others(self) -> None:
        """Removes all checkpoints that the settings `num_to_keep` and `max_bytes` do not keep."""
        if self._num_to_keep == "sparse":
            self._remove(self._kept.keys() - sparse({own.number: i for i, own in self._kept.items()}))
        elif isinstance(self._num_to_keep, int):
            self._remove(sorted(self._kept)[: -self._num_to_keep])
        if self._max_bytes is not None:
            self._remove_largest(self._max_bytes)

    def _remove_largest(self, max_bytes: int) -> None:
        """Removes checkpoints, but never the newest, until the remaining ones take at most `max_bytes`. The oldest is
        removed first; with ``num_to_keep="sparse"``, the one that `least_needed` selects.
        """
        number = len(self._kept)
        while len(self._kept) > 1 and sum(own.num_bytes for own in self._kept.values()) > max_bytes:
            self._remove([self._least_needed()])
        size = self._kept[max(self._kept)].num_bytes
        if len(self._kept) < number or size > max_bytes:
            self._notice_how_few(max_bytes, size)

    def _least_needed(self) -> int:
        return least_needed(self._kept, self._base) if self._num_to_keep == "sparse" else min(self._kept)

    def _notice_how_few(self, max_bytes: int, size: int) -> None:
        newest, number, limit = max(self._kept), len(self._kept), format_bytes(max_bytes)
        distance = max(after - before for before, after in itertools.pairwise([self._base, *sorted(self._kept)]))
        kept = f"{number} checkpoint{'s' * (number > 1)} of {format_bytes(size)}"
        more = format_bytes(4 * max(max_bytes, size))
        notice_once(
            f"reporting(checkpoint_max_bytes={limit!r}) keeps {kept}: after iteration {newest}, a rewind repeats up to "
            f"{distance - 1} iterations. To keep more: checkpoint_max_bytes={more!r}.",
            key=f"checkpoint_max_bytes of {self._kept[newest].path.parent}",
        )

    def _remove(self, iterations: Collection[int]) -> None:
        for iteration in iterations:
            if iteration in self._kept:
                remove(self._kept.pop(iteration).path)


def sparse(iterations: Mapping[int, int]) -> set[int]:
    """Selects the checkpoints to keep: the newest, and older ones at distances that double as they get older. Returns
    their iterations.

    Save number n is kept while fewer than ``2 * 2**k`` saves follow, for the largest power ``2**k`` that divides n. Of
    100 saves, these are 64, 80, 88, 96, 98, 99 and 100.

    Args:
        iterations: ``{number of the save, from 1: iteration}``.
    """
    newest = max(iterations)
    return {own for number, own in iterations.items() if newest - number < 2 * (number & -number)}


def least_needed(iterations: Collection[int], base: int = 0) -> int:
    """Selects the checkpoint to remove, never the newest: the one with the smallest
    ``(gap between its neighbours) / (its age)``, both in iterations. Returns its iteration.

    Args:
        iterations: At least two.
        base: Iteration before the first one of the run.
    """
    ordered = [base, *sorted(iterations)]
    gaps = {
        own: (after - before) / (ordered[-1] - own)
        for before, own, after in zip(ordered, ordered[1:], ordered[2:], strict=False)
    }
    return min(gaps, key=lambda own: gaps[own])


def mark_of(history: History | MemberHistory, num_before_last: int) -> bytes | None:
    """Returns bytes that identify an iteration of a run.

    The bytes contain the fingerprint (hash) of the parameters, as stored in the run's history. If the history has no
    fingerprint for this iteration, the bytes contain the time from the start of the run to the iteration. If the bytes
    of an iteration have changed since its checkpoint was saved, the checkpoint no longer belongs to the run's history.

    Args:
        history: Table of the run.
        num_before_last: Distance of the iteration from the last one.

    Returns:
        The mark; None if the history does not have the iteration.
    """
    row = len(history) - 1 - num_before_last
    if not 0 <= row < len(history):
        return None
    mark = np.array([history.cell(column, row) for column in FINGERPRINT_COLUMNS])
    if np.isnan(mark).all():
        mark = np.array(history.cell("time_total_s", row))
    return np.nan_to_num(mark, nan=-1.0).tobytes()


def _place(folder: Path | None, iteration: int) -> Path:
    assert folder is not None, "the first process writes"
    return folder / name_of(iteration)


def _num_bytes(folder: Path) -> int:
    """Size of all files below a folder."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
