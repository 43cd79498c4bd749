"""Reads the Parquet files that this package's `StepWriter` writes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from jaxrl_stack.core.columns import STEP_COLUMNS, Columns
from jaxrl_stack.datasets.bad_data import BadDataError
from jaxrl_stack.datasets.checks import RecordedSpaces, checked
from jaxrl_stack.datasets.parquet_files import ParquetFile, damage_of
from jaxrl_stack.datasets.parquet_format import CHECKSUM_KEY, COUNTS_KEY, METADATA_KEY, StepFormat, checksum_of
from jaxrl_stack.datasets.pieces import PieceRef
from jaxrl_stack.datasets.recorded_keys import without_extra_keys
from jaxrl_stack.datasets.steps import Steps

if TYPE_CHECKING:
    from jaxrl_stack.datasets.read_options import ReadOptions


def is_own(file: ParquetFile) -> bool:
    """Whether a Parquet file was written by this package's `StepWriter`."""
    return METADATA_KEY in file.own_metadata


class OwnReader:
    """Reads one Parquet file that this package's `StepWriter` wrote, one row group at a time; skips observation keys
    that the module does not use.

    Args:
        file: The file.
        options: Options for reading.

    Raises:
        BadDataError: Its metadata is damaged.
    """

    num_files = 1

    def __init__(self, file: ParquetFile, options: ReadOptions):
        self.path = file.path
        self._file, self._options = file, options
        with damage_of(file.path):
            said = file.own_metadata
            if said.get(CHECKSUM_KEY, checksum_of(said)) != checksum_of(said):
                raise BadDataError(
                    "The file's metadata was changed after recording. Record the file again.", path=file.path
                )
            self._format, self.info = StepFormat.read(file.own_metadata[METADATA_KEY], file.path)
            self._leave_out_keys(options)
            self.pieces = self._pieces()
            self._choose(options.columns)

    def read(self, piece: PieceRef) -> Steps:
        before = sum(self._file.rows_of(group) for group in range(piece.index))
        return self._steps(self._file.read(self._columns, piece.index), before)

    def read_all(self) -> Iterator[Steps]:
        for piece in self.pieces:
            yield self.read(piece)

    def num_bytes(self, columns: Sequence[str]) -> int:
        """Returns the number of bytes that the given columns of this file will need in memory."""
        return self._format.only(columns).row_bytes * self._file.metadata.num_rows

    def _steps(self, table: pa.Table, first_row: int) -> Steps:
        with damage_of(self.path):
            steps = self._format.steps(table, self.path, first_row)
            spaces = RecordedSpaces(self.info.observation_space, None, self.info.action_space)
            return checked(steps, spaces, lambda row: (self.path, first_row + row), check=self._options.check)

    def _leave_out_keys(self, options: ReadOptions) -> None:
        """Removes the observation keys that the module does not use: from the columns to read, and from the
        observation space.
        """
        if options.inputs is None or Columns.OBS not in self._format.columns:
            return
        taken, columns = options.inputs.space, self._format.columns
        self._format = StepFormat({**columns, Columns.OBS: without_extra_keys(columns[Columns.OBS], taken)})
        space = without_extra_keys(self.info.observation_space, taken)
        self.info = dataclasses.replace(self.info, observation_space=space)

    def _choose(self, names: Sequence[str] | None) -> None:
        """Selects the columns to read from the file: the columns in `names` and the columns that all `Steps` have.

        If `names` is None, selects all columns except infos.
        """
        known = {*self._format.columns, *({Columns.INFOS} & set(self._file.schema.names))}
        wanted = set(self._format.columns) if names is None else {*STEP_COLUMNS, *names}
        if missing := sorted(wanted - known):
            raise BadDataError(
                f"The columns {missing} are missing; the file has {sorted(known)}. Record the data again, with the "
                "missing columns.",
                path=self.path,
            )
        self._format = self._format.only(wanted)
        self._columns = [*self._format.file_columns, *({Columns.INFOS} & wanted)]

    def _pieces(self) -> list[PieceRef]:
        counts = json.loads(self._file.own_metadata.get(COUNTS_KEY, b"[]"))
        groups = range(self._file.metadata.num_row_groups)
        rows = [self._file.rows_of(group) for group in groups]
        if [own["rows"] for own in counts] != rows:
            raise BadDataError("The file's row counts are damaged. Record the file again.", path=self.path)
        return [PieceRef(self.path, i, rows[i], int(counts[i]["steps"])) for i in groups]
