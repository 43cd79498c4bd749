"""Reads tables of steps that others wrote to Parquet: a row a step, in order, such as RLlib's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from jaxrl_stack.datasets.arrow_columns import numbers_of, tensor_shape
from jaxrl_stack.datasets.bad_data import BadDataError
from jaxrl_stack.datasets.foreign_rows import ForeignColumns, piece_of
from jaxrl_stack.datasets.packed_columns import unpacked
from jaxrl_stack.datasets.parquet_files import ParquetFile, damage_of
from jaxrl_stack.datasets.pieces import PieceRef
from jaxrl_stack.datasets.step_writer import ROW_GROUP_ROWS
from jaxrl_stack.datasets.steps import Steps
from jaxrl_stack.utils.nested import tree_map
from jaxrl_stack.utils.notices import notice_once

if TYPE_CHECKING:
    from jaxrl_stack.datasets.dataset_info import DatasetInfo
    from jaxrl_stack.datasets.read_options import ReadOptions


class TableReader:
    """Reads tables of steps; a piece is a row group, or as many files that follow each other as make one.

    Args:
        files: The files; several only if they are small.
        options: How to read them.
        info: What they are of.

    Raises:
        BadDataError: A column is missing.
    """

    def __init__(self, files: Sequence[ParquetFile], options: ReadOptions, info: DatasetInfo):
        self.path = files[0].path
        self.info = info
        self._files, self._options = files, options
        self._columns = ForeignColumns.of(files[0].schema.names, options, files[0].path)
        for file in files[1:]:
            if file.schema.names != files[0].schema.names:
                ForeignColumns.of(file.schema.names, options, file.path)
        if len(files) > 1:
            rows = sum(file.metadata.num_rows for file in files)
            self.pieces = [PieceRef(self.path, 0, None, rows)]
        else:
            groups = range(files[0].metadata.num_row_groups)
            self.pieces = [PieceRef(self.path, i, None, files[0].rows_of(i)) for i in groups if files[0].rows_of(i)]

    def read(self, piece: PieceRef) -> Steps:
        if len(self._files) > 1:
            return self._steps([(file, None) for file in self._files])
        return self._steps([(self._files[0], piece.index)])

    def read_all(self) -> Iterator[Steps]:
        if self.pieces:
            yield self._steps([(file, None) for file in self._files])

    def _steps(self, parts: Sequence[tuple[ParquetFile, int | None]]) -> Steps:
        """The rows of row groups, or of whole files, one after the other."""
        columns: dict[str, list[Any]] = {}
        rows: list[int] = []
        for file, group in parts:
            names = [name for name in self._columns.to_read if name in file.schema.names]
            table = file.read(names, group)
            first = 0 if group is None else sum(file.rows_of(i) for i in range(group))
            rows.append(table.num_rows)
            with damage_of(file.path):
                for name in names:
                    value = self._value(table.column(name), file, name, first)
                    columns.setdefault(name, []).append(value)
        offsets = np.cumsum([0, *rows])
        first = 0 if parts[0][1] is None else sum(parts[0][0].rows_of(i) for i in range(parts[0][1]))

        def row_of(row: int) -> tuple[str, int]:
            part = int(np.searchsorted(offsets, row, "right")) - 1
            return parts[part][0].path, row - int(offsets[part]) + (first if part == 0 else 0)

        with damage_of(self.path):
            known = {name: own for name, own in columns.items() if not any(part is None for part in own)}
            whole = {name: _concatenated(own, name, self.path) for name, own in known.items() if len(own) == len(parts)}
            return piece_of(whole, self._columns, self._options, row_of, self.info)

    def _value(self, column: pa.ChunkedArray, file: ParquetFile, name: str, first: int) -> Any:
        """A column as arrays, as texts where it says who is meant, or None for one that is not asked for."""
        if name in self._columns.labels:
            return column.cast(pa.string())
        try:
            return self._numbers(column, file.schema.field(name), file.path, name, first)
        except BadDataError as error:
            if name in self._columns.needed:
                raise
            notice_once(f"{error} The column is left out: nothing asks for it.")
            return None

    def _numbers(self, column: pa.ChunkedArray, field: pa.Field, path: str, name: str, first: int) -> Any:
        kind = column.type
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            if name not in self._columns.packed:
                raise BadDataError(
                    f"The column {name} holds texts. If they are packed arrays, name it in input_compress_columns.",
                    path=path,
                )
            if column.null_count:
                raise BadDataError(f"{column.null_count:,} rows of the column {name} have no value.", path=path)
            return unpacked(
                column.to_pylist(),
                path=path,
                name=name,
                first_row=first,
                max_bytes=self._columns.max_bytes(name, self._options),
            )
        if pa.types.is_struct(kind):
            parts = {}
            for i in range(kind.num_fields):
                own = kind.field(i)
                chunks = [chunk.field(i) for chunk in column.chunks]
                flat = pa.chunked_array(chunks, own.type)
                parts[own.name] = self._numbers(flat, own, path, f"{name}/{own.name}", first)
            return parts
        values = numbers_of(column, path=path, name=name, first_row=first)
        shape = tensor_shape(field)
        return values if shape is None else values.reshape(len(values), *shape)


def grouped(files: Sequence[ParquetFile]) -> Iterator[list[ParquetFile]]:
    """Files that follow each other, together as long as they have no more rows than a row group of ours."""
    group: list[ParquetFile] = []
    for file in files:
        if group and sum(own.metadata.num_rows for own in [*group, file]) > ROW_GROUP_ROWS:
            yield group
            group = []
        group.append(file)
    if group:
        yield group


def _concatenated(parts: Sequence[Any], name: str, path: str) -> Any:
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], pa.ChunkedArray):
        return pa.chunked_array([chunk for part in parts for chunk in part.chunks], pa.string())
    try:
        return tree_map(lambda *arrays: np.concatenate(arrays), *parts)
    except ValueError as error:
        raise BadDataError(
            f"The column {name} has another shape in a file that follows: {error}.", path=path
        ) from error
