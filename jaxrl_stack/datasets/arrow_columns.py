"""Conversion of Arrow columns to arrays: numbers, lists, and Ray Data's tensors."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pyarrow as pa

from jaxrl_stack.datasets.bad_data import BadDataError
from jaxrl_stack.datasets.packed_columns import loaded_sizes


def numbers_of(column: pa.ChunkedArray, *, path: str, name: str, first_row: int = 0) -> np.ndarray:
    """Converts an Arrow column of numbers, lists or bytes to an array, as a view if possible.

    Args:
        column: Numbers, or lists of one length, nested or not, or bytes of one length; also as categories.
        path, name: File and column, for errors.
        first_row: The first row's number in the file.

    Returns:
        ``[N, *lengths]``.

    Raises:
        BadDataError: The column has nulls, lists of several lengths, or no numbers.
    """
    where = _ColumnRows(path, name, first_row)
    chunks, rows = [], first_row
    for chunk in column.chunks:
        chunks.append(_numbers(chunk, where._replace_row(rows)))
        rows += len(chunk)
    if not chunks:
        return _numbers(pa.array([], column.type), where)
    if len({chunk.shape[1:] for chunk in chunks if len(chunk)}) > 1:
        raise where.error("the column's arrays differ in shape; write arrays of equal shape")
    chunks = [chunk for chunk in chunks if len(chunk)] or chunks[:1]
    return chunks[0] if len(chunks) == 1 else np.concatenate(chunks)


class _ColumnRows:
    """Creates errors about values in one column of a file; the errors name the file and the row number."""

    def __init__(self, path: str, name: str, first_row: int):
        self.path, self.name, self.first_row = path, name, first_row

    def _replace_row(self, first_row: int) -> _ColumnRows:
        return _ColumnRows(self.path, self.name, first_row)

    def error(self, what: str, row: int | None = None) -> BadDataError:
        row = None if row is None else self.first_row + row
        return BadDataError(f"The column {self.name} cannot be read: {what}.", path=self.path, row=row)


def _numbers(array: Any, where: _ColumnRows) -> np.ndarray:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if array.null_count:
        row = int(np.flatnonzero(np.asarray(array.is_null()))[0])
        raise where.error("the row has no value; remove such rows from the data", row)
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _numbers(array.dictionary_decode(), where)
    if pa.types.is_decimal(kind):
        return array.cast(pa.float64()).to_numpy(zero_copy_only=False)
    if pa.types.is_fixed_size_list(kind):
        values = array.flatten()
        _check_values(values, np.arange(len(array) + 1) * kind.list_size, where)
        return _numbers(values, where).reshape(len(array), kind.list_size, *_below(array))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _lists(array, where)
    if pa.types.is_fixed_size_binary(kind):
        data = np.frombuffer(array.buffers()[1] or b"", np.uint8)
        return data[array.offset * kind.byte_width :][: len(array) * kind.byte_width].reshape(
            len(array), kind.byte_width
        )
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _bytes(array, where)
    if pa.types.is_boolean(kind):
        return np.asarray(array.to_numpy(zero_copy_only=False), bool)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return array.to_numpy(zero_copy_only=False)
    if pa.types.is_temporal(kind):
        raise where.error(
            f"the column's values are times ({kind}): write numbers, such as step numbers from 0 in each episode"
        )
    raise where.error(f"the column's values have the type {kind}: write numbers, or equally long lists of numbers")


def _bytes(array: Any, where: _ColumnRows) -> np.ndarray:
    """Converts an Arrow column of byte strings with equal length to an array, uint8 ``[N, length]``."""
    values = array.to_pylist()
    for name, begin in _IMAGES.items():
        if values and values[0].startswith(begin):
            raise where.error(
                f"the column's values are {name} files, but images are not decoded. Write the numbers: "
                "numpy.asarray(PIL.Image.open(io.BytesIO(value)))"
            )
    odd = next((i for i, value in enumerate(values) if len(value) != len(values[0])), None)
    if odd is not None:
        raise where.error(
            f"a value of this column has {len(values[odd]):,} bytes, but the values before it have {len(values[0]):,} "
            "each; write arrays of equal shape",
            odd,
        )
    return np.frombuffer(b"".join(values), np.uint8).reshape(len(values), len(values[0]) if values else 0)


_IMAGES = {"PNG": b"\x89PNG", "JPEG": b"\xff\xd8\xff", "WebP": b"RIFF", "GIF": b"GIF8"}
"""First bytes of encoded images."""


def _below(array: Any) -> tuple[int, ...]:
    """Returns the shape of one entry of a row's list, in an Arrow column of nested lists.

    For example, the shape is ``(3,)`` if each row is a list ``[L, 3]``, and ``()`` if the entries are numbers. The
    shape contains the lengths of the nested fixed-size list types, up to the first other type.
    """
    kind, shape = array.type.value_type, []
    while pa.types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind = kind.value_type
    return tuple(shape)


def _lists(array: Any, where: _ColumnRows) -> np.ndarray:
    lengths = np.diff(np.asarray(array.offsets))
    length = int(lengths[0]) if len(lengths) else 0
    odd = np.flatnonzero(lengths != length)
    if len(odd):
        raise where.error(
            f"a list of this column has {lengths[odd[0]]:,} entries, but the lists before it have {length:,} each; "
            "write lists of equal length",
            int(odd[0]),
        )
    values = array.flatten()
    _check_values(values, np.arange(len(array) + 1) * length, where)
    values = _numbers(values, where)
    return values.reshape(len(array), length, *values.shape[1:])


def _check_values(values: Any, offsets: np.ndarray, where: _ColumnRows) -> None:
    """Raises an error if a list in an Arrow column contains a null entry. The error names the list's row."""
    if values.null_count:
        entry = int(np.flatnonzero(np.asarray(values.is_null()))[0])
        row = int(np.searchsorted(offsets, entry, "right")) - 1
        raise where.error(
            "a list of this column contains a null entry; remove rows with null entries from the data", row
        )


def tensor_shape(field: pa.Field, path: str) -> tuple[int, ...] | None:
    """Returns the shape of each row of a tensor column (Arrow's or Ray Data's, without importing Ray); None for other
    columns.

    Args:
        field: The column.
        path: File of the column, for errors.

    Raises:
        BadDataError: The field's metadata is damaged, or its rows have other shapes than each other.
    """
    if isinstance(field.type, pa.FixedShapeTensorType):
        order = field.type.permutation
        if order is not None and list(order) != sorted(order):
            raise _unknown_shape(field, f"its axes are stored in the order {list(order)}", path)
        return tuple(field.type.shape)
    if isinstance(field.type, pa.BaseExtensionType):
        name, described = field.type.extension_name, b""
    else:
        metadata = field.metadata or {}
        name = metadata.get(b"ARROW:extension:name", b"").decode()
        described = metadata.get(b"ARROW:extension:metadata", b"")
    if name.startswith("ray.data.arrow_variable_shaped"):
        raise _unknown_shape(field, "its rows have several shapes", path)
    if not name.startswith("ray.data.arrow_tensor"):
        return None
    try:
        # Types that Ray registered have read it; older versions of Ray pickle it.
        if isinstance(field.type, pa.BaseExtensionType):
            shape = tuple(field.type.shape)  # pyright: ignore[reportAttributeAccessIssue]
        else:
            shape = loaded_sizes(described) if described[:1] == b"\x80" else tuple(json.loads(described))
    except (AttributeError, TypeError, ValueError) as error:
        raise _unknown_shape(field, str(error), path) from error
    if not all(type(n) is int and n >= 0 for n in shape) or math.prod(shape) >= 1 << 31:
        raise _unknown_shape(field, f"it is {shape!r:.60}", path)
    return shape


def _unknown_shape(field: pa.Field, why: str, path: str) -> BadDataError:
    return BadDataError(
        f"The column {field.name} has tensors whose shape cannot be read: {why}. Write arrays of one shape, as lists "
        f"of numbers: table[{field.name!r}] = [x.tolist() for x in table[{field.name!r}]], in pandas.",
        path=path,
    )
