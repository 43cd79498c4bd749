"""Data sets of recorded steps in files: finding the files, and reading parts of them on demand."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium as gym

from jaxrl_stack.core.columns import STEP_COLUMNS
from jaxrl_stack.datasets.bad_data import BadDataError
from jaxrl_stack.datasets.dataset_info import DatasetInfo
from jaxrl_stack.datasets.locations import files_at, filesystem_of, is_empty_folder, is_file, unfinished_files
from jaxrl_stack.datasets.pieces import PieceRef, Reader
from jaxrl_stack.datasets.read_options import ReadOptions
from jaxrl_stack.datasets.readers import CONVERTIBLE, JSON, SUFFIXES, conversion_of, readers_of
from jaxrl_stack.datasets.recorded_keys import key_problem
from jaxrl_stack.datasets.sample_batches import JsonBatches
from jaxrl_stack.datasets.steps import Steps
from jaxrl_stack.datasets.table_view import TableView
from jaxrl_stack.utils.notices import notice_once
from jaxrl_stack.utils.spaces import difference

Inputs = str | os.PathLike[str] | Sequence[Any] | Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Dataset(TableView):
    """Data set of recorded steps in files, read part by part (row group or file).

    Attributes:
        info: What they are of: what the first file says that says it, and the spaces of the options where no file does.
        pieces: What can be read alone, in order: inputs as they were named, files by their names, rows as they lie.
        inputs: Names of the inputs.
        weights: How often each input is to be drawn from, relative to the others; adds up to 1. None if they were not
            weighted: every row counts the same.
        readers: ``(position of its input, reader)`` of all files.
    """

    info: DatasetInfo
    pieces: list[PieceRef]
    inputs: list[str]
    weights: list[float] | None
    readers: list[tuple[int, Reader]] = dataclasses.field(repr=False)

    @property
    def num_rows(self) -> int | None:
        """Number of rows in the data set, including rows of final observations; None if unknown before reading."""
        return _sum(piece.num_rows for piece in self.pieces)

    @property
    def num_steps(self) -> int | None:
        """Number of steps in the data set, or an upper bound; None if unknown before reading."""
        return _sum(piece.num_steps for piece in self.pieces)

    def read(self, piece: PieceRef) -> Steps:
        """Reads the steps of one part of the data set (row group or file).

        Each episode chunk in the result ends with an extra row, which is not a step and contains the last observation.

        Raises:
            BadDataError: The file is damaged, or is not what the options say; names file and row.
        """
        return self.readers[piece.reader][1].read(piece)

    def read_parts(self, input_: int | None = None) -> Iterator[Steps]:
        """Yields the steps of the whole data set, or of one entry of the setting `input_`, in several `Steps` objects.

        A long episode may be divided between consecutive objects; see `Reader.read_all`.
        """
        for number, reader in self.readers:
            if input_ in (None, number):
                yield from (part for part in reader.read_all() if part.num_rows)

    def num_bytes(self, columns: Sequence[str]) -> int | None:
        """Estimates the bytes that the given columns of the whole data set will need in memory; None if unknown before
        reading.
        """
        return _sum(reader.num_bytes(columns) for _, reader in self.readers)

    def parts(self, max_bytes: int | None = None) -> Iterator[Steps]:
        """Yields all steps of the data set in several `Steps` objects.

        If the steps may need more memory than `max_bytes`, reads one row group or file at a time; else calls
        `read_parts`, which may read all tables of one entry of the setting `input_` at once.

        Args:
            max_bytes: Bytes that the steps may take in memory; None: no limit.
        """
        size = None if max_bytes is None else self.num_bytes(STEP_COLUMNS)
        if max_bytes is None or (size is not None and size <= max_bytes):
            return self.read_parts()
        return (self.read(piece) for piece in self.pieces)

    def read_all(self, input_: int | None = None) -> Steps:
        """Reads all steps of the data set, or of one entry of the setting `input_`, into memory.

        The steps are in the order of the files. The rows of tables are sorted by episode, also across files.

        Raises:
            BadDataError: As `read`, or there are no steps.
        """
        parts = list(self.read_parts(input_))
        if not parts:
            raise BadDataError(f"{self.name_of(input_)} has no steps: set input_ to files with steps.")
        return Steps.concatenated(parts)

    def name_of(self, input_: int | None) -> str:
        """Returns the path or glob with the index `input_` in `inputs`, for error messages; if `input_` is None, all
        paths, separated by commas.
        """
        return ", ".join(self.inputs) if input_ is None else self.inputs[input_]


def open_dataset(inputs: Inputs, *, options: ReadOptions | None = None) -> Dataset:
    """Opens a data set: finds its files and reads their metadata; steps are read later.

    Args:
        inputs: A path, several, or ``{path: weight}``. A path is a file, a folder (with all below it) or a glob, of
            this machine (perhaps with ``local://`` in front), or of a store that pyarrow reaches, as ``s3://...``.
            Files are Parquet (this package's, RLlib's episodes, tables of steps), RLlib's JSON files of sample batches,
            npz, or HDF5 in the layout of D4RL, Minari or d3rlpy.
        options: Options for reading; None: only the files' metadata.

    Raises:
        BadDataError: Nothing is there, a file cannot be read, its space differs from the others', or it has steps of
            several agents.
        ValueError: A weight is not above 0.
    """
    options = ReadOptions() if options is None else options
    names, weights = _named(inputs)
    filesystem = filesystem_of(options.filesystem, options.filesystem_kwargs, setting="input_filesystem")
    readers: list[tuple[int, Reader]] = []
    for number, name in enumerate(names):
        found_on, there = files_at(name, filesystem, (*SUFFIXES, *CONVERTIBLE))
        files = _readable(found_on, name, there)
        if not files:
            raise _nothing_there(name, filesystem, there)
        readers += [(number, reader) for reader in readers_of(found_on, files, options)]
    pieces = [
        dataclasses.replace(piece, input=number, reader=i)
        for i, (number, reader) in enumerate(readers)
        for piece in reader.pieces
    ]
    if not pieces:
        raise BadDataError(f"input_={inputs!r}: the files are empty. Set input_ to files with steps.")
    return Dataset(_common_info([reader for _, reader in readers], options), pieces, names, weights, readers)


def has_json_batches(inputs: Inputs, options: ReadOptions) -> bool:
    """Whether each path in `inputs` leads to JSON files, and all of these files contain RLlib's sample batches."""
    names, _ = _named(inputs)
    filesystem = filesystem_of(options.filesystem, options.filesystem_kwargs, setting="input_filesystem")
    for name in names:
        found_on, there = files_at(name, filesystem, JSON)
        if not there or not all(JsonBatches.begins_with_batch(found_on, path) for path in there):
            return False
    return True


def _readable(filesystem: Any, name: str, there: Sequence[str]) -> list[str]:
    """Returns the files with a supported format at `name`, a path or glob.

    If such a file exists, also logs a notice about skipped files: files with steps in another format, and incomplete
    files. The same notice is logged only once.

    If `name` is the path of a single file, the file is returned in any format; opening it raises an error if it cannot
    be read.
    """
    if is_file(name, filesystem):
        return list(there)
    found = [
        path
        for path in there
        if path.endswith(SUFFIXES) or (path.endswith(JSON) and JsonBatches.begins_with_batch(filesystem, path))
    ]
    left_out = [path for path in there if path not in found and _has_steps(filesystem, path)]
    if found and left_out:
        notice_once(
            f"input_ names {name!r}: {len(left_out)} files there are not read, such as {left_out[0]}. "
            f"{conversion_of(left_out[0])}"
        )
    if found and (waiting := unfinished_files(name, filesystem)):
        notice_once(
            f"input_ names {name!r}, where {len(waiting)} files are not complete, such as {waiting[0]}, and not read. "
            "If a run is writing them, complete them with algo.save_to_path(...) or algo.stop()."
        )
    return found


def _has_steps(filesystem: Any, path: str) -> bool:
    """Whether a skipped file may contain recorded steps, judged by its name. For a JSON file, its beginning must also
    contain the name of an action column.
    """
    return conversion_of(path) is not None and (not path.endswith(JSON) or JsonBatches.has_actions(filesystem, path))


def _nothing_there(name: str, filesystem: Any, there: Sequence[str]) -> BadDataError:
    """Creates the error about an input path where no file can be read, with the probable reason."""
    named = f"input_ names {name!r}, where there are no files of {', '.join(SUFFIXES)}"
    convertible = next((path for path in there if conversion_of(path) is not None), None)
    if convertible is not None:
        return BadDataError(f"{named}; the format of {convertible} is not supported. {conversion_of(convertible)}")
    if waiting := unfinished_files(name, filesystem):
        return BadDataError(
            f"{named}, and {len(waiting)} that a run is writing, such as {waiting[0]}. Complete them with "
            "algo.save_to_path(...) or algo.stop(), or set a smaller offline_data(output_max_rows_per_file=...)."
        )
    if is_empty_folder(name, filesystem):
        return BadDataError(
            f"{named}: the folder is empty. If a run records into it, complete its first file with "
            "algo.save_to_path(...) or algo.stop(), or set a smaller offline_data(output_max_rows_per_file=...)."
        )
    return BadDataError(f"{named}: set input_ to a file, a folder or a glob with such files.")


def _sum(counts: Iterable[int | None]) -> int | None:
    known = list(counts)
    return None if None in known else sum(count or 0 for count in known)


def _named(inputs: Inputs) -> tuple[list[str], list[float] | None]:
    if isinstance(inputs, Mapping):
        odd = {name: weight for name, weight in inputs.items() if not 0 < weight < float("inf")}
        if odd or not inputs:
            raise ValueError(f"input_={dict(inputs)!r}: every path needs a weight above 0.")
        total = sum(inputs.values())
        return list(inputs), [weight / total for weight in inputs.values()]
    names = [inputs] if isinstance(inputs, str | os.PathLike) else list(inputs)
    if not names:
        raise ValueError("input_=[] contains no path: give at least one.")
    return [os.fspath(name) for name in names], None


def _differs(known: Any, own: Any, name: str, options: ReadOptions) -> str | None:
    """Describes, as text, how a file's space differs from the expected space (`known`); returns None if the spaces
    agree.

    Also returns None for an observation space that equals the space of the module's inputs: the file then contains
    observations that connectors have already converted to module inputs.
    """
    differs = difference(known, own)
    is_input = name == "observation_space" and options.inputs is not None
    return None if differs and is_input and not difference(options.inputs.space, own) else differs  # pyright: ignore[reportOptionalMemberAccess]


def _common_info(readers: Sequence[Reader], options: ReadOptions) -> DatasetInfo:
    """Returns one `DatasetInfo` for all files of a data set.

    This is the info of the first file with an environment id, else of the first file. Its spaces come from the options,
    else from the files. Raises BadDataError if a file has another space.
    """
    infos = [reader.info for reader in readers]
    first = next((info for info in infos if info.env_id is not None), infos[0])
    spaces: dict[str, Any] = {}
    for name in ("observation_space", "action_space"):
        known, whose = getattr(options, name), f"The config's {name}"
        for reader in readers:
            own = getattr(reader.info, name)
            if own is None:
                continue
            if known is not None and (differs := _differs(known, own, name, options)):
                if name == "observation_space" and options.inputs is not None and isinstance(known, gym.spaces.Dict):
                    problem = key_problem(own, options.inputs.space)
                    if problem is not None:
                        raise BadDataError(problem, path=reader.path)
                raise BadDataError(
                    f"{whose} differs from this file's {name}: {differs}. Set input_ to data of one environment only, "
                    "and set the environment of this data in config.environment().",
                    path=reader.path,
                )
            if known is None:
                known, whose = own, f"The {name} of {reader.path}"
        spaces[name] = known
    return dataclasses.replace(first, **spaces)
