"""What reads a file of each kind, found by the file's name and by what it says of itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from jaxrl_stack.datasets.own_files import OwnReader
from jaxrl_stack.datasets.parquet_files import opened
from jaxrl_stack.datasets.pieces import Reader

if TYPE_CHECKING:
    from jaxrl_stack.datasets.read_options import ReadOptions

SUFFIXES = (".parquet",)
"""How names of files end that are looked for in folders."""


def readers_of(filesystem: Any, files: Sequence[str], options: ReadOptions) -> Iterator[Reader]:
    """Readers of the files of one input, in order.

    Raises:
        BadDataError: A file is none that can be read.
    """
    for path in files:
        yield OwnReader(opened(filesystem, path), options)
