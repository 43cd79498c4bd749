"""Verification of a run or a population by recomputing it, and comparison of two runs."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_stack.checkpoints.newest import name_of
from jaxrl_stack.rewind.base_replay import BaseReplay
from jaxrl_stack.rewind.replay import recomputed, replay_of
from jaxrl_stack.runs.history import SETTINGS, History
from jaxrl_stack.runs.machine import machine_differences
from jaxrl_stack.runs.run import Run
from jaxrl_stack.runs.state_comparison import Difference, differences
from jaxrl_stack.runs.timeline import NotRecomputableError
from jaxrl_stack.utils.fingerprints import FINGERPRINT_COLUMNS

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig

EQUAL, DIFFERENT, NOT_COMPARABLE = 0, 1, 3
"""Exit codes."""

CLOCK_COLUMNS = re.compile(
    r"(?<!life)time(?!steps)|_since_restore|throughput|duration|(^|/)sample$|(^|/)perf/|(^|/)pid$|^date$|^hostname$"
)
"""Names of numbers that depend on the clock, the process or the machine."""


@dataclasses.dataclass(frozen=True)
class Verification:
    """Result of `verify`: the first difference between recomputed and recorded iterations.

    Attributes:
        name: Name of the run, or of the population's folder.
        first, last: First and last iteration of the comparison.
        changed: Changes of the run's files since they were written, one sentence each.
        machine: Facts in which this machine differs from the run's, one text each.
        iteration: First iteration that differs from the recorded one; None if there is none.
        member: First member of a population that differs in it; None for single runs, and if parameters are equal.
        difference: First leaf that differs; None without a full state to compare with.
        checkpoint: Iteration of the stored checkpoint whose leaves were compared; None without one.
        num_recomputed: Number of recomputed iterations that were compared.
    """

    name: str
    first: int
    last: int
    changed: tuple[str, ...] = ()
    machine: tuple[str, ...] = ()
    iteration: int | None = None
    difference: Difference | None = None
    checkpoint: int | None = None
    num_recomputed: int = 0
    member: int | None = None

    @property
    def exit_code(self) -> int:
        """Exit code of ``jaxrl verify``: 0 equal, 1 different, 3 not comparable on this machine."""
        if self.changed or self.iteration is not None:
            return DIFFERENT
        return NOT_COMPARABLE if self.machine else EQUAL

    def __str__(self) -> str:
        lines = [f"Changed: {text}" for text in self.changed]
        if self.iteration is not None:
            which = "" if self.member is None else f" of member {self.member}"
            lines.append(f"Iteration {self.iteration}{which} differs from the recorded one.")
            if self.checkpoint is None:
                lines.append(
                    f"The leaf is unknown, because no checkpoint at or after iteration {self.iteration} is stored."
                )
            elif self.difference is not None:
                lines.append(f"First differing leaf, in {name_of(self.checkpoint)}: {self.difference}")
            else:
                lines.append(
                    f"{name_of(self.checkpoint)} has the recomputed bits: the recorded fingerprint has changed."
                )
        elif self.machine and not self.changed:
            lines += [f"Not comparable here: {text}" for text in self.machine]
        elif not self.changed:
            which = f"iterations {self.first} to {self.last}"
            lines.append(f"Equal: {which} of {self.name} have the recorded bits ({self.num_recomputed} recomputed).")
        return "\n".join(lines)


def verify(
    run: Run | str | os.PathLike[str],
    first: int | None = None,
    last: int | None = None,
    *,
    config: AlgorithmConfig | None = None,
    allow: Iterable[Any] = (),
    progress: Callable[[int], object] = lambda iteration: None,
) -> Verification:
    """Recomputes iterations of a run or a population, and compares them with the recorded fingerprints (hashes of the
    parameters) and the stored checkpoints.

    It checks the files first: checksums of commands and stored checkpoints, and the settings in ``params.json`` and in
    the checkpoints of a run. Then it compares the fingerprint of each recomputed iteration (of each member in a
    population), and all leaves of the state where a checkpoint is stored.

    Args:
        run: The run, or the folder of a run or a population, such as ``results_dir/population``.
        first, last: First and last iteration; None for those of the run.
        config, allow: See `Run.at`.
        progress: Called with each compared iteration.

    Raises:
        NotRecomputableError: If an iteration never happened, the run cannot be repeated, or the last iteration has
            neither a fingerprint nor a checkpoint.
    """
    name = run.name if isinstance(run, Run) else Path(run).absolute().name
    try:
        replay = replay_of(run, config=config, allow=allow)
    except NotRecomputableError:
        raise
    except ValueError as error:
        return Verification(name, first or 0, last or 0, changed=(str(error),))
    first = replay.timeline.first_repeatable if first is None else first
    last = replay.timeline.last if last is None else last
    _check_is_comparable(replay, first, last)
    machine = machine_differences(replay.origin)
    found = Verification(name, first, last, changed=tuple(replay.changes(last)), machine=tuple(machine))
    if found.changed or found.machine:
        return found
    with replay.running():
        replay.start(first - 1)
        machine = machine_differences(replay.origin, replay.devices)
        return dataclasses.replace(found, machine=tuple(machine)) if machine else _compared(replay, found, progress)


def verify_population(
    directory: str | os.PathLike[str],
    first: int | None = None,
    last: int | None = None,
    *,
    config: AlgorithmConfig | None = None,
    allow: Iterable[Any] = (),
    progress: Callable[[int], object] = lambda iteration: None,
) -> Verification:
    """Compares recomputed iterations of a population with the recorded fingerprints (hashes of the parameters) and the
    stored checkpoints.

    Calls `verify` with the population's folder, which contains the fingerprints and checkpoints.

    Args:
        directory: Folder of the population, such as ``results_dir/population``.
        first, last, config, allow, progress: See `verify`.
    """
    return verify(directory, first, last, config=config, allow=allow, progress=progress)


def _check_is_comparable(replay: BaseReplay[Any, Any], first: int, last: int) -> None:
    """Raises an error if the iterations `first` to `last` cannot be compared with the recorded run.

    This is the case if `first` or `last` is not a recorded iteration, or if `last` is before `first`. It is also the
    case if iteration `last` has neither a fingerprint (a hash of the parameters) nor a stored checkpoint to compare
    with.
    """
    timeline = replay.timeline
    for iteration in (first, last):
        timeline.recorded(iteration)
    if first > last:
        raise NotRecomputableError(f"Iterations {first} to {last}: the first must not be after the last. Swap them.")
    if last in timeline.checkpoints or replay.recorded_fingerprints(last):
        return
    stored = [number for number in timeline.checkpoints if first <= number <= last]
    fix = f"End with a stored checkpoint: --to {max(stored)}." if stored else "Choose iterations with a checkpoint."
    raise NotRecomputableError(
        f"{timeline.directory}: iteration {last} has neither a fingerprint (a hash of the parameters) nor a stored "
        f"checkpoint to compare with. {fix}"
    )


def _compared(replay: BaseReplay[Any, Any], found: Verification, progress: Callable[[int], object]) -> Verification:
    """Repeats training iterations, and compares each with the recorded run, up to the first difference.

    Compares each iteration with its recorded fingerprints (hashes of the parameters, one for each member of a
    population) and with its checkpoint, if one is stored. Returns a copy of `found` that contains the first difference,
    if any, and the number of compared iterations.

    If a fingerprint differs and the iteration has no checkpoint, the first differing leaf is a leaf of the next stored
    checkpoint.

    Args:
        replay: Replay before the first iteration.
        found: The verification so far.
        progress: See `verify`.
    """
    trained, checkpoints, num = replay.trained, replay.timeline.checkpoints, 0
    while trained.iteration < found.last:
        replay.step()
        iteration = trained.iteration
        if iteration < found.first:
            continue
        num += 1
        progress(iteration)
        members, checkpoint = replay.different_members(iteration), checkpoints.get(iteration)
        if members:
            later = [number for number in checkpoints if number >= iteration]
            checkpoint = checkpoints[min(later)] if later else None
        leaves = []
        if checkpoint is not None:
            while trained.iteration < checkpoint.iteration:
                replay.step()
            replay.catch_up_with(checkpoint)
            leaves = differences(replay.state(), checkpoint.state())
        if members or leaves:
            return dataclasses.replace(
                found,
                iteration=iteration,
                member=members[0] if members else None,
                difference=leaves[0] if leaves else None,
                checkpoint=None if checkpoint is None else checkpoint.iteration,
                num_recomputed=num,
            )
    return dataclasses.replace(found, num_recomputed=num)


# --------------------------------------------------------------------------------------------------------- two runs


@dataclasses.dataclass(frozen=True)
class RunDifference:
    """Result of `diff`: the first iteration in which two runs differ, and the first leaf of the training state that
    differs after this iteration.

    Attributes:
        names: Names of the runs.
        iteration: First iteration that differs; None if all common iterations are equal.
        column: First column that differs, unless it is the fingerprint.
        difference: First leaf of the states after that iteration that differs; None if unknown.
        largest: Leaf with the largest difference of numbers.
        num_leaves: Number of leaves that differ.
        why_no_leaf: Reason why no leaf is known; None if it is.
        num_iterations: Number of common iterations.
    """

    names: tuple[str, str]
    iteration: int | None = None
    column: str | None = None
    difference: Difference | None = None
    largest: Difference | None = None
    num_leaves: int = 0
    why_no_leaf: str | None = None
    num_iterations: int = 0

    @property
    def exit_code(self) -> int:
        """Exit code of ``jaxrl diff``: 0 equal, 1 different."""
        return EQUAL if self.iteration is None else DIFFERENT

    def __str__(self) -> str:
        if self.iteration is None:
            return f"Equal: {self.names[0]} and {self.names[1]} in all {self.num_iterations} common iterations."
        what = f", in {self.column}" if self.column else ""
        lines = [f"Iteration {self.iteration} is the first that differs{what}."]
        if self.difference is not None:
            lines.append(f"First differing leaf: {self.difference}")
            if self.largest is not None and self.largest != self.difference:
                lines.append(f"Largest difference: {self.largest}")
            lines.append(f"Differing leaves: {self.num_leaves}")
        else:
            lines.append(f"The leaf is unknown: {self.why_no_leaf}")
        return "\n".join(lines)


def diff(run: Run, other: Run, *, config: AlgorithmConfig | None = None, allow: Iterable[Any] = ()) -> RunDifference:
    """Finds the first iteration in which two runs differ, and the first leaf of the training state that differs after
    this iteration.

    Iterations are compared by their fingerprints (hashes of the parameters) or, if a run has no fingerprints, by the
    metrics that both runs have. Both runs are then recomputed up to the first iteration that differs, and their states
    are compared.

    Args:
        run, other: The runs.
        config, allow: See `Run.at`; for both.

    Raises:
        ValueError: If no iteration number occurs in the histories of both runs.
    """
    names = (run.name, other.name)
    rows = [_rows(own.history) for own in (run, other)]
    common = sorted(rows[0].keys() & rows[1].keys())
    if not common:
        raise ValueError(
            f"The runs {names[0]} and {names[1]} cannot be compared: no iteration number occurs in both histories. "
            f"Choose two runs that both contain, for example, iteration 1."
        )
    columns = _compared_columns(run.history, other.history)
    tables = [{column: own.history[column] for column in columns} for own in (run, other)]
    for iteration in common:
        for column in columns:
            one, two = (table[column][own[iteration]] for table, own in zip(tables, rows, strict=True))
            if not (one == two or (np.isnan(one) and np.isnan(two))):
                found = RunDifference(names, iteration, None if column in FINGERPRINT_COLUMNS else column)
                return _with_leaves(found, (run, other), {"config": config, "allow": tuple(allow)})
    return RunDifference(names, num_iterations=len(common))


def _rows(history: History) -> dict[int, int]:
    """Maps each iteration number to the index of its last row in the run's table of metrics."""
    return {int(number): row for row, number in enumerate(history["training_iteration"])} if len(history) else {}


def _compared_columns(one: History, two: History) -> list[str]:
    if all(column in history for column in FINGERPRINT_COLUMNS for history in (one, two)):
        return list(FINGERPRINT_COLUMNS)
    shared = [name for name in one.columns if name in two and not name.startswith((SETTINGS, "evaluation/"))]
    return [name for name in shared if not CLOCK_COLUMNS.search(name)]


def _with_leaves(found: RunDifference, runs: tuple[Run, Run], options: Mapping[str, Any]) -> RunDifference:
    assert found.iteration is not None
    states = []
    for run in runs:
        try:
            replay = recomputed(run, found.iteration, **options)
        except ValueError as error:
            return dataclasses.replace(found, why_no_leaf=str(error))
        with replay.running():
            states.append(replay.trained.get_state())
    leaves = differences(*states)
    if not leaves:
        return dataclasses.replace(
            found, why_no_leaf="recomputed here, both runs are equal. They are of other machines or versions."
        )
    numeric = [leaf for leaf in leaves if leaf.largest is not None and np.isfinite(leaf.largest)]
    largest = max(numeric, key=lambda leaf: leaf.largest or 0.0, default=None)
    return dataclasses.replace(found, difference=leaves[0], largest=largest, num_leaves=len(leaves))
