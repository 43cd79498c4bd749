"""File format of recorded steps: conversion to Arrow tables, and the metadata of Parquet files.

One row per row of `Steps`, final rows included, in order. A column of numbers ``[N]`` is a column of numbers; one of
arrays ``[N, *shape]`` a column of lists of a fixed size, or of bytes if it is of uint8, such as images. Structures take
a column per leaf, named by the way to it: ``obs/position``. The metadata says how they are put together again.
"""

from __future__ import annotations

import dataclasses
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.datasets.arrow_columns import numbers_of
from jaxrl_stack.datasets.bad_data import BadDataError
from jaxrl_stack.datasets.dataset_info import DatasetInfo
from jaxrl_stack.datasets.foreign_columns import IS_FINAL
from jaxrl_stack.datasets.steps import Steps
from jaxrl_stack.utils.serialization import convert_numpy_to_python_primitives

METADATA_KEY = b"jaxrl_stack"
COUNTS_KEY = b"jaxrl_stack.counts"
CHECKSUM_KEY = b"jaxrl_stack.crc32"
FORMAT = 1
WHERE = (Columns.EPS_ID, Columns.T, Columns.AGENT_ID, Columns.MODULE_ID, IS_FINAL)
"""Columns that say where a row comes from."""
_DTYPES = frozenset(
    ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"]
)


def checksum_of(metadata: Mapping[bytes, bytes]) -> bytes:
    """Returns a checksum of a file's metadata (Parquet pages have checksums already)."""
    return str(zlib.crc32(metadata.get(COUNTS_KEY, b""), zlib.crc32(metadata[METADATA_KEY]))).encode()


@dataclasses.dataclass(frozen=True)
class Leaf:
    """Description of one array in a column of recorded steps: its name in the file, and the shape and dtype of one row.

    A nested column has several arrays.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def arrow_type(self) -> pa.DataType:
        if not self.shape:
            return pa.from_numpy_dtype(np.dtype(self.dtype))
        if self.dtype == "uint8":
            return pa.binary(self.size)
        return pa.list_(pa.from_numpy_dtype(np.dtype(self.dtype)), self.size)

    def to_arrow(self, array: np.ndarray) -> pa.Array:
        """Converts an array ``[N, *shape]`` to an Arrow column."""
        flat = np.ascontiguousarray(array.astype(self.dtype, copy=False)).reshape(-1)
        if not self.shape:
            return pa.array(flat)
        if self.dtype == "uint8":
            return pa.FixedSizeBinaryArray.from_buffers(self.arrow_type, len(array), [None, pa.py_buffer(flat)])
        return pa.FixedSizeListArray.from_arrays(pa.array(flat), self.size)

    def to_numpy(self, column: pa.ChunkedArray, path: str, first_row: int) -> np.ndarray:
        """Converts an Arrow column to an array ``[N, *shape]``, as a view if possible."""
        if column.type != self.arrow_type:
            raise BadDataError(
                f"The column {self.name} has type {column.type}, but the metadata says {self.arrow_type}: the file is "
                "damaged. Record it again.",
                path=path,
            )
        return numbers_of(column, path=path, name=self.name, first_row=first_row).reshape(-1, *self.shape)

    def to_json(self) -> dict[str, Any]:
        return {"column": self.name, "shape": list(self.shape), "dtype": self.dtype}

    @classmethod
    def from_json(cls, node: Mapping[str, Any]) -> Leaf:
        name, shape, dtype = node["column"], node["shape"], node["dtype"]
        is_shape = isinstance(shape, list) and all(type(n) is int and 0 <= n < 1 << 31 for n in shape)
        if not (isinstance(name, str) and is_shape and dtype in _DTYPES and math.prod(shape) < 1 << 31):
            raise ValueError(f"the description {node!r} of a column has an invalid name, shape or dtype")
        return cls(name, tuple(shape), dtype)


@dataclasses.dataclass(frozen=True)
class StepFormat:
    """Column layout (names, shapes, dtypes) of recorded steps in Parquet files; equal in all files of one writer.

    Attributes:
        columns: ``{column: structure of Leaf}``, of dicts, tuples and lists.
    """

    columns: Mapping[str, Any]

    @classmethod
    def of(cls, steps: Steps) -> StepFormat:
        """Creates the column layout (names, shapes, dtypes) of a file that will contain the given steps.

        Raises:
            TypeError: A column cannot be written.
        """
        names = [name for name in steps.columns if name != Columns.INFOS]
        return cls({name: _structure(steps.columns[name], name) for name in names})

    @property
    def leaves(self) -> list[Leaf]:
        return list(_leaves(self.columns))

    @property
    def row_bytes(self) -> int:
        """Bytes per row in memory, all columns together."""
        return sum(leaf.size * np.dtype(leaf.dtype).itemsize for leaf in self.leaves)

    def table(self, steps: Steps, info: DatasetInfo) -> pa.Table:
        """Converts steps to an Arrow table. `Columns.INFOS`, if present, becomes a column of JSON texts."""
        rows, names = steps.num_rows, list(steps.episode_ids)
        arrays: dict[str, pa.Array] = {
            Columns.EPS_ID: pa.DictionaryArray.from_arrays(pa.array(steps.episode), pa.array(names, pa.string())),
            Columns.T: pa.array(steps.t.astype(np.int32, copy=False)),
            Columns.AGENT_ID: _repeated(info.agent_id, rows),
            Columns.MODULE_ID: _repeated(info.module_id, rows),
            IS_FINAL: pa.array(steps.is_final),
        }
        for name, structure in self.columns.items():
            values = _values(structure, steps.columns[name])
            arrays.update({leaf.name: leaf.to_arrow(array) for leaf, array in values if leaf.size})
        if Columns.INFOS in steps.columns:
            texts = [json.dumps(convert_numpy_to_python_primitives(own)) for own in steps.columns[Columns.INFOS]]
            arrays[Columns.INFOS] = pa.array(texts, pa.string())
        return pa.table(arrays).replace_schema_metadata({METADATA_KEY: self.metadata(info)})

    def metadata(self, info: DatasetInfo) -> bytes:
        """Returns the metadata of a file of recorded steps as bytes of JSON: format version, description of the data,
        and columns.
        """
        described = {name: _to_json(structure) for name, structure in self.columns.items()}
        return json.dumps({"format": FORMAT, "about": info.to_json(), "columns": described}).encode()

    @classmethod
    def read(cls, metadata: bytes, path: str) -> tuple[StepFormat, DatasetInfo]:
        """Creates the column layout and the `DatasetInfo` of a file from the JSON bytes that `StepFormat.metadata`
        returned.

        Raises:
            BadDataError: The metadata is damaged, or its format version differs from `FORMAT`.
        """
        try:
            found = json.loads(metadata)
            if found["format"] != FORMAT:
                raise ValueError(
                    f"the file has format {found['format']!r}, but this version of jaxrl_stack reads only {FORMAT}"
                )
            columns = {name: _from_json(node) for name, node in found["columns"].items()}
            return cls(columns), DatasetInfo.from_json(found["about"])
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise BadDataError(
                f"The file's metadata is damaged or from another version of jaxrl_stack: {error}. Record the file "
                "again, or install the jaxrl_stack version that wrote it.",
                path=path,
            ) from error

    def only(self, names: Iterable[str]) -> StepFormat:
        """Returns a layout (names, shapes, dtypes) with only the named columns."""
        return StepFormat({name: own for name, own in self.columns.items() if name in names})

    @property
    def file_columns(self) -> list[str]:
        """Names of the columns to read from a file with this layout.

        These are episode ids, step numbers, the flags of final rows (extra rows for the last observations of chunks),
        and all arrays with at least one number per row.
        """
        return [Columns.EPS_ID, Columns.T, IS_FINAL, *(leaf.name for leaf in self.leaves if leaf.size)]

    def steps(self, table: pa.Table, path: str, first_row: int = 0) -> Steps:
        """Converts an Arrow table that was read from a file to recorded steps; columns are views if possible.

        Args:
            table: Whole pieces, with at least `WHERE` but the ids of agent and module.
            path: The file, for errors.
            first_row: The first row's number in the file.

        Raises:
            BadDataError: A column is missing or damaged, or the last row is not final.
        """

        def array(leaf: Leaf) -> np.ndarray:
            if not leaf.size:
                return np.zeros((table.num_rows, *leaf.shape), leaf.dtype)
            if leaf.name not in table.column_names:
                raise BadDataError(f"The column {leaf.name} is missing. Record the file again.", path=path)
            return leaf.to_numpy(table.column(leaf.name), path, first_row)

        columns = {name: _map(array, structure) for name, structure in self.columns.items()}
        is_final = array(Leaf(IS_FINAL, (), "bool"))
        t = array(Leaf(Columns.T, (), "int32"))
        if len(is_final) and not is_final[-1]:
            raise BadDataError(
                "The episode's final row is missing: the file is damaged. Record it again.",
                path=path,
                row=first_row + len(is_final) - 1,
            )
        if Columns.INFOS in table.column_names:
            columns[Columns.INFOS] = _infos(table.column(Columns.INFOS), path, first_row)
        if Columns.EPS_ID not in table.column_names:
            raise BadDataError(f"The column {Columns.EPS_ID} is missing. Record the file again.", path=path)
        episode, ids = episodes_of(table.column(Columns.EPS_ID), is_final, path, first_row)
        return Steps(columns, is_final, episode, t, ids)


def episodes_of(
    column: pa.ChunkedArray, is_final: np.ndarray, path: str, first_row: int = 0
) -> tuple[np.ndarray, list[str]]:
    """Returns `Steps.episode` (episode index of each row) and `Steps.episode_ids` from a column of episode ids. Raises
    BadDataError if the id changes before an episode's final row.
    """
    if column.null_count:
        raise BadDataError(f"{column.null_count:,} rows have no {Columns.EPS_ID}. Record the file again.", path=path)
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    whole = column.unify_dictionaries().combine_chunks()
    whole = whole if isinstance(whole, pa.DictionaryArray) else whole.chunk(0)
    index = np.asarray(whole.indices)
    changes = np.flatnonzero(index[1:] != index[:-1]) + 1
    inside = changes[~is_final[changes - 1]]
    if len(inside):
        raise BadDataError(
            "An episode begins here, but the previous episode has no final row (row with its last observation): the "
            "file is damaged. Record it again.",
            path=path,
            row=first_row + int(inside[0]),
        )
    episode = np.zeros(len(index), np.int32)
    episode[changes] = 1
    firsts = np.concatenate([[0], changes])[: len(index)]
    ids = whole.dictionary.take(pa.array(index[firsts])).cast(pa.string()).to_pylist()
    return np.cumsum(episode, dtype=np.int32), ids


def _infos(column: pa.ChunkedArray, path: str, first_row: int) -> np.ndarray:
    found = np.empty(len(column), object)
    for row, text in enumerate(column.to_pylist()):
        try:
            found[row] = json.loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise BadDataError(
                f"The value of {Columns.INFOS} is not JSON: {error}. Record the file again.",
                path=path,
                row=first_row + row,
            ) from error
    return found


def _repeated(text: str | None, rows: int) -> pa.Array:
    if text is None:
        return pa.nulls(rows, pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([text]))


def _structure(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _structure(own, f"{name}/{key}") for key, own in value.items()}
    if isinstance(value, list | tuple):
        parts = [_structure(own, f"{name}/{i}") for i, own in enumerate(value)]
        return parts if isinstance(value, list) else tuple(parts)
    dtype = np.dtype(value.dtype).name
    dtype = "float32" if dtype == "bfloat16" else dtype  # Parquet has no such numbers
    if dtype not in _DTYPES:
        raise TypeError(f"The column {name} has dtype {dtype}, which cannot be written. Convert it to numbers or bool.")
    return Leaf(name, tuple(value.shape[1:]), dtype)


def _children(node: Any) -> Iterable[Any]:
    return node.values() if isinstance(node, Mapping) else node


def _leaves(structure: Any) -> Iterator[Leaf]:
    if isinstance(structure, Leaf):
        yield structure
    else:
        for own in _children(structure):
            yield from _leaves(own)


def _values(structure: Any, values: Any) -> Iterator[tuple[Leaf, np.ndarray]]:
    if isinstance(structure, Leaf):
        yield structure, np.asarray(values)
        return
    keys = structure if isinstance(structure, Mapping) else range(len(structure))
    for key in keys:
        yield from _values(structure[key], values[key])


def _map(function: Any, structure: Any) -> Any:
    if isinstance(structure, Leaf):
        return function(structure)
    if isinstance(structure, Mapping):
        return {key: _map(function, own) for key, own in structure.items()}
    return type(structure)(_map(function, own) for own in structure)


def _to_json(structure: Any) -> Any:
    if isinstance(structure, Leaf):
        return structure.to_json()
    if isinstance(structure, Mapping):
        return {"dict": [[key, _to_json(own)] for key, own in structure.items()]}
    return {"tuple" if isinstance(structure, tuple) else "list": [_to_json(own) for own in structure]}


def _from_json(node: Any) -> Any:
    if "column" in node:
        return Leaf.from_json(node)
    if "dict" in node:
        return {str(key): _from_json(own) for key, own in node["dict"]}
    return tuple(map(_from_json, node["tuple"])) if "tuple" in node else list(map(_from_json, node["list"]))
