"""Reads tables of RLlib's old SampleBatches: a row is a part of an episode, a cell all of a column's steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.datasets.arrow_columns import numbers_of
from jaxrl_stack.datasets.bad_data import BadDataError
from jaxrl_stack.datasets.checks import checked
from jaxrl_stack.datasets.foreign_rows import DONES, ForeignColumns, narrowed
from jaxrl_stack.datasets.packed_columns import unpacked
from jaxrl_stack.datasets.parquet_files import ParquetFile, damage_of
from jaxrl_stack.datasets.pieces import PieceRef
from jaxrl_stack.datasets.rows import Rows, joined
from jaxrl_stack.datasets.steps import Steps
from jaxrl_stack.utils.nested import take, tree_leaves, tree_map

if TYPE_CHECKING:
    from jaxrl_stack.datasets.dataset_info import DatasetInfo
    from jaxrl_stack.datasets.read_options import ReadOptions

OLD_DONE = "done"


class SampleBatchReader:
    """Reads files of sample batches that follow each other; a piece is a row group, or all of several files.

    Args:
        files: The files.
        options: How to read them.
        info: What they are of.

    Raises:
        BadDataError: A column is missing.
    """

    def __init__(self, files: Sequence[ParquetFile], options: ReadOptions, info: DatasetInfo):
        self.path, self.info = files[0].path, info
        self._files, self._options = files, options
        for file in files:
            self._columns_of(file)
        groups = [0] if len(files) > 1 else range(files[0].metadata.num_row_groups)
        self.pieces = [PieceRef(self.path, i, None) for i in groups if files[0].metadata.num_rows]

    def read(self, piece: PieceRef) -> Steps:
        groups = [(file, None) for file in self._files] if len(self._files) > 1 else [(self._files[0], piece.index)]
        return Steps.concatenated([part for file, group in groups for part in self._rows(file, group)])

    def read_all(self) -> Iterator[Steps]:
        for piece in self.pieces:
            yield self.read(piece)

    def _columns_of(self, file: ParquetFile) -> ForeignColumns:
        there = list(file.schema.names)
        # Batches without flags are whole episodes that terminated, as for RLlib.
        known = [*there, *([DONES] if DONES not in there else [])]
        return ForeignColumns.of(known, self._options, file.path, needs_next=False)

    def _rows(self, file: ParquetFile, group: int | None) -> Iterator[Steps]:
        columns = self._columns_of(file)
        there = [*columns.to_read, *([OLD_DONE] if OLD_DONE in file.schema.names else [])]
        names = [name for name in there if name in file.schema.names]
        table = file.read(names, group)
        first = 0 if group is None else sum(file.rows_of(i) for i in range(group))
        for row in range(table.num_rows):
            with damage_of(file.path):
                yield self._episode(table.slice(row, 1), columns, file.path, first + row)

    def _episode(self, table: pa.Table, columns: ForeignColumns, path: str, row: int) -> Steps:
        values = {name: self._cell(table.column(name), columns, path, name, row) for name in table.column_names}
        values = {name: own for name, own in values.items() if own is not None}
        names = columns.names
        plain = {c: values[names[c]] for c in (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)}
        extras = {name: values[name] for name in columns.extras if name in values and name != OLD_DONE}
        n = len(plain[Columns.REWARDS])
        for name, own in {**plain, **extras}.items():
            if not n or any(np.ndim(leaf) < 1 or len(leaf) != n for leaf in tree_leaves(own)):
                raise BadDataError(f"{name} has not one entry for each of the batch's {n:,} steps.", path=path, row=row)
        flags = _flags(values, names, n)
        next_obs = values.get(names.get(Columns.NEXT_OBS, ""))
        if next_obs is None:
            # RLlib's rule: the last observation is repeated.
            next_obs = tree_map(lambda x: np.concatenate([x[1:], x[-1:]]), plain[Columns.OBS])
        labels = values.get(names.get(Columns.EPS_ID, ""))
        id_ = f"{path}:{row}" if labels is None else str(np.ravel(labels)[0])
        steps, _ = joined(Rows({**plain, **flags, **extras}, next_obs, np.zeros(n, np.int64), lambda _: id_))
        steps = steps.map_columns(lambda name, own: tree_map(lambda x: narrowed(x, name), own))
        options = self._options
        if not options.check:
            return steps
        return checked(steps, options.observation_space, options.action_space, lambda _: (path, row))

    def _cell(self, column: pa.ChunkedArray, columns: ForeignColumns, path: str, name: str, row: int) -> Any:
        """All steps of a column: ``[T, ...]``; None if it is left out."""
        kind = column.type
        if isinstance(kind, pa.BaseExtensionType):
            column, kind = pa.chunked_array([chunk.storage for chunk in column.chunks]), kind.storage_type
        is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        try:
            if is_text and name in columns.packed:
                return take(unpacked(column.to_pylist(), path=path, name=name, first_row=row), 0)
            if hasattr(kind, "value_type") and pa.types.is_string(kind.value_type) and name in columns.packed:
                texts = column.to_pylist()[0]
                return unpacked(texts, path=path, name=name, first_row=row)
            if name in columns.labels:
                return np.asarray(column.to_pylist()[0])
            return numbers_of(column, path=path, name=name, first_row=row)[0]
        except BadDataError:
            if name in columns.needed:
                raise
            return None


def _flags(values: dict[str, Any], names: Any, n: int) -> dict[str, np.ndarray]:
    """TERMINATEDS and TRUNCATEDS of a batch: only the last step's count; without any it terminated."""

    def last(name: str) -> np.ndarray:
        flag = np.zeros(n, bool)
        flag[-1] = bool(np.ravel(values[name])[-1]) if name in values and np.size(values[name]) else False
        return flag

    truncated = last(names.get(Columns.TRUNCATEDS, ""))
    done = next((own for own in (names.get(Columns.TERMINATEDS), DONES, OLD_DONE) if own in values), None)
    if done is None:
        terminated = np.zeros(n, bool)
        terminated[-1] = names.get(Columns.TRUNCATEDS) not in values
        return {Columns.TERMINATEDS: terminated, Columns.TRUNCATEDS: truncated}
    return {Columns.TERMINATEDS: last(done), Columns.TRUNCATEDS: truncated}
