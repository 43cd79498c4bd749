"""Reads Parquet files of RLlib's packed episodes, and of its old SampleBatches: a row is (a part of) an episode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from jaxrl_stack.datasets.bad_data import BadDataError
from jaxrl_stack.datasets.checks import checked
from jaxrl_stack.datasets.parquet_files import ParquetFile
from jaxrl_stack.datasets.pieces import PieceRef
from jaxrl_stack.datasets.rllib_episodes import steps_of_state, unpacked_state
from jaxrl_stack.datasets.steps import Steps

if TYPE_CHECKING:
    from jaxrl_stack.datasets.dataset_info import DatasetInfo
    from jaxrl_stack.datasets.read_options import ReadOptions

ITEM = "item"


def has_episodes(schema: pa.Schema) -> bool:
    """Whether a file is one of packed episodes."""
    return schema.names == [ITEM] and (pa.types.is_binary(schema.types[0]) or pa.types.is_large_binary(schema.types[0]))


class EpisodeReader:
    """Reads files of packed episodes that follow each other; a piece is a row group, or all of several files.

    Args:
        files: The files.
        options: How to read them.
        info: What they are of.
    """

    def __init__(self, files: list[ParquetFile], options: ReadOptions, info: DatasetInfo):
        self.path, self.info = files[0].path, info
        self._files, self._options = files, options
        groups = [0] if len(files) > 1 else range(files[0].metadata.num_row_groups)
        self.pieces = [PieceRef(self.path, i, None) for i in groups if files[0].metadata.num_rows]

    def read(self, piece: PieceRef) -> Steps:
        groups = [(file, None) for file in self._files] if len(self._files) > 1 else [(self._files[0], piece.index)]
        return Steps.concatenated([self._episode(*found) for file, group in groups for found in _rows(file, group)])

    def read_all(self) -> Iterator[Steps]:
        for piece in self.pieces:
            yield self.read(piece)

    def _episode(self, path: str, row: int, data: bytes | None) -> Steps:
        try:
            if data is None:
                raise ValueError("there is none")
            steps = steps_of_state(unpacked_state(data))
        except (ValueError, TypeError, AttributeError, OverflowError) as error:
            raise BadDataError(
                f"The episode cannot be read: {error}. Take it out, or record it again.", path=path, row=row
            ) from error
        wanted = self._options.columns
        if wanted is not None:
            keep = {"obs", "actions", "rewards", "terminateds", "truncateds", *wanted}
            steps = Steps(
                {name: own for name, own in steps.columns.items() if name in keep},
                steps.is_final,
                steps.episode,
                steps.t,
                steps.episode_ids,
            )
        if not self._options.check:
            return steps
        options = self._options
        return checked(steps, options.observation_space, options.action_space, lambda _: (path, row))


def _rows(file: ParquetFile, group: int | None) -> Iterator[tuple[str, int, bytes | None]]:
    """``(path, row in the file, content)``."""
    first = 0 if group is None else sum(file.rows_of(i) for i in range(group))
    column = file.read([ITEM], group).column(ITEM)
    for number, value in enumerate(column):
        yield file.path, first + number, value.as_py()
