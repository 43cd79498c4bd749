"""Lossless compression of rows of numbers, for histories in checkpoints."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from jaxrl_stack.utils.memory import available_host_bytes, format_bytes

BLOCK_ROWS = 1024
"""Rows that are packed together."""


def packed(rows: np.ndarray) -> np.ndarray:
    """Compresses rows to bytes; `unpacked` is the inverse, bit for bit.

    The first bytes of all numbers come first, then all second bytes, and so on. This groups repeated bytes: signs,
    exponents, and the last bytes of former float32 numbers.

    Args:
        rows: float64 ``[columns, R]``.

    Returns:
        uint8 ``[bytes]``.
    """
    planes = np.ascontiguousarray(rows)[..., None].view(np.uint8)
    return np.frombuffer(zlib.compress(np.moveaxis(planes, -1, 0).tobytes(), 6), np.uint8)


def unpacked(blocks: Sequence[np.ndarray], widths: Sequence[int], num_columns: int, num_rows: int) -> np.ndarray:
    """Decompresses blocks of `BLOCK_ROWS` rows each (the last one may have fewer) and joins them to a table.

    Args:
        blocks: Results of `packed`.
        widths: Number of columns in each block: the first columns of the table. The other columns are NaN in the rows
            of the block.
        num_columns, num_rows: Size of the table.

    Returns:
        float64 ``[columns, rows]``.

    Raises:
        ValueError: If a block is damaged or has another size, or the table does not fit into memory.
    """
    if len(blocks) != -(-num_rows // BLOCK_ROWS) or len(widths) != len(blocks):
        raise ValueError(
            f"The metrics history is damaged: its {num_rows} rows need {-(-num_rows // BLOCK_ROWS)} blocks (up to "
            f"{BLOCK_ROWS} rows each) and one width (number of columns) per block, but it has {len(blocks)} blocks and "
            f"{len(widths)} widths. Load an unchanged copy of the checkpoint."
        )
    size, available = 8 * num_columns * num_rows, available_host_bytes()
    if available is not None and size > available:
        raise ValueError(
            f"The metrics history in the checkpoint needs {format_bytes(size)} of memory, but only "
            f"{format_bytes(available)} are free. Free memory, or load the checkpoint on a machine with more memory."
        )
    table = np.full((num_columns, num_rows), np.nan)
    for place, (block, width) in enumerate(zip(blocks, widths, strict=True)):
        rows = table[:, place * BLOCK_ROWS : (place + 1) * BLOCK_ROWS]
        if not 0 <= width <= num_columns:
            raise ValueError(
                f"The metrics history is damaged: block {place} of the stored table has {width} columns, but the whole "
                f"table has {num_columns}. Load an unchanged copy of the checkpoint."
            )
        rows[:width] = _unpacked_block(block, (width, rows.shape[1]))
    return table


def _unpacked_block(block: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    size = 8 * shape[0] * shape[1]
    reader = zlib.decompressobj()
    try:
        # Never more than is expected, however much the bytes would become.
        planes = reader.decompress(np.asarray(block, np.uint8).tobytes(), size + 1)
    except zlib.error as error:
        raise ValueError(
            f"The metrics history is damaged ({error}). Load an unchanged copy of the checkpoint."
        ) from error
    if len(planes) != size or not reader.eof:
        raise ValueError(
            f"The metrics history is damaged: a block of the stored table does not contain numbers of the shape "
            f"(columns, rows) = {shape}. Load an unchanged copy of the checkpoint."
        )
    numbers = np.moveaxis(np.frombuffer(planes, np.uint8).reshape(8, *shape), 0, -1)
    return np.ascontiguousarray(numbers).view(np.float64)[..., 0]
