"""Array files in safetensors format: a header that describes the arrays, followed by their bytes. They contain no code.

A reader knows the expected content, and accepts a header only if it is the expected one, byte for byte: the file is
never parsed.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping

import numpy as np

DTYPE_NAMES = {"bool": "BOOL", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64"} | {
    f"{kind}{bits}": f"{kind[0].upper()}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)
}
"""The format's names of real dtypes."""


def write_arrays(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays to a new file, one after the other, without copies of C-contiguous arrays. Returns when the file is
    on disk (``os.fsync``).

    Args:
        path: The file, which must not exist.
        arrays: Arrays by name, in the byte order of this machine.
    """
    header, names = _header({name: (array.shape, array.dtype) for name, array in arrays.items()})
    with open(path, "xb") as file:
        file.write(header)
        for name in names:
            file.write(bytes_of(arrays[name]))
        file.flush()
        os.fsync(file.fileno())


def read_arrays(
    path: str | os.PathLike[str], described: Mapping[str, tuple[tuple[int, ...], np.dtype]]
) -> dict[str, np.ndarray]:
    """Reads the arrays of a file, each into new memory.

    Args:
        path: The file.
        described: ``{name: (shape, dtype)}`` of all arrays in it.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If the file does not contain exactly these arrays. Sizes are checked before memory is allocated.
    """
    header, names = _header(described)
    size = len(header) + sum(math.prod(shape) * dtype.itemsize for shape, dtype in described.values())
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size != size or file.read(len(header)) != header:
            raise ValueError(
                "the file's arrays differ from their names, shapes and dtypes in the JSON that describes them"
            )
        arrays = {name: np.empty(*described[name]) for name in names}
        if any(file.readinto(bytes_of(array)) != array.nbytes for array in arrays.values()):
            raise ValueError("the file was truncated while it was read")
    return arrays


def bytes_of(array: np.ndarray) -> memoryview:
    """Bytes of an array in C order, without a copy if the array is C-contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _header(described: Mapping[str, tuple[tuple[int, ...], np.dtype]]) -> tuple[bytes, list[str]]:
    """Returns the header of an array file, and the names of the arrays in the order of the file.

    The header consists of the first bytes of the file, and describes the arrays. In the order of the file, wide dtypes
    come first, for alignment.
    """
    names = sorted(described, key=lambda name: (-described[name][1].itemsize, name))
    entries, end = {}, 0
    for name in names:
        shape, dtype = described[name]
        start, end = end, end + math.prod(shape) * dtype.itemsize
        known = DTYPE_NAMES.get(dtype.name)  # complex numbers have none: bytes
        kind = {"dtype": known, "shape": shape} if known else {"dtype": "U8", "shape": [end - start]}
        entries[name] = {**kind, "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, names
