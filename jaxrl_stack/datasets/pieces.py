"""Parts of a data set that can be read separately, and the interface of their readers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Protocol

from jaxrl_stack.datasets.dataset_info import DatasetInfo
from jaxrl_stack.datasets.steps import Steps


@dataclasses.dataclass(frozen=True)
class PieceRef:
    """Reference to a part of a data set that can be read separately: a row group, a file, or several small files.

    Attributes:
        path: File of the part, or the first of its files.
        index: Index of the part in `Reader.pieces`.
        num_rows: Number of rows, including final rows; None if unknown before reading.
        num_steps: Number of steps, or an upper bound; None if unknown before reading.
        input: Index of the entry of the setting `input_`.
        reader: Index of the reader in the data set.
    """

    path: str
    index: int
    num_rows: int | None
    num_steps: int | None = None
    input: int = 0
    reader: int = 0


class Reader(Protocol):
    """Interface of objects that read recorded steps from one file, or from several files together.

    Attributes:
        path: The file, or the first of them.
        info: Origin of its steps, from its metadata.
        num_files: Files that it reads.
    """

    path: str
    info: DatasetInfo
    num_files: int

    @property
    def pieces(self) -> Sequence[PieceRef]:
        """Parts of the reader's files that can be read separately (row groups, files, or several small files), in the
        order of the files.
        """
        ...

    def read(self, piece: PieceRef) -> Steps:
        """Reads the steps of one part of the reader's files (a row group, a file, or several small files)."""
        ...

    def read_all(self) -> Iterator[Steps]:
        """Yields all steps of the reader's files, in one or more `Steps` objects.

        The rows of tables may be in any order, so all tables are read at once, which keeps episodes complete. Files
        that contain chunks of episodes are read one part (such as a row group) at a time, and a long episode may be
        divided between several objects.
        """
        ...

    def num_bytes(self, columns: Sequence[str]) -> int | None:
        """Estimates the bytes that the given columns of the reader's files will need in memory.

        The estimate is made from metadata or from the first steps. Returns None if the size is unknown before reading.
        """
        ...
