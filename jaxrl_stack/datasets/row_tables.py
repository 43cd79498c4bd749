"""Reads other programs' Parquet tables with one step per row."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.datasets.arrow_columns import numbers_of, tensor_shape
from jaxrl_stack.datasets.bad_data import BadDataError
from jaxrl_stack.datasets.foreign_columns import ALIASES, DONES, ENV, ForeignColumns
from jaxrl_stack.datasets.foreign_rows import ForeignTable, as_texts, bytes_per_row, piece_of
from jaxrl_stack.datasets.packed_columns import unpacked
from jaxrl_stack.datasets.parquet_files import FilePart, ParquetFile, damage_of, parts_of
from jaxrl_stack.datasets.pieces import PieceRef
from jaxrl_stack.datasets.step_writer import ROW_GROUP_ROWS
from jaxrl_stack.datasets.steps import Steps
from jaxrl_stack.utils.nested import tree_map
from jaxrl_stack.utils.notices import notice_once

if TYPE_CHECKING:
    from jaxrl_stack.datasets.dataset_info import DatasetInfo
    from jaxrl_stack.datasets.read_options import ReadOptions

SAMPLE_ROWS = 1024
"""Rows that are read to estimate the size of all."""


class TableReader:
    """Reads tables of steps with equal columns, one row group or several small files at a time.

    Args:
        files: The files, in order.
        options: Options for reading.
        info: Origin of the steps.

    Raises:
        BadDataError: A column is missing.
    """

    def __init__(self, files: Sequence[ParquetFile], options: ReadOptions, info: DatasetInfo):
        self.path = files[0].path
        self.info = info
        self._files, self._options = list(files), options
        self.num_files = len(files)
        self._labels = [labels_in_path(file.path, file.schema.names, options) for file in files]
        self._columns = columns_of_table(files[0], options)
        self._parts = list(parts_of(files, ROW_GROUP_ROWS))
        self.pieces = [
            PieceRef(files[parts[0].file].path, number, None, sum(map(self._rows_of, parts)))
            for number, parts in enumerate(self._parts)
        ]
        self._first_t = self._lowest(Columns.T)

    def read(self, piece: PieceRef) -> Steps:
        return self._steps(self._parts[piece.index])

    def read_all(self) -> Iterator[Steps]:
        if self.pieces:
            yield self._steps([FilePart(i, None) for i, file in enumerate(self._files) if file.metadata.num_rows])

    def num_bytes(self, columns: Sequence[str]) -> int:
        """Estimates the bytes that the given columns of all tables will need in memory, from the first rows."""
        if not self.pieces:
            return 0
        first = self._parts[0][:1]
        table = self._table(first, limit=SAMPLE_ROWS)
        rows = min(SAMPLE_ROWS, self._rows_of(first[0]))
        total = sum(file.metadata.num_rows for file in self._files)
        return round(bytes_per_row(table.values, columns) / rows * total)

    def _rows_of(self, part: FilePart) -> int:
        file = self._files[part.file]
        return file.metadata.num_rows if part.group is None else file.rows_of(part.group)

    def _first_row(self, part: FilePart) -> int:
        return 0 if part.group is None else sum(self._files[part.file].rows_of(i) for i in range(part.group))

    def _lowest(self, column: str) -> int | None:
        """Returns the minimum of a column over all files from their statistics; None if a file has no statistics."""
        name = self._columns.names.get(column)
        lowest = [file.lowest(name) for file in self._files if file.metadata.num_rows] if name else []
        return None if None in lowest else min(map(int, lowest), default=None)  # pyright: ignore[reportArgumentType]

    def _steps(self, parts: Sequence[FilePart]) -> Steps:
        """Reads row groups or whole files and converts them to steps, sorted by episode."""
        return piece_of(self._table(parts), self._columns, self._options, self.info)

    def _table(self, parts: Sequence[FilePart], *, limit: int | None = None) -> ForeignTable:
        """Reads row groups or whole files as one table; reads at most `limit` rows from each row group or file."""
        tables = [self._read(part, limit) for part in parts]
        offsets = np.cumsum([0, *(table.num_rows for table in tables)])

        def row_of(row: int) -> tuple[str, int]:
            number = int(np.searchsorted(offsets, row, "right")) - 1
            return self._files[parts[number].file].path, row - int(offsets[number]) + self._first_row(parts[number])

        for name in self._columns.to_read:
            if self._columns.column_of(name) in _OF_STEPS:
                _check_rows_are_steps([table.column(name) for table in tables], name, self.path)
        values: dict[str, Any] = {}
        known: np.ndarray | None = None
        with damage_of(self.path):
            for name in self._columns.to_read:
                column = self._columns.column_of(name)
                arrays = [table.column(name) for table in tables]
                # What becomes NumPy's is not kept twice.
                tables = [table.drop_columns([name]) for table in tables]
                if all(own.null_count == len(own) for own in arrays):
                    continue
                if column == Columns.NEXT_OBS and any(own.null_count for own in arrays):
                    is_known = np.concatenate([~np.asarray(own.is_null()) for own in arrays])
                    known = is_known if known is None else known & is_known
                values[name] = self._value(arrays, parts, name, column)
        assembled = self._columns.assembled(values, self.path)
        self._check_there(assembled)
        file = np.repeat([part.file for part in parts], np.diff(offsets))
        return ForeignTable(assembled, row_of, file, known, self._first_t)

    def _read(self, part: FilePart, limit: int | None) -> pa.Table:
        file, labels = self._files[part.file], self._labels[part.file]
        names = [name for name in self._columns.to_read if name not in labels]
        table = file.read(names, part.group, limit=limit)
        for name, value in labels.items():
            table = table.append_column(name, pa.repeat(pa.scalar(value), table.num_rows))
        return table

    def _check_there(self, assembled: Mapping[str, Any]) -> None:
        empty = [self._columns.called(c) for c in (Columns.OBS, Columns.ACTIONS) if c not in assembled]
        if empty:
            raise BadDataError(
                f"The columns {empty} have no values. Write values, or remove the file from input_.", path=self.path
            )

    def _value(self, arrays: Sequence[pa.ChunkedArray], parts: Sequence[FilePart], name: str, column: str) -> Any:
        """Concatenates one column's values from several row groups or files.

        Ids (of episodes, environments, agents) become Arrow text; other values become arrays or pytrees of arrays.
        Returns None if the column cannot be read and is not required.
        """
        if column in self._columns.labels:
            return pa.chunked_array([chunk for own in arrays for chunk in as_texts(own).chunks], pa.string())
        try:
            found = [self._part(own, part, name, column) for own, part in zip(arrays, parts, strict=True)]
        except BadDataError as error:
            if column in self._columns.needed:
                raise
            notice_once(f"{error} The column is not needed and left out.")
            return None
        return _concatenated(found, name, self._files[parts[-1].file].path)

    def _part(self, array: pa.ChunkedArray, part: FilePart, name: str, column: str) -> Any:
        file = self._files[part.file]
        field, first = file.schema.field(name), self._first_row(part)
        if column != Columns.NEXT_OBS or not array.null_count:
            return self._numbers(array, field, file.path, name, first)
        found = self._numbers(array.drop_null(), field, file.path, name, first)
        known = ~np.asarray(array.is_null())
        return tree_map(lambda x: _spread(x, known), found)

    def _numbers(self, column: pa.ChunkedArray, field: pa.Field, path: str, name: str, first: int) -> Any:
        kind, shape = column.type, tensor_shape(field, path)
        if pa.types.is_dictionary(kind):
            column, kind = column.cast(kind.value_type), kind.value_type
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            if name not in self._columns.packed:
                text = next((text for text in column.to_pylist() if text is not None), "")[:20]
                raise BadDataError(
                    f"The column {name} holds texts: write numbers, such as table[{name!r}].map({{{text!r}: 0, ...}}) "
                    f"in pandas. If the texts are packed arrays, add {name!r} to input_compress_columns.",
                    path=path,
                )
            if column.null_count:
                raise BadDataError(
                    f"{column.null_count:,} rows of the column {name} have no value. Write values, or remove these "
                    "rows.",
                    path=path,
                )
            if any(text[:1] in ("[", "{") for text in column.slice(0, 1).to_pylist()):
                raise BadDataError(
                    f"The column {name} holds texts of numbers, such as {column[0].as_py()[:40]!r}. Write lists of "
                    f"numbers: table[{name!r}] = table[{name!r}].map(json.loads), in pandas.",
                    path=path,
                )
            max_bytes = self._columns.max_bytes(name, self._options)
            return unpacked(column.to_pylist(), path=path, name=name, first_row=first, max_bytes=max_bytes)
        if pa.types.is_struct(kind):
            parts = {}
            for i in range(kind.num_fields):
                own = kind.field(i)
                chunks = [chunk.field(i) for chunk in column.chunks]
                flat = pa.chunked_array(chunks, own.type)
                parts[own.name] = self._numbers(flat, own, path, f"{name}/{own.name}", first)
            return parts
        values = numbers_of(column, path=path, name=name, first_row=first)
        if shape is None:
            return values
        if math.prod(shape) * len(values) != values.size:
            raise BadDataError(
                f"The column {name} declares the shape {shape}, but has {values[:1].size} numbers per row. Write it "
                "again as lists of numbers.",
                path=path,
            )
        return values.reshape(len(values), *shape)


def columns_of_table(file: ParquetFile, options: ReadOptions) -> ForeignColumns:
    """Returns the mapping from this package's columns to the columns of a Parquet table of steps. Some columns may be
    stored in folder names, such as ``eps_id=3``.

    Raises:
        BadDataError: A required column is missing.
    """
    there = [*file.schema.names, *labels_in_path(file.path, file.schema.names, options)]
    return ForeignColumns.of(there, options, file.path)


def labels_in_path(path: str, there: Sequence[str], options: ReadOptions) -> dict[str, str]:
    """Returns ``{column: value}`` from folder names such as ``eps_id=3``, in which partitioned tables store columns."""
    names = {Columns.EPS_ID, ENV, *ALIASES[Columns.EPS_ID], *ALIASES[ENV]}
    names |= {options.schema[Columns.EPS_ID]} if options.schema.get(Columns.EPS_ID) else set()
    found = (folder.partition("=") for folder in path.split("/")[:-1])
    return {name: value for name, is_label, value in found if is_label and name in names and name not in there}


_OF_STEPS = (Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS, DONES, Columns.T)
"""Columns of one number for each step."""


def _check_rows_are_steps(arrays: Sequence[pa.ChunkedArray], name: str, path: str) -> None:
    kind = arrays[0].type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        return
    first = next((own[0].as_py() for own in arrays if len(own)), None)
    if first is not None and len(first) != 1:
        raise BadDataError(
            f"The column {name} has lists ({len(first):,} entries in the first row) instead of numbers. If each row "
            "is an episode or a part of an episode, set offline_data(input_read_sample_batches=True). If each row is a "
            "step, write one number per row.",
            path=path,
        )


def _spread(array: np.ndarray, where: np.ndarray) -> np.ndarray:
    """Returns an array ``[N, ...]`` with the rows of `array` at the indices that the mask `where` selects, and zeros
    elsewhere.

    The mask is bool ``[N]``. The rows of `array` keep their order.
    """
    found = np.zeros((len(where), *array.shape[1:]), array.dtype)
    found[where] = array
    return found


def _concatenated(parts: Sequence[Any], name: str, path: str) -> Any:
    if len(parts) == 1:
        return parts[0]
    try:
        return tree_map(lambda *arrays: np.concatenate(arrays), *parts)
    except ValueError as error:
        raise BadDataError(
            f"The column {name} has different shapes in different files: {error}. Write arrays of equal shape.",
            path=path,
        ) from error
