"""Steps as arrays by name: npz files, and what D4RL's HDF5 files hold."""

from __future__ import annotations

import dataclasses
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.datasets.bad_data import BadDataError
from jaxrl_stack.datasets.foreign_rows import SCHEMA, ForeignColumns, module_actions, piece_of
from jaxrl_stack.datasets.parquet_files import damage_of
from jaxrl_stack.datasets.pieces import PieceRef
from jaxrl_stack.datasets.steps import Steps

if TYPE_CHECKING:
    from jaxrl_stack.datasets.dataset_info import DatasetInfo
    from jaxrl_stack.datasets.read_options import ReadOptions

D4RL_NAMES = {
    Columns.OBS: "observations",
    Columns.NEXT_OBS: "next_observations",
    Columns.TERMINATEDS: "terminals",
    Columns.TRUNCATEDS: "timeouts",
}
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}

Load = Callable[[Sequence[str]], Mapping[str, np.ndarray]]
"""Arrays of a file, by their names."""


class ArrayReader:
    """Reads a file of arrays ``[N, ...]``, one entry per step; the file is one piece.

    Columns have their own names or D4RL's. Structures take an array per leaf, named by the way to it: ``obs/position``.
    Without next observations, a piece that did not terminate gives its last observation to its final row.

    Args:
        path: The file.
        there: ``{name: number of entries}`` of its arrays.
        load: Reads some of them.
        options, info: How to read them, and what they are of.
        of_env: Whether actions are the environment's, as D4RL's are.

    Raises:
        BadDataError: An array is missing.
    """

    def __init__(
        self, path: str, there: Mapping[str, int], load: Load, options: ReadOptions, info: DatasetInfo, *, of_env: bool
    ):
        self.path, self.info = path, info
        tops = list(dict.fromkeys(name.partition("/")[0] for name in there))
        schema = {c: D4RL_NAMES[c] for c in D4RL_NAMES if c not in tops and D4RL_NAMES[c] in tops}
        self._options = dataclasses.replace(options, schema={**schema, **options.schema})
        self._of_env = of_env
        self._load = load
        self._columns = ForeignColumns.of(
            [*tops, *(n for n in there if "/" in n)], self._options, path, needs_next=False
        )
        flags = [self._columns.names[c] for c in (Columns.TERMINATEDS, "dones") if c in self._columns.names]
        rows = there[flags[0]]
        keep = {*self._columns.to_read}
        self._names = [n for n in there if {n, n.partition("/")[0]} & keep]
        # D4RL's files have arrays of other lengths, too, such as the weights of the policy that acted.
        odd = [n for n in self._names if there[n] != rows]
        self._names = [n for n in self._names if n not in odd or n.partition("/")[0] in self._columns.needed]
        self.pieces = [PieceRef(path, 0, None)] if rows else []

    def read(self, piece: PieceRef) -> Steps:
        with damage_of(self.path):
            arrays = self._load(self._names)
            values: dict[str, Any] = {}
            for name, array in arrays.items():
                values.update(_nested(values, name, self._value(name, array)))
            if self._of_env and self._options.action_space is not None and self._options.normalize_actions:
                name = self._columns.names[Columns.ACTIONS]
                values[name] = module_actions(values[name], self._options.action_space, self.path)
            return piece_of(
                values,
                self._columns,
                self._options,
                lambda row: (self.path, row),
                self.info,
                gives_up_last=not self._options.ignore_final_observation,
            )

    def read_all(self) -> Iterator[Steps]:
        for piece in self.pieces:
            yield self.read(piece)

    def _value(self, name: str, array: np.ndarray) -> Any:
        if name in self._columns.labels:
            return pa.chunked_array([pa.array(array.astype(str))])
        if array.dtype.kind not in "biuf":
            raise BadDataError(f"The array {name} is of {array.dtype}, not of numbers.", path=self.path)
        return array


def _nested(values: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    """``{first part of the name: structure}``, with what is there of it already."""
    top, _, rest = name.partition("/")
    if not rest or top not in SCHEMA:
        return {name: value}
    own = dict(values.get(top, {}))
    own.update(_nested_below(own, rest, value))
    return {top: own}


def _nested_below(values: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    top, _, rest = name.partition("/")
    return {top: {**values.get(top, {}), **_nested_below(values.get(top, {}), rest, value)} if rest else value}


def npz_reader(filesystem: Any, path: str, options: ReadOptions, info: DatasetInfo) -> ArrayReader:
    """Reader of an npz file.

    Raises:
        BadDataError: It is none, or holds Python objects.
    """

    def load(names: Sequence[str]) -> dict[str, np.ndarray]:
        with filesystem.open_input_file(path) as source, zipfile.ZipFile(source) as file:
            return {name: _array(file, name, path)[1] for name in names}

    with damage_of(path):
        with filesystem.open_input_file(path) as source, zipfile.ZipFile(source) as file:
            names = [name.removesuffix(".npy") for name in file.namelist() if name.endswith(".npy")]
            shapes = {name: _array(file, name, path, only_shape=True)[0] for name in names}
        there = {name: shape[0] for name, shape in shapes.items() if shape}
    return ArrayReader(path, there, load, options, info, of_env=False)


def _array(file: zipfile.ZipFile, name: str, path: str, *, only_shape: bool = False) -> tuple[Any, Any]:
    """Shape and array of a member; the array is made only if the file has as many bytes."""
    member = file.getinfo(f"{name}.npy")
    with file.open(member) as content:
        version = np.lib.format.read_magic(content)  # pyright: ignore[reportArgumentType]
        if version not in _HEADERS:
            raise BadDataError(f"The array {name} is of the unknown version {version}.", path=path)
        shape, fortran, dtype = _HEADERS[version](content)  # pyright: ignore[reportArgumentType]
        if only_shape:
            return shape, None
        if dtype.kind not in "biufU" or dtype.hasobject:
            raise BadDataError(f"The array {name} is of {dtype}: only numbers and texts are read.", path=path)
        left = member.file_size - content.tell()
        size = int(np.prod(shape, dtype=object)) * dtype.itemsize
        if size != left:
            raise BadDataError(f"The array {name} has {left:,} bytes, its shape needs {size:,}.", path=path)
        data = content.read(size)
    return shape, np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")
