"""Reads steps from files of named arrays: npz files, and D4RL's HDF5 files."""

from __future__ import annotations

import dataclasses
import math
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.datasets.bad_data import BadDataError
from jaxrl_stack.datasets.env_actions import module_actions
from jaxrl_stack.datasets.foreign_columns import ForeignColumns
from jaxrl_stack.datasets.foreign_rows import ForeignTable, piece_of
from jaxrl_stack.datasets.parquet_files import damage_of
from jaxrl_stack.datasets.pieces import PieceRef
from jaxrl_stack.datasets.steps import Steps
from jaxrl_stack.utils.nested import tree_leaves

if TYPE_CHECKING:
    from jaxrl_stack.datasets.dataset_info import DatasetInfo
    from jaxrl_stack.datasets.read_options import ReadOptions

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}

Load = Callable[[Sequence[str]], Mapping[str, np.ndarray]]
"""Arrays of a file, by their names."""


class ArrayForm(NamedTuple):
    """Shape and dtype of an array in a file, known before the array is read."""

    shape: tuple[int, ...]
    dtype: np.dtype


class ArrayReader:
    """Reads a file of arrays ``[N, ...]`` with one entry per step, always the whole file at once.

    Structures take an array per leaf, named by the way to it: ``obs/position``. Without next observations, a piece that
    did not terminate gives its last observation to its final row.

    Args:
        path: The file.
        there: Arrays of the file by name.
        load: Reads some of them.
        options, info: Options for reading, and origin of the steps.
        of_env: Whether actions are the environment's, as D4RL's are.

    Raises:
        BadDataError: An array is missing.
    """

    num_files = 1

    def __init__(
        self,
        path: str,
        there: Mapping[str, ArrayForm],
        load: Load,
        options: ReadOptions,
        info: DatasetInfo,
        *,
        of_env: bool,
    ):
        self.path, self.info = path, info
        self._there, self._load, self._options, self._of_env = there, load, options, of_env
        columns = ForeignColumns.of(list(there), options, path)
        rows = there[tree_leaves(columns.names[Columns.ACTIONS])[0]].shape[0]
        # D4RL's files have arrays of other lengths, too, such as the weights of the policy that acted.
        extras = [name for name in columns.extras if _is_output(there[name], rows) or name in columns.needed]
        self._columns = dataclasses.replace(columns, extras=extras)
        self.pieces = [PieceRef(path, 0, None, rows)] if rows else []

    def read(self, piece: PieceRef) -> Steps:
        with damage_of(self.path):
            arrays = self._load(self._columns.to_read)
            values = self._columns.assembled({name: self._value(name, own) for name, own in arrays.items()}, self.path)
        action_space = self._options.action_space
        is_mapped = self._of_env and self._options.normalize_actions and action_space is not None
        if action_space is not None and is_mapped:
            values[Columns.ACTIONS] = module_actions(
                values[Columns.ACTIONS], action_space, lambda row: (self.path, row)
            )
        table = ForeignTable(values, lambda row: (self.path, row))
        return piece_of(table, self._columns, self._options, self.info, has_bounds=not is_mapped)

    def read_all(self) -> Iterator[Steps]:
        for piece in self.pieces:
            yield self.read(piece)

    def num_bytes(self, columns: Sequence[str]) -> int:
        """Returns the number of bytes that the given columns of this file will need in memory, in JAX's
        32-bit dtypes.
        """
        wanted = [leaf for name in columns if name in self._columns.wanted for leaf in self._leaves(name)]
        return sum(math.prod(form.shape) * min(4, form.dtype.itemsize) for form in map(self._there.__getitem__, wanted))

    def _leaves(self, column: str) -> list[str]:
        return tree_leaves(self._columns.wanted[column])

    def _value(self, name: str, array: np.ndarray) -> Any:
        if self._columns.column_of(name) in self._columns.labels:
            labels = np.ravel(array)
            unknown = np.isnan(labels) if labels.dtype.kind == "f" else None
            return pa.chunked_array([pa.array(labels.astype(str), pa.string(), mask=unknown)])
        if array.dtype.kind not in "biuf":
            raise BadDataError(f"The array {name} has dtype {array.dtype}: write an array of numbers.", path=self.path)
        return array


def _is_output(form: ArrayForm, rows: int) -> bool:
    return form.shape[0] == rows and form.dtype.kind in "biuf"


def npz_reader(filesystem: Any, path: str, options: ReadOptions, info: DatasetInfo) -> ArrayReader:
    """Creates a reader of the recorded steps in an npz file.

    Raises:
        BadDataError: The file is no npz file, or holds Python objects.
    """

    def load(names: Sequence[str]) -> dict[str, np.ndarray]:
        with filesystem.open_input_file(path) as source, zipfile.ZipFile(source) as file:
            return {name: _array(file, name, path) for name in names}

    with damage_of(path):
        with filesystem.open_input_file(path) as source, zipfile.ZipFile(source) as file:
            names = [name.removesuffix(".npy") for name in file.namelist() if name.endswith(".npy")]
            forms = {name: _form(file, name) for name in names}
        there = {name: form for name, form in forms.items() if form is not None and form.shape}
    objects = [name for name, form in forms.items() if form is not None and form.dtype.hasobject and not form.shape]
    if objects and not there:
        raise BadDataError(
            f"The entry {objects[0]} is a pickled Python object, but only arrays of numbers or texts can be read. If "
            f"the object is a dict, write each of its values as an entry: numpy.savez({path!r}, **numpy.load({path!r}, "
            f"allow_pickle=True)[{objects[0]!r}].item()).",
            path=path,
        )
    return ArrayReader(path, there, load, options, info, of_env=False)


def _form(file: zipfile.ZipFile, name: str) -> ArrayForm | None:
    """Returns the shape and dtype of an array in an npz file, without reading its numbers. Returns None if the array's
    ``.npy`` format version is unknown.
    """
    with file.open(f"{name}.npy") as content:
        version = np.lib.format.read_magic(content)  # pyright: ignore[reportArgumentType]
        if version not in _HEADERS:
            return None
        shape, _, dtype = _HEADERS[version](content)  # pyright: ignore[reportArgumentType]
        return ArrayForm(shape, dtype)


def _array(file: zipfile.ZipFile, name: str, path: str) -> np.ndarray:
    """Reads an array from an npz file, after a check that the array is stored completely."""
    member = file.getinfo(f"{name}.npy")
    with file.open(member) as content:
        version = np.lib.format.read_magic(content)  # pyright: ignore[reportArgumentType]
        shape, fortran, dtype = _HEADERS[version](content)  # pyright: ignore[reportArgumentType]
        if dtype.kind not in "biufUS" or dtype.hasobject:
            raise BadDataError(
                f"The array {name} has dtype {dtype}, but only numbers and texts can be read. Convert it to numbers.",
                path=path,
            )
        left = member.file_size - content.tell()
        size = int(np.prod(shape, dtype=object)) * dtype.itemsize
        if size != left:
            raise BadDataError(
                f"The array {name} has {left:,} bytes, but its shape needs {size:,}: the file is damaged. Write it "
                "again.",
                path=path,
            )
        data = content.read(size)
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")
