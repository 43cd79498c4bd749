"""Writers of recorded steps in RLlib's file formats: packed episodes, or one row per step."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.datasets.dataset_info import DatasetInfo
from jaxrl_stack.datasets.episode_files import ITEM
from jaxrl_stack.datasets.locations import Folder
from jaxrl_stack.datasets.new_file import NewFile, free_name
from jaxrl_stack.datasets.packed_columns import packed
from jaxrl_stack.datasets.rllib_episodes import packed_state, state_of_piece
from jaxrl_stack.datasets.steps import Steps

_TENSOR = "ray.data.arrow_tensor_v2"
_ROWS_AT_ONCE = 1024


class RLlibWriter:
    """Writes steps in RLlib's format to ``<folder>/<name>-00000.parquet`` and so on, with the interface of
    `StepWriter`.

    Args:
        folder, name, about, compression, filesystem: As `StepWriter` takes them.
        max_rows_per_file: Rows of a file: episodes, or steps.
        episodes: A row is an episode (`output_write_episodes`), else a step. RLlib's `input_read_episodes` takes only
            episodes that ended.
        compress_columns: Columns to pack if a row is a step (`output_compress_columns`); next observations follow
            "obs".
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        name: str,
        *,
        about: DatasetInfo,
        max_rows_per_file: int = 100_000,
        compression: str = "snappy",
        filesystem: Any = None,
        episodes: bool = True,
        compress_columns: Sequence[str] = (),
    ):
        if max_rows_per_file < 1:
            raise ValueError(f"max_rows_per_file={max_rows_per_file} must be at least 1.")
        self.name = name
        self.about = about
        self.files: list[str] = []
        """Paths of the files that are complete."""
        self._folder = Folder.of(folder, filesystem)
        self._folder.make()
        self._max_rows = max_rows_per_file
        self._compression = compression
        self._episodes = episodes
        self._packed = frozenset(compress_columns)
        self._waiting: list[pa.Table] = []
        self._file: NewFile | None = None

    def __enter__(self) -> RLlibWriter:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def num_buffered_rows(self) -> int:
        """Number of rows (episodes or steps) that are not in a file yet."""
        return sum(table.num_rows for table in self._waiting)

    def add(self, steps: Steps) -> None:
        """Adds recorded steps to the writer's buffer. If the buffer then contains enough rows for a row group, writes
        buffered rows to a file.

        Raises:
            TypeError: If RLlib's form cannot hold them.
            OSError: The file cannot be written.
        """
        starts = steps.piece_starts().tolist()
        pieces = [steps.rows(a, b) for a, b in itertools.pairwise(starts) if b - a > 1]
        if not pieces:
            return
        if self._episodes:
            spaces = (self.about.observation_space, self.about.action_space)
            items = [packed_state(state_of_piece(piece, spaces)) for piece in pieces]
            self._waiting.append(pa.table({ITEM: pa.array(items, pa.binary())}))
        else:
            self._waiting += [rows_of_piece(piece, self._packed) for piece in pieces]
        if self.num_buffered_rows >= min(_ROWS_AT_ONCE, self._max_rows):
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
        table = pa.concat_tables(self._waiting)
        self._waiting = []
        while table.num_rows:
            at_once = min(_ROWS_AT_ONCE, self._max_rows - (self._file.num_rows if self._file else 0))
            if table.num_rows < at_once and not all_of_it:
                self._waiting = [table]
                return
            self._write_group(table.slice(0, at_once))
            table = table.slice(at_once)

    def _write_group(self, table: pa.Table) -> None:
        if self._file is None:
            name = free_name(self._folder, self.name)
            self._file = NewFile(self._folder, name, table.schema, {"compression": self._compression})
        try:
            self._file.write(table)
        except BaseException:
            self._file = None
            raise
        if self._file.num_rows >= self._max_rows:
            self._complete()

    def _complete(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            self.files.append(file.complete())


def rows_of_piece(steps: Steps, packed_columns: frozenset[str] = frozenset()) -> pa.Table:
    """Converts the recorded steps of one chunk of an episode to a table in RLlib's format, one row per step.

    Raises:
        TypeError: Observations or actions are nested, but RLlib's tables contain only arrays.
    """
    n = steps.num_rows - 1
    arrays: dict[str, pa.Array] = {
        Columns.EPS_ID: pa.array([steps.episode_ids[0]] * n, pa.string()),
        Columns.AGENT_ID: pa.nulls(n),
        Columns.MODULE_ID: pa.nulls(n),
    }
    fields = {name: pa.field(name, own.type) for name, own in arrays.items()}

    flags = [Columns.TERMINATEDS, Columns.TRUNCATEDS]
    names = [Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.NEXT_OBS, *flags]
    names += [name for name in steps.columns if name not in (*names, Columns.INFOS)]
    for name in names:
        source = Columns.OBS if name == Columns.NEXT_OBS else name
        values = steps.columns[source]
        if isinstance(values, dict | tuple | list):
            raise TypeError(
                f"The column {source} is nested, but RLlib's tables contain only arrays. Write episodes: "
                "RLlibWriter(..., episodes=True)."
            )
        own = np.asarray(values)[1:] if source != name else np.asarray(values)[:n]
        own = own.astype(np.float64) if name == Columns.REWARDS else own
        arrays[name], fields[name] = _column(name, own, packs=source in packed_columns)
    return pa.Table.from_arrays(list(arrays.values()), schema=pa.schema(list(fields.values())))


def _column(name: str, array: np.ndarray, *, packs: bool) -> tuple[pa.Array, pa.Field]:
    if array.ndim == 1:
        column = pa.array(array)
        return column, pa.field(name, column.type)
    if packs:
        return pa.array([packed(own) for own in array], pa.string()), pa.field(name, pa.string())
    size = int(np.prod(array.shape[1:]))
    offsets = pa.array(np.arange(len(array) + 1, dtype=np.int64) * size)
    column = pa.LargeListArray.from_arrays(offsets, pa.array(np.ascontiguousarray(array).reshape(-1)))
    described = {"ARROW:extension:name": _TENSOR, "ARROW:extension:metadata": json.dumps(list(array.shape[1:]))}
    return column, pa.field(name, column.type, metadata=described)
