"""What reads a file of each kind, found by the file's name and by what it says of itself."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from jaxrl_stack.datasets.array_tables import npz_reader
from jaxrl_stack.datasets.bad_data import BadDataError
from jaxrl_stack.datasets.dataset_info import DatasetInfo
from jaxrl_stack.datasets.episode_files import EpisodeReader, has_episodes
from jaxrl_stack.datasets.hdf5_files import hdf5_reader
from jaxrl_stack.datasets.own_files import OwnReader, is_own
from jaxrl_stack.datasets.parquet_files import ParquetFile, opened
from jaxrl_stack.datasets.pieces import Reader
from jaxrl_stack.datasets.row_tables import TableReader, grouped
from jaxrl_stack.datasets.sample_batches import SampleBatchReader

if TYPE_CHECKING:
    from jaxrl_stack.datasets.read_options import ReadOptions

PARQUET = ".parquet"
NPZ = ".npz"
HDF5 = (".hdf5", ".h5")
SUFFIXES = (PARQUET, NPZ, *HDF5)
"""How names of files end that are looked for in folders."""


def readers_of(filesystem: Any, files: Sequence[str], options: ReadOptions) -> Iterator[Reader]:
    """Readers of the files of one input, in order.

    Raises:
        BadDataError: A file is none that can be read.
    """
    info = DatasetInfo(options.observation_space, options.action_space, versions={})
    tables: list[ParquetFile] = []
    for path in files:
        if path.endswith((NPZ, *HDF5)):
            yield from _several(tables, options, info)
            tables = []
            reader = npz_reader if path.endswith(NPZ) else hdf5_reader
            yield reader(filesystem, path, options, info)
            continue
        file = opened(filesystem, path)
        if is_own(file):
            yield from _several(tables, options, info)
            tables = []
            yield OwnReader(file, options)
        else:
            tables.append(file)
    yield from _several(tables, options, info)


def _several(files: Sequence[ParquetFile], options: ReadOptions, info: DatasetInfo) -> Iterator[Reader]:
    """Readers of Parquet files that others wrote."""
    for kind, group in itertools.groupby(files, key=lambda file: _kind_of(file, options)):
        for together in grouped(list(group)):
            yield kind(together, options, info)


def _kind_of(file: ParquetFile, options: ReadOptions) -> Any:
    if has_episodes(file.schema):
        return EpisodeReader
    if options.episodes:
        raise BadDataError(
            f"input_read_episodes=True, but the file has the columns {file.schema.names} and no column 'item' of "
            "packed episodes. Set it to False to read a table of steps.",
            path=file.path,
        )
    return SampleBatchReader if options.sample_batches else TableReader
