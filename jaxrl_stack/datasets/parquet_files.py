"""Access to Parquet files, with errors that name the file."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

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
"""Exceptions that libraries such as pyarrow and h5py raise for damaged files; see `damage_of`."""


MORE_KEY = b"jaxrl_stack.more"
"""Key of the additional metadata (JSON) that this package writes into tables of steps and files of packed episodes."""


@dataclasses.dataclass(frozen=True)
class ParquetFile:
    """Path and footer of a Parquet file. Each read opens the file again, because data sets can have thousands
    of files.
    """

    filesystem: Any
    path: str
    metadata: pq.FileMetaData
    schema: pa.Schema

    @property
    def own_metadata(self) -> dict[bytes, bytes]:
        """Key-value metadata of the file's footer and of its Arrow schema, ``{key: value}``, as bytes that are not
        decoded.
        """
        return {**(self.schema.metadata or {}), **(self.metadata.metadata or {})}

    @property
    def more(self) -> dict[str, Any]:
        """Additional facts about the data, for which `DatasetInfo` has no other field: a dict of JSON types.

        The dict is read from the file's metadata, and becomes `DatasetInfo.more`. This package writes these facts into
        tables of steps and files of packed (serialized) episodes. Empty for files of other programs.
        """
        with damage_of(self.path):
            found = json.loads(self.own_metadata.get(MORE_KEY, b"{}"))
            if not isinstance(found, dict):
                raise ValueError(
                    "the entry jaxrl_stack.more of the file's metadata must be a JSON object (a dict), but has the "
                    f"type {type(found).__name__}"
                )
            return found

    def rows_of(self, group: int) -> int:
        """Returns the number of rows of a row group."""
        return self.metadata.row_group(group).num_rows

    def lowest(self, column: str) -> int | None:
        """Returns the minimum of an integer column from the file's statistics; None if a row group has no
        statistics.
        """
        found = []
        for group in range(self.metadata.num_row_groups):
            own = self.metadata.row_group(group)
            for i in range(own.num_columns):
                if own.column(i).path_in_schema == column and own.num_rows:
                    statistics = own.column(i).statistics
                    found.append(statistics.min if statistics is not None and statistics.has_min_max else None)
        return min(found) if found and all(isinstance(lowest, int) for lowest in found) else None

    def read(self, columns: Sequence[str], group: int | None = None, *, limit: int | None = None) -> pa.Table:
        """Reads columns of the row group with the index `group`, or of the whole file if `group` is None.

        Args:
            columns: Names of the columns.
            group: The row group; None for all of them.
            limit: Read so many rows at most, from the first one on; None for all.

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
                if limit is not None:
                    groups = None if group is None else [group]
                    batches = file.iter_batches(limit, row_groups=groups, columns=names)
                    return pa.Table.from_batches(list(itertools.islice(batches, 1)))
                table = file.read(columns=names) if group is None else file.read_row_group(group, columns=names)
            if group is None or table.num_rows == self.rows_of(group):
                return table
        raise BadDataError(
            f"A row group has {table.num_rows:,} rows, but the file's footer says {self.rows_of(group):,}: the file is "
            "damaged. Write it again.",
            path=self.path,
        )


def opened(filesystem: Any, path: str) -> ParquetFile:
    """Reads and checks the footer of a file.

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
            raise BadDataError(
                f"The file's row groups have {total:,} rows, but its footer says {metadata.num_rows:,}: the file is "
                "damaged. Write it again.",
                path=path,
            )
        if max((group.total_byte_size for group in groups), default=0) > MAX_EXPANSION * size:
            raise BadDataError(
                "A row group declares more bytes than its file can hold: the file is damaged. Write it again.",
                path=path,
            )
    return ParquetFile(filesystem, path, metadata, schema)


class FilePart(NamedTuple):
    """Part of a Parquet file to read: one row group, or all row groups.

    Attributes:
        file: Number of the file.
        group: Row group; None for all of them.
    """

    file: int
    group: int | None


def parts_of(files: Sequence[ParquetFile], max_rows: int) -> Iterator[list[FilePart]]:
    """Groups the row groups of Parquet files into parts that are read at once: one row group, or several small files
    together.

    Args:
        files: The files, in order.
        max_rows: Rows of files that are read together.
    """
    together: list[FilePart] = []
    rows = 0

    def alone(part: FilePart) -> Iterator[list[FilePart]]:
        groups = range(files[part.file].metadata.num_row_groups)
        yield from ([FilePart(part.file, i)] for i in groups if files[part.file].rows_of(i))

    for number, file in enumerate(files):
        own = file.metadata.num_rows
        if together and rows + own > max_rows:
            yield from alone(together[0]) if len(together) == 1 else iter([together])
            together, rows = [], 0
        if own:
            together.append(FilePart(number, None))
            rows += own
    if together:
        yield from alone(together[0]) if len(together) == 1 else iter([together])


@contextlib.contextmanager
def damage_of(path: str) -> Iterator[None]:
    """Context manager that converts errors of file readers to a `BadDataError`.

    Raises:
        BadDataError: In place of the reader's error.
    """
    try:
        yield
    except BadDataError:
        raise
    except FileNotFoundError as error:
        raise BadDataError("The file no longer exists. Restore it, or remove it from input_.", path=path) from error
    except DAMAGES as error:
        text = str(error).partition("\n")[0][:200] or type(error).__name__
        raise BadDataError(
            f"The file cannot be read: {text}. The file is damaged, incomplete, or in another format: write it again.",
            path=path,
        ) from error
