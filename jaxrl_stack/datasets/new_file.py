"""Parquet file that gets its final name only when it is complete."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from jaxrl_stack.datasets.locations import UNFINISHED, Folder

CHECKSUMS = {"write_page_checksum": True}
"""Arguments of pyarrow's writers with which readers find bits that have changed."""


class NewFile:
    """Parquet file with the temporary name ``.<name>.writing`` until it is complete.

    Args:
        folder: Folder of the file.
        name: Name of the file.
        schema: Schema of its tables.
        options: For pyarrow's ParquetWriter.

    Raises:
        OSError: The file cannot be written.
    """

    def __init__(self, folder: Folder, name: str, schema: pa.Schema, options: Mapping[str, Any]):
        self.num_rows = 0
        self._folder, self._name = folder, name
        self._aside = f".{name}{UNFINISHED}"
        texts: Any = [field.name for field in schema if pa.types.is_dictionary(field.type)]
        self._stream = folder.open_output(self._aside)
        self._writer = pq.ParquetWriter(self._stream, schema, **{"use_dictionary": texts, **CHECKSUMS, **options})

    def write(self, table: pa.Table) -> None:
        """Appends a table to the Parquet file as a row group; deletes the file if writing fails."""
        try:
            self._writer.write_table(table, row_group_size=table.num_rows)
        except BaseException:
            self.abandon()
            raise
        self.num_rows += table.num_rows

    def complete(self, metadata: dict[bytes, bytes] | None = None) -> str:
        """Closes the Parquet file, gives the file its final name and returns the path; deletes the file if
        this fails.
        """
        try:
            self._writer.add_key_value_metadata(metadata or {})
            self._writer.close()
            self._stream.close()
            return self._folder.rename(self._aside, self._name)
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Closes and deletes the unfinished Parquet file."""
        for close in (self._writer.close, self._stream.close):
            with contextlib.suppress(OSError, ValueError, pa.ArrowException):
                close()
        with contextlib.suppress(OSError):
            self._folder.delete(self._aside)


def free_name(folder: Folder, name: str) -> str:
    """Returns the first unused name among ``<name>-00000.parquet``, ``<name>-00001.parquet``, ..."""
    names = (f"{name}-{number:05d}.parquet" for number in itertools.count())
    return next(own for own in names if not folder.has(own))
