"""Writer of recorded steps to Parquet files, while they are sampled."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.datasets.dataset_info import DatasetInfo
from jaxrl_stack.datasets.locations import Folder
from jaxrl_stack.datasets.new_file import NewFile, free_name
from jaxrl_stack.datasets.parquet_format import CHECKSUM_KEY, COUNTS_KEY, METADATA_KEY, StepFormat, checksum_of
from jaxrl_stack.datasets.steps import IN_FINAL_ROWS, Steps
from jaxrl_stack.utils.nested import tree_map

ROW_GROUP_ROWS = 8192
"""Rows that are written, and can be read, at once."""


class StepWriter:
    """Writes recorded steps to ``<folder>/<name>-00000.parquet`` and so on: each row once, in the order of the calls of
    `add`.

    A file is written under a name that begins with a dot and renamed when it is complete, so readers never see half of
    one; files that are there already stay. Row groups hold whole pieces of episodes, at most `ROW_GROUP_ROWS` rows;
    longer pieces are cut to that many rows, each with its final row.

    Args:
        folder: Folder of the files; created if it does not exist. pyarrow reaches ``s3://...`` and the like.
        name: Beginning of the files' names.
        about: Origin of the steps.
        max_rows_per_file: Rows of a file; the last one has fewer.
        compression: Of Parquet's columns, such as "snappy", "zstd" or "none"; or ``{column: that}``, with which other
            columns are not compressed.
        parquet_options: More arguments for pyarrow's ParquetWriter.
        filesystem: A ``pyarrow.fs.FileSystem`` that the folder is on; None for what the folder's name says.

    Raises:
        ValueError: If `max_rows_per_file` is below 2.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        name: str,
        *,
        about: DatasetInfo,
        max_rows_per_file: int = 100_000,
        compression: str | Mapping[str, str] = "snappy",
        parquet_options: Mapping[str, Any] | None = None,
        filesystem: Any = None,
    ):
        if max_rows_per_file < 2:
            raise ValueError(
                f"max_rows_per_file={max_rows_per_file} must be at least 2: one row for a step, and one for the "
                "observation after it."
            )
        self.name = name
        self.about = about
        self.files: list[str] = []
        """Paths of the files that are complete."""
        self._folder = Folder.of(folder, filesystem)
        self._folder.make()
        self._max_rows = max_rows_per_file
        self._group_rows = min(ROW_GROUP_ROWS, max_rows_per_file)
        self._compression = compression
        self._parquet_options = dict(parquet_options or {})
        self._waiting: list[Steps] = []
        self._format: StepFormat | None = None
        self._has_infos = False
        self._file: NewFile | None = None
        self._counts: list[dict[str, int]] = []
        self._metadata = b""

    def __enter__(self) -> StepWriter:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def num_buffered_rows(self) -> int:
        """Number of rows that wait in memory; rows in an incomplete file are not counted."""
        return sum(steps.num_rows for steps in self._waiting)

    def add(self, steps: Steps) -> None:
        """Adds recorded steps to the writer's buffer. If the buffer then contains enough rows for a row group, writes
        buffered rows to a file.

        Raises:
            ValueError: If they have other columns, shapes or dtypes than those before them.
            OSError: The file cannot be written.
        """
        if not steps.num_rows:
            return
        form, has_infos = StepFormat.of(steps), Columns.INFOS in steps.columns
        if self._format is None:
            self._format, self._has_infos = form, has_infos
        elif (form, has_infos) != (self._format, self._has_infos):
            if form == self._format:
                have, had = ("infos", "no infos") if has_infos else ("no infos", "infos")
            else:
                have, had = f"the columns {form.columns}", f"the columns {self._format.columns}"
            raise ValueError(
                f"These steps have {have}, but earlier steps have {had}. Write these steps with another StepWriter."
            )
        self._waiting.append(cut_to(steps, self._group_rows))
        if self.num_buffered_rows >= self._group_rows:
            self._write(all_of_it=False)

    def close(self) -> None:
        """Closes the writer: writes the buffered steps and completes the last file. A second call does nothing.

        Raises:
            OSError: The file cannot be written.
        """
        self._write(all_of_it=True)
        self._complete()

    def _write(self, *, all_of_it: bool) -> None:
        if not self._waiting:
            return
        steps = Steps.concatenated(self._waiting)
        starts = steps.piece_starts()
        begin = 0
        while steps.num_rows - begin >= self._group_rows or (all_of_it and begin < steps.num_rows):
            stop = int(starts[np.searchsorted(starts, begin + self._group_rows, "right") - 1])
            self._write_group(steps.rows(begin, stop))
            begin = stop
        self._waiting = [steps.rows(begin, steps.num_rows)] if begin < steps.num_rows else []

    def _write_group(self, steps: Steps) -> None:
        assert self._format is not None
        if self._file is not None and self._file.num_rows + steps.num_rows > self._max_rows:
            self._complete()
        table = self._format.table(steps, self.about)
        self._metadata = table.schema.metadata[METADATA_KEY]
        if self._file is None:
            name = free_name(self._folder, self.name)
            options = {"compression": _by_path(self._compression, table.schema), **self._parquet_options}
            self._file, self._counts = NewFile(self._folder, name, table.schema, options), []
        try:
            self._file.write(table)
        except BaseException:
            self._file = None
            raise
        self._counts.append({"rows": steps.num_rows, "steps": steps.num_steps})

    def _complete(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            counts = {COUNTS_KEY: json.dumps(self._counts).encode()}
            checksum = checksum_of({METADATA_KEY: self._metadata, **counts})
            self.files.append(file.complete({**counts, CHECKSUM_KEY: checksum}))


def _by_path(compression: str | Mapping[str, str], schema: pa.Schema) -> Any:
    """Converts the writer's setting `compression` to pyarrow's argument of the same name.

    A dict ``{column: codec}`` becomes ``{path in the Parquet file: codec}``, with "none" for all other columns. A
    string (one codec for all columns) is returned unchanged.
    """
    if isinstance(compression, str):
        return compression
    paths = {}
    for field in schema:
        column = field.name.partition("/")[0]
        path = f"{field.name}.list.element" if pa.types.is_fixed_size_list(field.type) else field.name
        paths[path] = compression.get(column, "none")
    return paths


def cut_to(steps: Steps, max_rows: int) -> Steps:
    """Splits each episode chunk with more than `max_rows` rows into smaller chunks.

    Each new chunk has at most `max_rows` rows, including a final row, which is not a step and contains the observation
    after the chunk's last step. If no chunk is too long, returns `steps` itself.
    """
    starts = steps.piece_starts()
    lengths = np.diff(starts)
    if not len(lengths) or lengths.max() <= max_rows:
        return steps
    rows, added = [], []
    for start, stop in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        # A final row between two of them has the observation of the row that follows it.
        cuts = list(range(start + max_rows - 1, stop - 1, max_rows - 1))
        for begin, end in zip([start, *cuts], [*cuts, stop], strict=True):
            own = np.arange(begin, end + (end != stop))
            rows.append(own)
            added.append(np.arange(len(own)) == (len(own) - 1 if end != stop else -1))
    index, is_added = np.concatenate(rows), np.concatenate(added)

    def taken(name: str, column: Any) -> Any:
        if name in IN_FINAL_ROWS:
            return tree_map(lambda x: np.asarray(x)[index], column)
        return tree_map(lambda x: _zeroed(np.asarray(x)[index], is_added), column)

    is_final = steps.is_final[index] | is_added
    cut = Steps(steps.columns, is_final, steps.episode[index], steps.t[index], steps.episode_ids)
    return cut.map_columns(taken)


def _zeroed(array: np.ndarray, where: np.ndarray) -> np.ndarray:
    array[where] = 0
    return array
