"""Readers of files, chosen by the files' names and metadata."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxrl_stack.datasets.array_tables import npz_reader
from jaxrl_stack.datasets.bad_data import BadDataError
from jaxrl_stack.datasets.dataset_info import DatasetInfo
from jaxrl_stack.datasets.episode_files import EpisodeReader, has_episodes
from jaxrl_stack.datasets.foreign_columns import ForeignColumns
from jaxrl_stack.datasets.hdf5_files import hdf5_reader
from jaxrl_stack.datasets.own_files import OwnReader, is_own
from jaxrl_stack.datasets.parquet_files import opened
from jaxrl_stack.datasets.pieces import Reader
from jaxrl_stack.datasets.row_tables import TableReader, columns_of_table, labels_in_path
from jaxrl_stack.datasets.sample_batches import JsonBatches, ParquetBatches, SampleBatchReader
from jaxrl_stack.datasets.step_writer import ROW_GROUP_ROWS

if TYPE_CHECKING:
    from jaxrl_stack.datasets.read_options import ReadOptions

PARQUET = (".parquet", ".pq", ".parq")
NPZ = ".npz"
HDF5 = (".hdf5", ".h5")
JSON = (".json", ".jsonl")
SUFFIXES = (*PARQUET, NPZ, *HDF5)
"""Suffixes of the files that are read in folders. Files of `JSON` are read, too, if they hold RLlib's batches."""
_ARRAYS = "numpy.savez('steps.npz', obs=..., actions=..., rewards=..., terminateds=...)"
CONVERSIONS = {
    (".csv", ".tsv", ".csv.gz"): "Convert the file: pandas.read_csv({path!r}).to_parquet('steps.parquet').",
    JSON: "Convert the file: pandas.read_json({path!r}, lines=True).to_parquet('steps.parquet').",
    (".feather", ".arrow"): "Convert the file: pandas.read_feather({path!r}).to_parquet('steps.parquet').",
    (".orc",): "Convert the file: pandas.read_orc({path!r}).to_parquet('steps.parquet').",
    (".pkl", ".pickle"): f"Loading a pickle runs its code, so load it yourself and write its arrays: {_ARRAYS}.",
    (
        ".npy",
        ".pt",
        ".pth",
        ".tfrecord",
        ".zarr",
        ".zip",
        ".gz",
        ".tar",
        ".mat",
        ".xlsx",
    ): f"Write the file's arrays: {_ARRAYS}.",
}
"""Sentences about files of other kinds, by the ends of their names."""
CONVERTIBLE = tuple(suffix for suffixes in CONVERSIONS for suffix in suffixes)


class _File(NamedTuple):
    """Opened data file with a key (`kind`) that selects its reader. If `kind` is None, `content` is the reader itself;
    otherwise, `content` is the opened file.

    Attributes:
        kind: Files of equal kinds that follow each other are read together.
        content: The open file.
        more: Further metadata of the file.
    """

    kind: Any
    content: Any
    more: Mapping[str, Any] = MappingProxyType({})


def readers_of(filesystem: Any, files: Sequence[str], options: ReadOptions) -> Iterator[Reader]:
    """Creates the readers for the files of one entry of the setting `input_`, in the order of the files.

    Raises:
        BadDataError: A file is none that can be read.
    """
    info = DatasetInfo(options.observation_space, options.action_space, versions={})
    known: dict[Any, ForeignColumns] = {}
    found = [_opened(filesystem, path, options, info, known) for path in files]
    for (kind, more), group in itertools.groupby(found, key=lambda file: (file.kind, file.more)):
        contents = [file.content for file in group]
        info = dataclasses.replace(info, more=more)
        if kind is None:
            yield from contents
        elif kind == "batches":
            yield from (SampleBatchReader(own, options, info) for own in _together(contents))
        elif kind == "episodes":
            yield EpisodeReader(contents, options, info)
        else:
            yield TableReader(contents, options, info)


def _opened(filesystem: Any, path: str, options: ReadOptions, info: DatasetInfo, known: dict[Any, Any]) -> _File:
    if path.endswith((NPZ, *HDF5)):
        return _File(None, (npz_reader if path.endswith(NPZ) else hdf5_reader)(filesystem, path, options, info))
    if path.endswith(JSON):
        return _File("batches", JsonBatches(filesystem, path))
    if (how := conversion_of(path)) is not None:
        raise BadDataError(f"The format of this file is not supported. {how}", path=path)
    file = opened(filesystem, path)
    if is_own(file):
        return _File(None, OwnReader(file, options))
    if has_episodes(file.schema):
        return _File("episodes", file, file.more)
    if options.episodes:
        raise BadDataError(
            "input_read_episodes=True, but the file has no column 'item' of packed (serialized) episodes, only "
            f"{file.schema.names}. If it is a table of steps, set offline_data(input_read_episodes=False).",
            path=path,
        )
    if options.sample_batches:
        return _File("batches", ParquetBatches(file))
    # Data sets have thousands of files with the same columns.
    there = tuple(file.schema.names), tuple(labels_in_path(path, file.schema.names, options))
    if there not in known:
        known[there] = columns_of_table(file, options)
    return _File(known[there], file, file.more)


def conversion_of(path: str) -> str | None:
    """Returns a sentence on how to convert a file of an unsupported kind; None for other files."""
    for suffixes, how in CONVERSIONS.items():
        if path.lower().endswith(suffixes):
            return how.format(path=path)
    return None


def _together(files: Sequence[Any]) -> Iterator[list[Any]]:
    """Groups consecutive small files of RLlib's sample batches. The files of a group are read together. A group of
    several files has at most `_BYTES_TOGETHER` bytes.
    """
    group: list[Any] = []
    for file in files:
        if group and sum(own.num_bytes for own in [*group, file]) > _BYTES_TOGETHER:
            yield group
            group = []
        group.append(file)
    if group:
        yield group


_BYTES_TOGETHER = 1024 * ROW_GROUP_ROWS
