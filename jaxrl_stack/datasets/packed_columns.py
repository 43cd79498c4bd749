"""Decoder of arrays that RLlib packs as text: base64 of an LZ4 frame that contains a pickle.

Unpickling accepts only arrays, numbers, and (nested) dicts, lists and tuples of arrays and numbers; it refuses all
other objects.

A pickle is a program that can call any function. The unpickler in this module lets pickles call only two functions,
which replace NumPy's constructors of arrays and dtypes. The results become arrays only after a check.
"""

from __future__ import annotations

import base64
import dataclasses
import io
import math
import pickle
import struct
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from jaxrl_stack.datasets.bad_data import BadDataError
from jaxrl_stack.utils.nested import batch
from jaxrl_stack.utils.optional_packages import optional_import

MAX_VALUE_BYTES = 1 << 24
"""Bytes that one value of an unknown space may have."""
_MAX_NODES = 4096
_MAX_DEPTH = 32
_ALLOWED = """
PROTO FRAME STOP MARK MEMOIZE BINPUT LONG_BINPUT BINGET LONG_BINGET GLOBAL STACK_GLOBAL REDUCE BUILD NONE NEWTRUE
NEWFALSE BININT BININT1 BININT2 BINFLOAT SHORT_BINUNICODE BINUNICODE SHORT_BINBYTES BINBYTES BINBYTES8 BYTEARRAY8
EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST APPEND APPENDS EMPTY_DICT SETITEM SETITEMS
"""


def unpacked(texts: Sequence[str], *, path: str, name: str, first_row: int = 0, max_bytes: int | None = None) -> Any:
    """Decodes a column with one packed array (an array encoded as text) per row, and stacks the arrays to a pytree of
    ``[N, ...]``.

    Args:
        texts: The column.
        path, name, first_row: File, column and number of its first row, for errors.
        max_bytes: Bytes that one value may have; None for `MAX_VALUE_BYTES`.

    Raises:
        BadDataError: A text is no packed array, has too many bytes, or another shape than those before it.
        ImportError: lz4 is not installed.
    """
    frames = optional_import("lz4.frame", purpose="A packed column", install="jaxrl-stack[offline]")
    limit = max_bytes or MAX_VALUE_BYTES
    values: list[Any] = []
    template: _Template | None = None
    for row, text in enumerate(texts):
        try:
            decompressor = frames.LZ4FrameDecompressor()
            data = decompressor.decompress(base64.b64decode(text, validate=True), max_length=limit + 1)
            if len(data) > limit or not decompressor.eof:
                raise ValueError(f"the value is truncated, or has more than {limit:,} bytes")
            found = template.array_of(data) if template is not None else None
            if found is None:
                found = loaded(data)
                template = _Template.of(data, found)
                limit = min(limit, len(data) + 4096)
            values.append(found)
        except Exception as error:  # what a damaged pickle raises is not documented
            raise BadDataError(
                f"The column {name} holds no packed array: {error}. Write the column again, or, if it "
                "is not packed, remove it from input_compress_columns.",
                path=path,
                row=first_row + row,
            ) from error
    try:
        return batch(values)
    except (TypeError, ValueError) as error:
        raise BadDataError(
            f"The arrays in the column {name} differ in shape or structure: {error}. Write arrays of equal shape "
            "and structure.",
            path=path,
        ) from error


def packed(array: np.ndarray) -> str:
    """Encodes an array as text in RLlib's format: base64 of an LZ4 frame that contains a pickle."""
    frames = optional_import("lz4.frame", purpose="A packed column", install="jaxrl-stack[offline]")
    return base64.b64encode(frames.compress(pickle.dumps(np.ascontiguousarray(array), protocol=5))).decode("ascii")


def loaded(data: bytes) -> Any:
    """Unpickles arrays, numbers, and (nested) dicts, lists and tuples of arrays and numbers; refuses all other objects.

    Raises:
        Exception: It holds something else, or is damaged.
    """
    return _arrays(_Unpickler(io.BytesIO(data), len(data)).load(), [_MAX_NODES], 0)


def loaded_sizes(data: bytes) -> tuple[int, ...]:
    """Unpickles the shape of an array from bytes. Raises ValueError if the pickle is not a tuple of integers.

    Raises:
        ValueError: It holds something else, or is damaged.
    """
    try:
        found = _SizesUnpickler(io.BytesIO(data), len(data)).load()
    except ValueError:
        raise
    except Exception as error:  # what a damaged pickle raises is not documented
        raise ValueError(f"the value is not a pickle of numbers ({type(error).__name__})") from error
    if not isinstance(found, tuple) or not all(type(size) is int for size in found):
        raise ValueError("the pickled shape is not a tuple of whole numbers")
    return found


@dataclasses.dataclass
class _Dtype:
    """Dtype that was found in a pickle: its type code, which is not checked yet, and its byte order."""

    code: Any
    order: str = "="


class _Array:
    """Array that was found in a pickle: its data, dtype and shape, which are not checked yet."""

    def __init__(self, data: Any, dtype: Any, shape: Any, order: Any = "C"):
        self.parts = (data, dtype, shape, order)


def _dtype(code: Any, align: Any = False, copy: Any = False) -> _Dtype:
    return _Dtype(code)


def _frombuffer(data: Any, dtype: Any, shape: Any, order: Any = "C", axis_order: Any = None) -> _Array:
    return _Array(data, dtype, shape, order if axis_order is None else "?")


_GLOBALS = {
    ("numpy", "dtype"): _dtype,
    ("numpy._core.numeric", "_frombuffer"): _frombuffer,
    ("numpy.core.numeric", "_frombuffer"): _frombuffer,
}


_InPython: Any = pickle._Unpickler  # pyright: ignore[reportAttributeAccessIssue] # the one in C trusts sizes


class _Unpickler(_InPython):
    """Safe unpickler for arrays: supports few pickle operations, and only the functions in `_GLOBALS`."""

    def __init__(self, file: io.BytesIO, size: int):
        super().__init__(file)
        self._size = size

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _GLOBALS:
            raise ValueError(f"the pickle names {module}.{name}, which is not allowed")
        return _GLOBALS[module, name]

    def load_reduce(self) -> None:
        args = self.stack.pop()
        function = self.stack[-1]
        if function not in (_dtype, _frombuffer):
            raise ValueError("the pickle calls a function other than NumPy's constructors of arrays and dtypes")
        self.stack[-1] = function(*args)

    def load_build(self) -> None:
        state, made = self.stack.pop(), self.stack[-1]
        if not isinstance(made, _Dtype) or state[0] != 3 or state[1] not in "<>|=" or any(state[2:5]):
            raise ValueError("the pickle contains an object other than numbers and arrays of numbers")
        made.order = state[1]

    def load_bytearray8(self) -> None:
        (size,) = struct.unpack("<Q", self.read(8))
        if size > self._size:
            raise ValueError("the bytes of an array in the pickle are incomplete")
        self.append(self.read(size))

    dispatch: ClassVar[dict[int, Any]] = {
        ord(getattr(pickle, name)): _InPython.dispatch[ord(getattr(pickle, name))] for name in _ALLOWED.split()
    }
    dispatch[ord(pickle.REDUCE)] = load_reduce
    dispatch[ord(pickle.BUILD)] = load_build
    dispatch[ord(pickle.BYTEARRAY8)] = load_bytearray8


class _SizesUnpickler(_Unpickler):
    """Safe unpickler for numbers and tuples, which refuses every function."""

    def find_class(self, module: str, name: str) -> Any:
        raise ValueError(f"the pickle names {module}.{name}, which is not allowed")


def _arrays(value: Any, left: list[int], depth: int) -> Any:
    """Converts the arrays and numbers in an unpickled value to NumPy arrays, and lists to tuples.

    Raises ValueError if the value contains other objects, has too many entries, or is nested too deeply. Decreases
    ``left[0]``, the number of entries that are still allowed, in place.
    """
    left[0] -= 1
    if left[0] < 0 or depth > _MAX_DEPTH:
        raise ValueError(f"the value has more than {_MAX_NODES:,} entries, or more than {_MAX_DEPTH} nested levels")
    if isinstance(value, _Array):
        data, dtype, shape, order = value.parts
        return checked_array(data, _dtype_of(dtype), shape, "C" if order == "C" else "F")
    if isinstance(value, dict):
        return {str(key): _arrays(own, left, depth + 1) for key, own in value.items()}
    if isinstance(value, list | tuple):
        return tuple(_arrays(own, left, depth + 1) for own in value)
    if isinstance(value, bool | int | float):
        return np.asarray(value)
    raise ValueError(f"the value contains a {type(value).__name__}, not only arrays and numbers")


def _dtype_of(described: Any) -> str:
    if not isinstance(described, _Dtype) or not isinstance(described.code, str):
        raise ValueError("an array in the pickle has an invalid dtype")
    return f"{described.order}{described.code}"


def checked_array(data: Any, dtype: Any, shape: Any, order: Any = "C") -> np.ndarray:
    """Converts bytes to an array (a view), after a check of dtype and shape.

    Raises:
        ValueError: Dtype and shape do not fit them, or the dtype is not one of numbers.
    """
    if not isinstance(dtype, str) or not isinstance(data, bytes | bytearray | memoryview):
        raise ValueError("the data of an array is not bytes, or its dtype is not text such as '<f4'")
    try:
        kind = np.dtype(dtype)
    except TypeError as error:
        raise ValueError(str(error)) from error
    is_shape = isinstance(shape, list | tuple) and all(type(n) is int and n >= 0 for n in shape)
    if kind.kind not in "biuf" or kind.itemsize > 8 or not is_shape or len(shape) > _MAX_DEPTH:
        raise ValueError(f"an array has the dtype {dtype!r} and shape {shape!r}, but must be an array of numbers")
    if math.prod(shape) * kind.itemsize != len(data):
        raise ValueError(
            f"an array of dtype {dtype} and shape {tuple(shape)} has {len(data):,} bytes instead of "
            f"{math.prod(shape) * kind.itemsize:,}"
        )
    return np.frombuffer(data, kind).reshape(tuple(shape), order=order)


@dataclasses.dataclass(frozen=True)
class _Template:
    """Template made from the pickle of one array: the bytes before and after the array's numbers.

    Another pickle with the same bytes there is decoded without an unpickler.
    """

    before: bytes
    after: bytes
    dtype: np.dtype
    shape: tuple[int, ...]

    @classmethod
    def of(cls, data: bytes, value: Any) -> _Template | None:
        """Creates a template (the bytes around an array's numbers) from a pickle and its unpickled value; None if the
        value is not a single array.
        """
        if not isinstance(value, np.ndarray) or not value.ndim or not value.flags.c_contiguous:
            return None
        content = value.tobytes()
        heads = (struct.pack("<Q", len(content)), struct.pack("<I", len(content)), bytes([len(content) & 255]))
        for opcode, head in zip((pickle.BYTEARRAY8, pickle.BINBYTES, pickle.SHORT_BINBYTES), heads, strict=True):
            at = data.find(opcode + head + content)
            if at >= 0:
                start = at + 1 + len(head)
                return cls(data[:start], data[start + len(content) :], value.dtype, value.shape)
        return None

    def array_of(self, data: bytes) -> np.ndarray | None:
        """Decodes the array in a pickle that has the same bytes as this template before and after the array's numbers.
        Returns None for other pickles.
        """
        stop = len(data) - len(self.after)
        content = data[len(self.before) : stop]
        fits = len(content) == self.dtype.itemsize * math.prod(self.shape) and data.startswith(self.before)
        if not fits or data[stop:] != self.after:
            return None
        return np.frombuffer(content, self.dtype).reshape(self.shape)
