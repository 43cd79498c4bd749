"""Verification of a run by recomputing it, and comparison of two runs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jaxrl_stack.algorithms.algorithm import Algorithm
from jaxrl_stack.algorithms.config_store import NOT_IN_CHECKPOINTS
from jaxrl_stack.algorithms.stored_run import stored_config
from jaxrl_stack.checkpoints.checkpointable import opened, read_state
from jaxrl_stack.checkpoints.checksums import changed_files
from jaxrl_stack.checkpoints.names import ALGORITHM_METADATA_FILE
from jaxrl_stack.checkpoints.newest import name_of
from jaxrl_stack.rewind.base_replay import BaseReplay
from jaxrl_stack.rewind.replay import Replay, as_built, folder_of, recomputed
from jaxrl_stack.runs.commands import ADD_MODULE, REMOVE_MODULE, Command
from jaxrl_stack.runs.history import SETTINGS, History
from jaxrl_stack.runs.machine import machine_differences
from jaxrl_stack.runs.run import Run
from jaxrl_stack.runs.state_comparison import Difference, differences
from jaxrl_stack.runs.timeline import NotRecomputableError, StoredCheckpoint, Timeline
from jaxrl_stack.runs.writers import CONFIG_FILE, as_json
from jaxrl_stack.utils.class_paths import ClassLoader
from jaxrl_stack.utils.fingerprints import FINGERPRINT, fingerprint_of

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.rewind.population_timeline import PopulationTimeline

EQUAL, DIFFERENT, NOT_COMPARABLE = 0, 1, 3
"""Exit codes."""

_COLUMNS = (f"{FINGERPRINT}/low", f"{FINGERPRINT}/high")
_OF_THE_CLOCK = re.compile(
    r"(?<!life)time(?!steps)|_since_restore|throughput|duration|(^|/)sample$|(^|/)perf/|(^|/)pid$|^date$|^hostname$"
)
_NOT_COMPARED = {"policy_mapping_fn", "log_level", *NOT_IN_CHECKPOINTS}
_OF_MODULES = {"policies", "policies_to_train", "_rl_module_spec", "algorithm_config_overrides_per_module"}
"""Settings that `add_module` and `remove_module` change."""


@dataclasses.dataclass(frozen=True)
class Verification:
    """Result of `verify`: the first difference between recomputed and recorded iterations.

    Attributes:
        name: Name of the run.
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


class FingerprintDifference(NamedTuple):
    """Difference between a recomputed and a recorded fingerprint (hash) of parameters.

    Attributes:
        member: First member of a population that differs; None for single runs.
    """

    member: int | None = None


def verify(
    run: Run,
    first: int | None = None,
    last: int | None = None,
    *,
    config: AlgorithmConfig | None = None,
    allow: Iterable[Any] = (),
    progress: Callable[[int], object] = lambda iteration: None,
) -> Verification:
    """Recomputes iterations of a run and compares them with what was recorded.

    It checks the files first: checksums of commands and stored checkpoints, and the settings in ``params.json`` and in
    the checkpoints. Then it compares the fingerprint of each recomputed iteration, and all leaves of the state where a
    checkpoint is stored.

    Args:
        run: The run.
        first, last: First and last iteration; None for those of the run.
        config, allow: See `Run.at`.
        progress: Called with each compared iteration.

    Raises:
        NotRecomputableError: If an iteration never happened, the run cannot be repeated, or the last iteration has
            neither a fingerprint nor a checkpoint.
    """
    folder = folder_of(run)
    try:
        timeline = Timeline(folder, run.history)
    except NotRecomputableError:
        raise
    except ValueError as error:
        return Verification(run.name, first or 0, last or 0, changed=(str(error),))
    first = timeline.first + 1 if first is None else first
    last = timeline.last if last is None else last
    check_range(timeline, first, last)
    _check_is_comparable(timeline, run.history, first, last)
    found = Verification(run.name, first, last, machine=tuple(machine_differences(run.origin)))
    changed = [
        *changed_commands(timeline.commands),
        *changed_checkpoints(timeline, last),
        *_changed_settings(timeline, run, allow),
    ]
    if changed or found.machine:
        return dataclasses.replace(found, changed=tuple(changed))
    replay = Replay(run, config=config, allow=allow)
    with replay.running():
        replay.start(first - 1)
        learner = replay.trained.learner
        machine = machine_differences(run.origin, None if learner is None else learner.devices)
        if machine:
            return dataclasses.replace(found, machine=tuple(machine))
        return compared(
            replay,
            found,
            progress,
            difference=lambda iteration: _fingerprint_difference(replay, run.history, iteration),
            state=replay.trained.get_state,
        )


def _fingerprint_difference(replay: Replay, history: History, iteration: int) -> FingerprintDifference | None:
    recorded = recorded_fingerprint(history, replay.timeline.recorded(iteration).row)
    is_equal = recorded is None or recorded == present_fingerprint(replay.trained)
    return None if is_equal else FingerprintDifference()


def check_range(timeline: Timeline | PopulationTimeline, first: int, last: int) -> None:
    """Raises NotRecomputableError for iterations that are not recorded, or if `last` is before `first`."""
    for iteration in (first, last):
        timeline.recorded(iteration)
    if first > last:
        raise NotRecomputableError(f"Iterations {first} to {last}: the first must not be after the last. Swap them.")


def _check_is_comparable(timeline: Timeline, history: History, first: int, last: int) -> None:
    """Raises an error if the last iteration has neither a fingerprint nor a checkpoint to compare with."""
    if last in timeline.checkpoints or recorded_fingerprint(history, timeline.recorded(last).row) is not None:
        return
    stored = [number for number in timeline.checkpoints if first <= number <= last]
    fix = f"End with a stored checkpoint: --to {max(stored)}." if stored else "Choose iterations with a checkpoint."
    raise NotRecomputableError(
        f"{timeline.directory}: iteration {last} has neither a fingerprint (a hash of the parameters) nor a stored "
        f"checkpoint to compare with. {fix}"
    )


def compared(
    replay: BaseReplay[Any, Any],
    found: Verification,
    progress: Callable[[int], object],
    *,
    difference: Callable[[int], FingerprintDifference | None],
    state: Callable[[], Mapping[str, Any]],
) -> Verification:
    """Repeats iterations of a run or population, and compares each with its recorded fingerprint and, if it has one,
    its stored checkpoint.

    If only a fingerprint differs, the first differing leaf is that of the next stored checkpoint.

    Args:
        replay: Replay before the first iteration.
        found: The verification so far.
        progress: See `verify`.
        difference: Compares the present fingerprints with those of an iteration; None if they are equal or unknown.
        state: Returns the present state, with the parts of a stored checkpoint.
    """
    trained, num = replay.trained, 0
    while trained.iteration < found.last:
        replay.step()
        iteration = trained.iteration
        if iteration < found.first:
            continue
        num += 1
        progress(iteration)
        differing, checkpoints = difference(iteration), replay.timeline.checkpoints
        checkpoint = checkpoints.get(iteration)
        if differing is not None:
            later = [number for number in checkpoints if number >= iteration]
            checkpoint = checkpoints[min(later)] if later else None
        leaves = []
        if checkpoint is not None:
            while trained.iteration < checkpoint.iteration:
                replay.step()
            replay.catch_up_with(checkpoint)
            leaves = differences(state(), stored_state(checkpoint))
        if differing is not None or leaves:
            return dataclasses.replace(
                found,
                iteration=iteration,
                member=None if differing is None else differing.member,
                difference=leaves[0] if leaves else None,
                checkpoint=None if checkpoint is None else checkpoint.iteration,
                num_recomputed=num,
            )
    return dataclasses.replace(found, num_recomputed=num)


def stored_state(checkpoint: StoredCheckpoint) -> dict[str, Any]:
    """Reads the training state in a checkpoint, and checks its arrays."""
    with opened(checkpoint.path) as stored:
        return read_state(stored, is_weights=False)


def recorded_fingerprint(history: History, row: int) -> tuple[int, int] | None:
    """Recorded fingerprint (hash) of the parameters after an iteration; None if none is recorded.

    Args:
        history: Table of the run.
        row: Row of the iteration.
    """
    if any(column not in history for column in _COLUMNS):
        return None
    low, high = (history[column][row] for column in _COLUMNS)
    return None if np.isnan(low) or np.isnan(high) else (int(low), int(high))


def present_fingerprint(algorithm: Algorithm) -> tuple[int, int] | None:
    """Computes the fingerprint (hash) of an algorithm's present parameters; None if its learners are actors."""
    if algorithm.learner is None:
        return None
    found = fingerprint_of(algorithm.learner.state.params)
    return found["low"], found["high"]


# ---------------------------------------------------------------------------------------------------- changed files


def changed_commands(commands: Iterable[Command]) -> Iterable[str]:
    """Yields a sentence for each command (recorded call) whose stored arrays have changed."""
    for command in commands:
        try:
            command.check_arrays()
        except ValueError as error:
            yield str(error)


def changed_checkpoints(
    timeline: Timeline | PopulationTimeline, last: int, *, metadata_file: str = ALGORITHM_METADATA_FILE
) -> Iterable[str]:
    """Yields a sentence for each problem of stored checkpoints of iterations up to `last`, such as changed files."""
    for iteration, checkpoint in timeline.checkpoints.items():
        if iteration > last:
            continue
        files = changed_files(checkpoint.path, metadata_file)
        if files:
            yield f"{checkpoint.path}: {', '.join(files)} differ from the written files."
            continue
        try:
            stored_state(checkpoint)
        except ValueError as error:
            yield str(error)
        if checkpoint.num_commands is not None and checkpoint.num_commands > len(timeline.commands):
            yield (
                f"{timeline.directory}: {name_of(iteration)} follows {checkpoint.num_commands} commands, and "
                f"commands.jsonl has {len(timeline.commands)}."
            )


def _changed_settings(timeline: Timeline, run: Run, allow: Iterable[Any]) -> Iterable[str]:
    """Yields a sentence for each setting that differs between ``params.json`` and the first stored checkpoint."""
    if not timeline.checkpoints or not run.settings:
        return
    checkpoint = timeline.checkpoints[min(timeline.checkpoints)]
    try:
        stored = _plain_settings(checkpoint, allow)
    except ValueError:  # which needs code that only `config` has
        return
    before = timeline.commands[: checkpoint.num_commands or 0]
    has_other_modules = any(command.call in (ADD_MODULE, REMOVE_MODULE) for command in before)
    not_compared = _NOT_COMPARED | (_OF_MODULES if has_other_modules else set())
    for name, value in run.settings.items():
        if name not in not_compared and name in stored and stored[name] != value:
            yield f"{run.folder}/{CONFIG_FILE}: {name}={value!r}, and {checkpoint.path.name} has {stored[name]!r}."


def _plain_settings(checkpoint: StoredCheckpoint, allow: Iterable[Any]) -> Mapping[str, Any]:
    """Reads the settings at the beginning of the run from a checkpoint, in the form of ``params.json``."""

    with opened(checkpoint.path) as stored:
        loader = ClassLoader(allow, own=Algorithm, written_here=stored.code_written_here())
        config, missing = stored_config(stored, loader, {})
    plain = as_json(as_built(config, checkpoint).to_dict())
    return {name: value for name, value in plain.items() if name.removeprefix("_") not in missing}


# --------------------------------------------------------------------------------------------------------- two runs


@dataclasses.dataclass(frozen=True)
class RunDifference:
    """Result of `diff`: the first iteration and leaf in which two runs differ.

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
    """Finds the first iteration and leaf in which two runs differ.

    The first iteration is the first with another fingerprint, or with other numbers if a run has no fingerprints. Both
    runs are then recomputed up to it, and their states are compared.

    Args:
        run, other: The runs.
        config, allow: See `Run.at`; for both.

    Raises:
        ValueError: If the runs have no common iteration.
    """
    names = (run.name, other.name)
    rows = [_rows(own.history) for own in (run, other)]
    common = sorted(rows[0].keys() & rows[1].keys())
    if not common:
        raise ValueError(
            f"{names[0]} and {names[1]} have no common iteration to compare. Choose runs with an iteration of the "
            f"same number."
        )
    columns = _compared_columns(run.history, other.history)
    tables = [{column: own.history[column] for column in columns} for own in (run, other)]
    for iteration in common:
        for column in columns:
            one, two = (table[column][own[iteration]] for table, own in zip(tables, rows, strict=True))
            if not (one == two or (np.isnan(one) and np.isnan(two))):
                found = RunDifference(names, iteration, None if column in _COLUMNS else column)
                return _with_leaves(found, (run, other), {"config": config, "allow": tuple(allow)})
    return RunDifference(names, num_iterations=len(common))


def _rows(history: History) -> dict[int, int]:
    """Maps each iteration to the index of its last row in the run's table."""
    return {int(number): row for row, number in enumerate(history["training_iteration"])} if len(history) else {}


def _compared_columns(one: History, two: History) -> list[str]:
    if all(column in history for column in _COLUMNS for history in (one, two)):
        return list(_COLUMNS)
    shared = [name for name in one.columns if name in two and not name.startswith((SETTINGS, "evaluation/"))]
    return [name for name in shared if not _OF_THE_CLOCK.search(name)]


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
