"""Reads Parquet files of RLlib's packed episodes, with an episode, or a chunk of an episode, in each row."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from jaxrl_stack.core.columns import STEP_COLUMNS
from jaxrl_stack.datasets.bad_data import BadDataError
from jaxrl_stack.datasets.checks import checked
from jaxrl_stack.datasets.foreign_columns import PROBABILITIES
from jaxrl_stack.datasets.parquet_files import FilePart, ParquetFile, parts_of
from jaxrl_stack.datasets.pieces import PieceRef
from jaxrl_stack.datasets.rllib_episodes import steps_of_state, unpacked_state
from jaxrl_stack.datasets.step_writer import ROW_GROUP_ROWS
from jaxrl_stack.datasets.steps import Steps

if TYPE_CHECKING:
    from jaxrl_stack.datasets.dataset_info import DatasetInfo
    from jaxrl_stack.datasets.read_options import ReadOptions

ITEM = "item"


def has_episodes(schema: pa.Schema) -> bool:
    """Whether a Parquet file contains RLlib's packed (serialized) episodes, in a single binary column."""
    return schema.names == [ITEM] and (pa.types.is_binary(schema.types[0]) or pa.types.is_large_binary(schema.types[0]))


class EpisodeReader:
    """Reads consecutive Parquet files of RLlib's packed (serialized) episodes, one row group or several small files at
    a time.

    Args:
        files: The files.
        options: Options for reading.
        info: Origin of the steps.
    """

    def __init__(self, files: Sequence[ParquetFile], options: ReadOptions, info: DatasetInfo):
        self.path, self.info = files[0].path, info
        self._files, self._options = list(files), options
        self.num_files = len(files)
        self._parts = list(parts_of(files, ROW_GROUP_ROWS))
        self.pieces = [PieceRef(files[parts[0].file].path, i, None) for i, parts in enumerate(self._parts)]

    def read(self, piece: PieceRef) -> Steps:
        origins: list[tuple[str, int]] = []
        parts: list[Steps] = []
        for path, row, data in self._rows(self._parts[piece.index]):
            parts.append(self._episode(path, row, data))
            origins.append((path, row))
        has_bounds = not any(name in part.columns for part in parts for name in PROBABILITIES)
        steps, wanted = Steps.concatenated(parts), self._options.columns
        steps = steps if wanted is None else steps.only([*STEP_COLUMNS, *wanted])
        offsets = np.cumsum([part.num_rows for part in parts])
        spaces = self._options.spaces_of(self.info, has_bounds=has_bounds)

        def row_of(row: int) -> tuple[str, int]:
            return origins[int(np.searchsorted(offsets, row, "right"))]

        return checked(steps, spaces, row_of, check=self._options.check)

    def read_all(self) -> Iterator[Steps]:
        for piece in self.pieces:
            yield self.read(piece)

    def num_bytes(self, columns: Sequence[str]) -> int:
        """Estimates the bytes that the given columns of all episodes will need in memory, from the first episodes."""
        rows = (found for parts in self._parts for found in self._rows(parts[:1]))
        several = list(itertools.islice(rows, _SAMPLED_EPISODES))
        in_memory = sum(self._episode(*found).only(columns).num_bytes for found in several)
        in_file = sum(len(data or b"") for _, _, data in several)
        groups = [file.metadata.row_group(i) for file in self._files for i in range(file.metadata.num_row_groups)]
        return round(in_memory / max(1, in_file) * sum(group.total_byte_size for group in groups))

    def _episode(self, path: str, row: int, data: bytes | None) -> Steps:
        try:
            if data is None:
                raise ValueError("the row contains null instead of a packed (serialized) episode")
            return steps_of_state(unpacked_state(data))
        except (ValueError, TypeError, AttributeError, OverflowError) as error:
            raise BadDataError(
                f"The episode cannot be read: {str(error).removesuffix('.')}. Remove this episode, or record it again.",
                path=path,
                row=row,
            ) from error

    def _rows(self, parts: Sequence[FilePart]) -> Iterator[tuple[str, int, bytes | None]]:
        """Yields ``(path, row number, data)`` for each row of the given row groups or files.

        The path and the row number are the file's path and the row's number in this file. The data is the packed
        (serialized) episode as a bytes object, or None for a null cell.
        """
        for part in parts:
            file = self._files[part.file]
            first = 0 if part.group is None else sum(file.rows_of(i) for i in range(part.group))
            for number, value in enumerate(file.read([ITEM], part.group).column(ITEM)):
                yield file.path, first + number, value.as_py()


_SAMPLED_EPISODES = 4
