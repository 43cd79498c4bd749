"""Parquet files, opened; what goes wrong in them is said of the file."""

from __future__ import annotations

import contextlib
import dataclasses
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.datasets.bad_data import BadDataError

MAX_EXPANSION = 1024
"""How many times as large as its file a column may be in memory before it is taken for a damaged one."""


DAMAGES = (
    pa.ArrowException,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,  # h5py's
    SyntaxError,  # of headers of NumPy's arrays
    TypeError,
    ValueError,
)
"""What is raised over damaged files."""


@dataclasses.dataclass(frozen=True)
class ParquetFile:
    """A Parquet file: where it lies, and its footer. It is opened for each reading: data sets have thousands."""

    filesystem: Any
    path: str
    metadata: pq.FileMetaData
    schema: pa.Schema

    @property
    def own_metadata(self) -> dict[bytes, bytes]:
        """What is said in the footer by who wrote it."""
        return {**(self.schema.metadata or {}), **(self.metadata.metadata or {})}

    def rows_of(self, group: int) -> int:
        """Rows of a row group."""
        return self.metadata.row_group(group).num_rows

    def read(self, columns: Sequence[str], group: int | None = None) -> pa.Table:
        """Some columns of a row group, or of all.

        Raises:
            BadDataError: The file is damaged.
        """
        with damage_of(self.path), self.filesystem.open_input_file(self.path) as source:
            # Ids repeat: they are kept as numbers of texts.
            ids = [name for name in columns if name == Columns.EPS_ID]
            texts = [name for name in ids if pa.types.is_string(self.schema.field(name).type)]
            names = list(columns)
            # Pages have checksums where their writer wrote some; a changed bit is an error then, and not another value.
            with pq.ParquetFile(
                source, metadata=self.metadata, read_dictionary=texts, page_checksum_verification=True
            ) as file:
                table = file.read(columns=names) if group is None else file.read_row_group(group, columns=names)
            if group is None or table.num_rows == self.rows_of(group):
                return table
        raise BadDataError(f"A row group has {table.num_rows:,} rows, not {self.rows_of(group):,}.", path=self.path)


def opened(filesystem: Any, path: str) -> ParquetFile:
    """A file, of which the footer is read.

    Raises:
        BadDataError: It is no Parquet file, or a damaged one.
    """
    with damage_of(path), filesystem.open_input_file(path) as source:
        size = source.size()
        with pq.ParquetFile(source) as file:
            metadata, schema = file.metadata, file.schema_arrow
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        total = sum(group.num_rows for group in groups)
        if total != metadata.num_rows or min((group.num_rows for group in groups), default=0) < 0:
            raise BadDataError(f"Its row groups have {total:,} rows, its footer says {metadata.num_rows:,}.", path=path)
        if max((group.total_byte_size for group in groups), default=0) > MAX_EXPANSION * size:
            raise BadDataError("A row group claims more than its file can hold: the file is damaged.", path=path)
    return ParquetFile(filesystem, path, metadata, schema)


@contextlib.contextmanager
def damage_of(path: str) -> Iterator[None]:
    """What readers of a format raise over a file, as a `BadDataError`.

    Raises:
        BadDataError: In place of it.
    """
    try:
        yield
    except BadDataError:
        raise
    except FileNotFoundError as error:
        raise BadDataError("The file is gone.", path=path) from error
    except DAMAGES as error:
        text = str(error).partition("\n")[0][:200] or type(error).__name__
        raise BadDataError(
            f"The file cannot be read: {text}. It is damaged, cut off, or of another kind: write it again.", path=path
        ) from error
