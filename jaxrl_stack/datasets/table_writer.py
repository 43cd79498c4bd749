"""Writers of recorded steps in other programs' formats: tables of steps, and RLlib's packed episodes."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.datasets.dataset_info import DatasetInfo
from jaxrl_stack.datasets.locations import UNFINISHED, Folder
from jaxrl_stack.datasets.new_file import CHECKSUMS
from jaxrl_stack.datasets.parquet_files import MORE_KEY
from jaxrl_stack.datasets.rllib_episodes import packed_state, state_of_piece
from jaxrl_stack.datasets.steps import Steps


class TableWriter:
    """Writes recorded steps as tables or packed (serialized) episodes that other programs read; has the methods `add`
    and `close` of `StepWriter`.

    Args:
        folder, name, about, max_rows_per_file, filesystem: See `StepWriter`; rows of steps and final rows are counted,
            whatever the form.
        packs_episodes: Whether a row is one piece of an episode, a state of RLlib's ``SingleAgentEpisode`` in msgpack;
            else it is a step with its next observation in a column ``new_obs``, without final rows.
        compression: Compression of Parquet's columns.
        parquet_options: More arguments for pyarrow's ``write_table``.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        name: str,
        *,
        about: DatasetInfo,
        packs_episodes: bool,
        max_rows_per_file: int = 100_000,
        compression: str = "snappy",
        parquet_options: Mapping[str, Any] | None = None,
        filesystem: Any = None,
    ):
        self.num_buffered_rows = 0
        self._folder = Folder.of(folder, filesystem)
        self._folder.make()
        self._name, self._about, self._packs_episodes = name, about, packs_episodes
        self._max_rows = max_rows_per_file
        self._options = {"compression": compression, **CHECKSUMS, **(parquet_options or {})}
        self._waiting: list[Steps] = []
        self._number = 0

    def add(self, steps: Steps) -> None:
        """Adds recorded steps to the writer's buffer.

        If the next chunk of an episode does not fit into a file with the buffered rows, first writes the buffer to a
        file.

        Raises:
            OSError: The file cannot be written.
            TypeError: If the format cannot store a column.
        """
        starts, begin = steps.piece_starts(), 0
        while begin < steps.num_rows:
            space = self._max_rows - self.num_buffered_rows
            fits = int(starts[np.searchsorted(starts, begin + space, "right") - 1])
            if fits <= begin and not self.num_buffered_rows:
                # A piece that is longer than a file is one alone.
                fits = int(starts[np.searchsorted(starts, begin, "right")])
            if fits > begin:
                self._waiting.append(steps.rows(begin, fits))
                self.num_buffered_rows += fits - begin
                begin = fits
            if begin < steps.num_rows:
                self.close()

    def close(self) -> None:
        """Writes the buffered steps into a new file; does nothing if the buffer is empty.

        Raises:
            OSError: The file cannot be written.
        """
        if not self._waiting:
            return
        steps = Steps.concatenated(self._waiting)
        table = _packed(steps, self._about) if self._packs_episodes else _rows(steps, self._about)
        table = table.replace_schema_metadata({MORE_KEY: json.dumps(dict(self._about.more)).encode()})
        name = self._free_name()
        aside = f".{name}{UNFINISHED}"
        with self._folder.open_output(aside) as stream:
            pq.write_table(table, stream, **self._options)
        self._folder.rename(aside, name)
        self._waiting, self.num_buffered_rows = [], 0

    def _free_name(self) -> str:
        while True:
            name = f"{self._name}-{self._number:05d}.parquet"
            self._number += 1
            if not self._folder.has(name):
                return name


def _packed(steps: Steps, about: DatasetInfo) -> pa.Table:
    starts, spaces = steps.piece_starts().tolist(), (about.observation_space, about.action_space)
    pieces = (steps.rows(start, stop) for start, stop in itertools.pairwise(starts))
    items = [packed_state(state_of_piece(piece, spaces)) for piece in pieces]
    return pa.table({"item": pa.array(items, pa.binary())})


def _rows(steps: Steps, about: DatasetInfo) -> pa.Table:
    is_step = np.flatnonzero(~steps.is_final)
    ids = np.array(list(steps.episode_ids), object)[steps.episode[is_step]]
    columns = {
        Columns.EPS_ID: pa.array(ids, pa.string()),
        Columns.T: pa.array(steps.t[is_step]),
        Columns.AGENT_ID: pa.array([about.agent_id] * len(is_step), pa.string()),
        Columns.MODULE_ID: pa.array([about.module_id] * len(is_step), pa.string()),
    }
    for name, column in steps.columns.items():
        if name == Columns.INFOS:
            continue
        columns[name] = _column(column, is_step)
        if name == Columns.OBS:
            columns[Columns.NEXT_OBS] = _column(column, is_step + 1)
    return pa.table(columns)


def _column(column: Any, rows: np.ndarray) -> pa.Array:
    """Converts rows of a column to an Arrow array of numbers, lists or structs."""
    if isinstance(column, Mapping):
        parts = {str(name): _column(own, rows) for name, own in column.items()}
        return pa.StructArray.from_arrays(list(parts.values()), names=list(parts))
    if isinstance(column, list | tuple):
        raise TypeError(
            "Tables of steps cannot contain tuples (values of Tuple spaces). Set "
            "offline_data(output_write_episodes=True)."
        )
    values = np.asarray(column)[rows]
    out = pa.array(np.ascontiguousarray(values).reshape(-1))
    for size in values.shape[:0:-1]:
        out = pa.FixedSizeListArray.from_arrays(out, size)
    return out
