"""Reads RLlib's old SampleBatches from Parquet and JSON files; each row holds several steps, of one or more
episodes.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.datasets.arrow_columns import numbers_of
from jaxrl_stack.datasets.bad_data import BadDataError
from jaxrl_stack.datasets.foreign_columns import AGENTS, DONES, ENV, ForeignColumns
from jaxrl_stack.datasets.foreign_rows import SEVERAL_AGENTS, ForeignTable, bytes_per_row, piece_of
from jaxrl_stack.datasets.packed_columns import unpacked
from jaxrl_stack.datasets.parquet_files import ParquetFile, damage_of
from jaxrl_stack.datasets.pieces import PieceRef
from jaxrl_stack.datasets.steps import Steps
from jaxrl_stack.utils.nested import batch, take, tree_leaves, tree_map

if TYPE_CHECKING:
    from jaxrl_stack.datasets.dataset_info import DatasetInfo
    from jaxrl_stack.datasets.read_options import ReadOptions

_FLAGS = (Columns.TERMINATEDS, Columns.TRUNCATEDS, DONES)
_LABELS = (Columns.EPS_ID, ENV, *AGENTS)


class StoredSampleBatch(NamedTuple):
    """SampleBatch of a file: the columns as stored (not decoded to arrays), with the batch's row number in the file.

    Attributes:
        row: Number of the row in the file.
        cells: ``{name: content}``, of Arrow or of JSON.
        num_bytes: Size in the file, without compression.
    """

    row: int
    cells: Mapping[str, Any]
    num_bytes: float


class BatchFile(Protocol):
    """Interface of files that contain SampleBatches.

    Attributes:
        path: The file.
        names: Names of columns.
        num_bytes: Size without compression.
        num_groups: Parts that can be read by themselves.
    """

    path: str
    names: Sequence[str]
    num_bytes: int
    num_groups: int

    def batches(self, names: Sequence[str], group: int | None) -> Iterator[StoredSampleBatch]:
        """Yields the sample batches of one part of the file (`group`), or of the whole file, with the given columns."""
        ...

    def numbers(self, cell: Any, name: str, row: int) -> np.ndarray | Any:
        """Decodes the numbers of one column of a sample batch, ``[T, ...]``."""
        ...


class SampleBatchReader:
    """Reads consecutive files of SampleBatches, one part of a file or several files at a time.

    Args:
        files: The files.
        options: Options for reading.
        info: Origin of the steps.

    Raises:
        BadDataError: A column is missing.
    """

    def __init__(self, files: Sequence[BatchFile], options: ReadOptions, info: DatasetInfo):
        self.path, self.info = files[0].path, info
        self._files, self._options = list(files), options
        self.num_files = len(files)
        self._columns = [ForeignColumns.of(file.names, options, file.path) for file in files]
        groups = [None] if len(files) > 1 else range(files[0].num_groups)
        self._groups = list(groups)
        self.pieces = [PieceRef(self.path, i, None) for i in range(len(self._groups))]

    def read(self, piece: PieceRef) -> Steps:
        return self._steps(self._groups[piece.index])

    def read_all(self) -> Iterator[Steps]:
        if self.pieces:
            yield self._steps(None)

    def num_bytes(self, columns: Sequence[str]) -> int | None:
        """Estimates the bytes that the given columns of all files will need in memory, from a few batches."""
        file, own = self._files[0], self._columns[0]
        several = list(itertools.islice(file.batches(file.names, None), _SAMPLED_BATCHES))
        if not several:
            return 0
        read = [self._batch(file, own, found) for found in several]
        rows = sum(len(tree_leaves(values[Columns.ACTIONS])[0]) for values in read)
        size = sum(bytes_per_row(values, columns) for values in read)
        in_file = sum(found.num_bytes for found in several)
        total = sum(each.num_bytes for each in self._files)
        return round(size / max(1, in_file) * total) if rows else None

    def _steps(self, group: int | None) -> Steps:
        rows: list[tuple[str, int]] = []
        parts: list[dict[str, Any]] = []
        for file, columns in zip(self._files, self._columns, strict=True):
            for found in file.batches(file.names, group):
                with damage_of(file.path):
                    parts.append(self._batch(file, columns, found))
                    rows += [(file.path, found.row)] * len(tree_leaves(parts[-1][Columns.ACTIONS])[0])
        if not parts:
            raise BadDataError("The file has no sample batches. Remove the file from input_.", path=self.path)
        columns = self._columns[0]
        names = [name for name in parts[0] if all(name in part for part in parts)]
        values = {name: _concatenated([part[name] for part in parts], name, self.path) for name in names}
        if Columns.NEXT_OBS not in values:
            values[Columns.NEXT_OBS] = _next_observations(values)
        return piece_of(ForeignTable(values, lambda row: rows[row]), columns, self._options, self.info)

    def _batch(self, file: BatchFile, columns: ForeignColumns, found: StoredSampleBatch) -> dict[str, Any]:
        """Decodes a sample batch to ``{column: pytree of [T, ...]}``.

        Ids become Arrow text. A batch without termination, truncation or done flags counts as one terminated episode,
        as in RLlib.
        """
        cells = {}
        for name in columns.to_read:
            column = columns.column_of(name)
            cell = found.cells.get(name)
            if cell is not None:
                value = self._cell(file, columns, name, cell, found.row)
                cells[name] = None if value is None or (column in columns.needed and not np.size(value)) else value
        values = columns.assembled(cells, file.path)
        missing = [columns.called(c) for c in (Columns.OBS, Columns.ACTIONS) if c not in values]
        if missing:
            raise BadDataError(
                f"The sample batch has no columns {missing}: add these columns.", path=file.path, row=found.row
            )
        n = len(tree_leaves(values.get(Columns.REWARDS, values[Columns.OBS]))[0])
        for name, own in values.items():
            if not n or any(np.ndim(leaf) < 1 or len(leaf) != n for leaf in tree_leaves(own)):
                raise BadDataError(
                    f"The column {columns.called(name)} must have one entry for each of the {n:,} steps of the sample "
                    "batch. Write columns of equal length, at least 1.",
                    path=file.path,
                    row=found.row,
                )
        if not any(flag in values for flag in _FLAGS):
            # As for RLlib, batches without flags are whole episodes that terminated.
            flag = next((flag for flag in _FLAGS if flag in columns.names), Columns.TERMINATEDS)
            values[flag] = np.arange(n) == n - 1
        values.setdefault(Columns.EPS_ID, np.full(n, f"{file.path}:{found.row}"))
        return {name: _as_texts(own) if name in _LABELS else own for name, own in values.items()}

    def _cell(self, file: BatchFile, columns: ForeignColumns, name: str, cell: Any, row: int) -> Any:
        """Decodes one column of a sample batch, ``[T, ...]``; None if the column cannot be read and is not required."""
        column = columns.column_of(name)
        try:
            if isinstance(cell, str) and name in columns.packed:
                return take(unpacked([cell], path=file.path, name=name, first_row=row), 0)
            if isinstance(cell, list) and cell and isinstance(cell[0], str) and name in columns.packed:
                return unpacked(cell, path=file.path, name=name, first_row=row)
            if column in columns.labels:
                return np.asarray(cell if isinstance(cell, list) else file.numbers(cell, name, row))
            return file.numbers(cell, name, row)
        except BadDataError:
            if column in columns.needed:
                raise
            return None


_SAMPLED_BATCHES = 4


class ParquetBatches:
    """Parquet file with one SampleBatch per row."""

    def __init__(self, file: ParquetFile):
        self.path, self.names, self._file = file.path, list(file.schema.names), file
        groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
        self.num_bytes = sum(group.total_byte_size for group in groups)
        self.num_groups = len(groups) if file.metadata.num_rows else 0

    def batches(self, names: Sequence[str], group: int | None) -> Iterator[StoredSampleBatch]:
        table = self._file.read(names, group)
        first = 0 if group is None else sum(self._file.rows_of(i) for i in range(group))
        for row in range(table.num_rows):
            own = table.slice(row, 1)
            cells = {name: _plain(own.column(name)) for name in names}
            yield StoredSampleBatch(first + row, cells, self.num_bytes / max(1, self._file.metadata.num_rows))

    def numbers(self, cell: Any, name: str, row: int) -> Any:
        if not isinstance(cell, pa.ChunkedArray):
            raise BadDataError(f"The column {name} holds texts: write numbers.", path=self.path, row=row)
        return numbers_of(cell, path=self.path, name=name, first_row=row)[0]


def _plain(column: pa.ChunkedArray) -> Any:
    """Converts a cell (one row of one Arrow column): texts to Python strings, a null value to None. Other cells stay
    Arrow data.
    """
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        column, kind = pa.chunked_array([chunk.storage for chunk in column.chunks]), kind.storage_type
    if column.null_count == len(column):
        return None
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    of_texts = hasattr(kind, "value_type") and (
        pa.types.is_string(kind.value_type) or pa.types.is_large_string(kind.value_type)
    )
    return column.to_pylist()[0] if is_text or of_texts else column


class JsonBatches:
    """RLlib's JSON file with one SampleBatch per line.

    Args:
        filesystem, path: The file.

    Raises:
        BadDataError: It holds something else.
    """

    num_groups = 1

    def __init__(self, filesystem: Any, path: str):
        self.path, self._filesystem = path, filesystem
        with damage_of(path):
            self.num_bytes = int(filesystem.get_file_info(path).size)
        first = next(self._lines(), None)
        self.names = [] if first is None else list(first.cells)
        if first is None:
            self.num_groups = 0

    @staticmethod
    def begins_with_batch(filesystem: Any, path: str) -> bool:
        """Whether the first line of a file is an RLlib sample batch."""
        begin = _begin_of(filesystem, path)
        return begin.startswith("{") and any(f'"{kind}"' in begin for kind in _BATCH_TYPES)

    @staticmethod
    def has_actions(filesystem: Any, path: str) -> bool:
        """Whether a JSON file may contain recorded steps: its beginning contains the name of an action column."""
        return '"action' in _begin_of(filesystem, path)

    def batches(self, names: Sequence[str], group: int | None) -> Iterator[StoredSampleBatch]:
        for found in self._lines():
            yield found._replace(cells={name: found.cells.get(name) for name in names})

    def numbers(self, cell: Any, name: str, row: int) -> Any:
        try:
            found = batch(cell) if isinstance(cell, list) and cell and isinstance(cell[0], dict) else np.asarray(cell)
            found = tree_map(np.asarray, found)
        except (TypeError, ValueError) as error:
            raise BadDataError(
                f"The column {name} cannot be read: {error}. Write arrays of equal shape.", path=self.path, row=row
            ) from error
        if any(leaf.dtype.kind not in "biuf" for leaf in tree_leaves(found)):
            raise BadDataError(f"The column {name} holds no numbers: write numbers.", path=self.path, row=row)
        return found

    def _lines(self) -> Iterator[StoredSampleBatch]:
        with damage_of(self.path), self._filesystem.open_input_stream(self.path) as source:
            content = source.read()
        for row, line in enumerate(content.splitlines()):
            if line.strip():
                yield StoredSampleBatch(row, self._cells(line, row), len(line))

    def _cells(self, line: bytes, row: int) -> dict[str, Any]:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self._other(row, f"this line is not JSON ({error})") from error
        kind = found.get("type") if isinstance(found, dict) else None
        if kind == "MultiAgentBatch":
            policies = found.get("policy_batches")
            if not isinstance(policies, dict) or len(policies) != 1:
                raise BadDataError(SEVERAL_AGENTS, path=self.path, row=row)
            found = next(iter(policies.values()))
        elif kind != "SampleBatch":
            raise self._other(row, "this line is not a SampleBatch")
        if not isinstance(found, dict):
            raise self._other(row, "this line is not a SampleBatch")
        return {name: cell for name, cell in found.items() if name != "type"}

    def _other(self, row: int, what: str) -> BadDataError:
        return BadDataError(
            f"A JSON file must contain one of RLlib's SampleBatches in each line, but {what}. If each line is "
            f"one step, convert the file: pandas.read_json({self.path!r}, lines=True).to_parquet('steps.parquet').",
            path=self.path,
            row=row,
        )


def _begin_of(filesystem: Any, path: str) -> str:
    with damage_of(path), filesystem.open_input_stream(path) as source:
        return source.read(1000).decode("utf-8", "replace").lstrip()


_BATCH_TYPES = ("SampleBatch", "MultiAgentBatch")


def _as_texts(labels: Any) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(np.ravel(labels).astype(str).tolist(), pa.string())])


def _next_observations(values: Mapping[str, Any]) -> Any:
    """Returns the next observation of each step in a SampleBatch.

    This is the observation of the next row in the same episode. The last step of an episode gets its own observation,
    as in RLlib.
    """
    ids = np.asarray(values[Columns.EPS_ID].to_pylist())
    rows = np.arange(len(ids))
    ended = np.zeros(len(ids), bool)
    for name in _FLAGS:
        ended |= np.asarray(values.get(name, ended)).astype(bool).reshape(-1)
    continues = np.append((ids[1:] == ids[:-1]) & ~ended[:-1], False)
    if Columns.T in values:
        continues[:-1] &= np.diff(np.asarray(values[Columns.T])) == 1
    return tree_map(lambda obs: obs[np.where(continues, np.minimum(rows + 1, len(ids) - 1), rows)], values[Columns.OBS])


def _concatenated(parts: Sequence[Any], name: str, path: str) -> Any:
    if isinstance(parts[0], pa.ChunkedArray):
        return pa.chunked_array([chunk for part in parts for chunk in part.chunks], pa.string())
    try:
        return tree_map(lambda *arrays: np.concatenate(arrays), *parts)
    except ValueError as error:
        raise BadDataError(
            f"The arrays of {name} differ in shape from batch to batch: {error}. Write arrays of equal shape.",
            path=path,
        ) from error
