"""Commands of a run, recorded in ``commands.jsonl``: method calls that change the training state between two
iterations.

A line is a JSON object: ``iteration`` (finished iterations at the call), ``call``, ``arguments``, ``iteration_after``,
``reason`` (why the call cannot be repeated, or null) and ``crc32``, which covers the line and all lines before it.
Arrays of the arguments are in ``commands/000001.safetensors`` for the first line, each with a checksum in its line.

Calls of callbacks inside of `train` are no commands: a repeated iteration calls the callbacks again. An iteration that
raised an error is a command ``train`` with a reason.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl_stack.checkpoints.array_file import read_arrays, write_arrays
from jaxrl_stack.checkpoints.plain_data import Decoder, Encoder, array_nodes, checksum
from jaxrl_stack.utils.class_paths import ClassLoader

COMMANDS_FILE, COMMANDS_FOLDER = "commands.jsonl", "commands"

CHANGE_SETTINGS, SET_WEIGHTS, SET_STATE = "change_settings", "set_weights", "set_state"
ADD_MODULE, REMOVE_MODULE, CHANGE_MAPPING = MODULE_CHANGES = ("add_module", "remove_module", "change_mapping")
TRAIN = "train"
"""Call of an iteration that raised an error; other iterations are rows of the table."""
RESTORE, FROM_CHECKPOINT = "restore_from_path", "from_checkpoint"
COPY, KEEP, CONTINUE_FROM = "copy", "keep", "continue_from"
"""Commands of populations, which also have `CHANGE_SETTINGS` and `SET_STATE`."""


class CommandLog:
    """Records the commands of an algorithm: method calls that change its training state between two iterations.

    Args:
        is_kept: Whether the run has a folder. Otherwise nothing is recorded.

    Attributes:
        count: Number of recorded commands.
    """

    def __init__(self, *, is_kept: bool):
        self._is_kept = is_kept
        self._depth = 0
        self.count = 0
        self._crc32 = 0
        self._directory: Path | None = None
        self._waiting: list[tuple[str, dict[str, np.ndarray]]] = []

    @contextlib.contextmanager
    def repeated(self) -> Iterator[None]:
        """Context manager in which method calls are not recorded as commands.

        The context manager encloses recorded calls, iterations and callbacks: if one of these is repeated, it makes the
        method calls inside again.
        """
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    @contextlib.contextmanager
    def around(
        self, algorithm: Any, call: str, arguments: Mapping[str, Any], *, reason: str | None = None
    ) -> Iterator[None]:
        """Context manager that records the enclosed method call in the command log, if the call succeeds.

        The method changes the training state. Calls inside `train` or inside another recorded call are not recorded.

        Args:
            algorithm: The algorithm; its ``iteration`` is recorded before and after the call.
            call: Name of the method.
            arguments: Arguments, which `Encoder` supports.
            reason: Why the call cannot be repeated; None if it can.
        """
        if self._depth or not self._is_kept:
            yield
            return
        iteration, encoder = algorithm.iteration, Encoder(leave_out=True)
        # Before the call, which may donate or change the arguments.
        encoded = encoder.encode(dict(arguments))
        arrays = {name: np.array(array) for name, array in encoder.arrays.items()}
        if encoder.left_out and reason is None:
            where, what = next(iter(encoder.left_out.items()))
            reason = f"its argument {where} is {what}"
        with self.repeated():
            yield
        self._add(algorithm, iteration, call, encoded, reason, arrays)

    @contextlib.contextmanager
    def around_iteration(self, algorithm: Any) -> Iterator[None]:
        """Context manager around a training iteration. Method calls in the iteration are not recorded as commands,
        because repeating the iteration makes them again.

        An iteration that raises an error before its row is in the table is recorded, because it may have changed the
        training state. It cannot be repeated.

        Args:
            algorithm: The algorithm, with ``iteration`` and ``history``.
        """
        iteration, num_rows = algorithm.iteration, len(algorithm.history)
        try:
            with self.repeated():
                yield
        except BaseException as error:
            if self._is_kept and len(algorithm.history) == num_rows:
                reason = f"iteration {iteration + 1} raised {type(error).__name__}"
                self._add(algorithm, iteration, TRAIN, {}, reason, {})
            raise

    def _add(
        self,
        algorithm: Any,
        iteration: int,
        call: str,
        arguments: Mapping[str, Any],
        reason: str | None,
        arrays: dict[str, np.ndarray],
    ) -> None:
        line = {
            "iteration": iteration,
            "call": call,
            "arguments": arguments,
            "iteration_after": algorithm.iteration,
            "reason": reason,
        }
        self.count += 1
        self._crc32 = line_checksum(line, self._crc32)
        self._waiting.append((json.dumps({**line, "crc32": self._crc32}, sort_keys=True), arrays))
        if self._directory is not None:
            self.write_to(self._directory)

    def write_to(self, directory: Path | None) -> None:
        """Writes the recorded commands that are not yet in ``commands.jsonl`` to this file in the folder of the run.

        From then on, each new command is written as soon as it is recorded.

        Args:
            directory: Folder of the run; None if it does not exist yet.
        """
        if directory is None:
            return
        self._directory = directory
        first = self.count - len(self._waiting) + 1
        for number, (line, arrays) in enumerate(self._waiting, start=first):
            if arrays:
                path = _arrays_path(directory, number)
                path.parent.mkdir(exist_ok=True)
                path.unlink(missing_ok=True)  # of a call that was killed before its line
                write_arrays(path, arrays)
            with (directory / COMMANDS_FILE).open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")
        self._waiting = []


def line_checksum(line: Mapping[str, Any], before: int) -> int:
    """CRC-32 checksum of a line of ``commands.jsonl`` without the line's entry ``crc32``.

    The checksum also depends on all earlier lines, because it starts from the previous line's checksum, `before`.
    """
    plain = {name: value for name, value in line.items() if name != "crc32"}
    return zlib.crc32(json.dumps(plain, sort_keys=True).encode(), before)


def _arrays_path(directory: Path, number: int) -> Path:
    return directory / COMMANDS_FOLDER / f"{number:06d}.safetensors"


@dataclasses.dataclass(frozen=True)
class Command:
    """Recorded call of a method that changed the training state, with its iteration and arguments.

    Attributes:
        number: Line in ``commands.jsonl``, from 1.
        iteration: Finished iterations at the call.
        call: Name of the method.
        iteration_after: Finished iterations after the call: another number if it restored a state.
        reason: Why the call cannot be repeated; None if it can.
        encoded: JSON of the arguments.
        directory: Folder of the run.
    """

    number: int
    iteration: int
    call: str
    iteration_after: int
    reason: str | None
    encoded: dict[str, Any]
    directory: Path

    @property
    def path(self) -> str:
        """File and line of the recorded call, such as ``"run/commands.jsonl, line 3"``. Error messages contain this
        text.
        """
        return f"{self.directory / COMMANDS_FILE}, line {self.number}"

    def arguments(self, loader: ClassLoader) -> dict[str, Any]:
        """Decodes the arguments of the recorded call from their stored form to Python values, ``{name: value}``.

        Args:
            loader: Finds classes that the arguments name.

        Raises:
            ValueError: If an array is missing or has changed, or code is not allowed.
        """
        arrays = self.check_arrays()
        return Decoder(loader, arrays=arrays.__getitem__, what=self.path).decode_items(self.encoded)

    def check_arrays(self) -> dict[str, np.ndarray]:
        """Reads the arrays in the arguments of the recorded call, and checks that their checksums are equal to the
        recorded ones. Returns ``{name: array}``.

        Raises:
            ValueError: If an array is missing or has changed.
        """
        described = array_nodes(self.encoded, self.path)
        if not described:
            return {}
        file = _arrays_path(self.directory, self.number)
        try:
            arrays = read_arrays(file, {name: (own.shape, own.dtype) for name, own in described.items()})
            for name, array in arrays.items():
                if checksum(array) != described[name].crc32:
                    raise ValueError(f"the array {name} does not match its stored checksum")
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{file} has changed ({error}), so {self.call}() cannot be repeated. Restore the file from a copy."
            ) from error
        return arrays


def read_commands(directory: Path) -> list[Command]:
    """Reads the commands (recorded method calls) of a run, in the order of the calls; an empty list if the run has no
    ``commands.jsonl``.

    A last line without its end is left out: the run was killed while it wrote it.

    Args:
        directory: Folder of the run.

    Raises:
        ValueError: If a line has changed since it was written.
    """
    file = directory / COMMANDS_FILE
    if not file.is_file():
        return []
    commands, crc32 = [], 0
    complete = file.read_text(encoding="utf-8").rpartition("\n")[0]
    for number, text in enumerate(complete.splitlines(), start=1):
        where = f"{file}, line {number}"
        try:
            line = json.loads(text)
            crc32 = line_checksum(line, crc32)
            if line["crc32"] != crc32:
                raise ValueError("the content of the line does not match its stored checksum")
            own = (int(line["iteration"]), line["call"], int(line["iteration_after"]), line["reason"])
            commands.append(Command(number, *own, line["arguments"], directory))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{where} has changed since it was written: {error}. Restore the file from a copy."
            ) from error
    return commands
