"""Recorded steps as a table of rows, with the methods of a Ray data set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import pyarrow as pa

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.datasets.item_form import ItemForm

if TYPE_CHECKING:
    from jaxrl_stack.datasets.pieces import PieceRef
    from jaxrl_stack.datasets.steps import Steps


def rows_of(steps: Steps) -> dict[str, Any]:
    """Converts recorded steps to a batch of table rows, ``{column: pytree of [N, ...]}``, with next observations and
    episode ids.
    """
    names = tuple(name for name in steps.columns if name != Columns.INFOS)
    rows = np.flatnonzero(~steps.is_final)
    batch = ItemForm((*names, Columns.NEXT_OBS)).take(steps.columns, {}, rows, np)
    batch[Columns.EPS_ID] = np.asarray(steps.episode_ids, object)[steps.episode[rows]]
    batch[Columns.T] = steps.t[rows]
    return batch


class TableView:
    """View of a data set as a table of rows, with methods of Ray data sets: in RLlib, `OfflineData.data` is a Ray data
    set.
    """

    pieces: list[PieceRef]

    def read(self, piece: PieceRef) -> Steps:
        """Reads the steps of one part of the data set (row group or file)."""
        raise NotImplementedError

    def count(self) -> int:
        """Counts the steps of the data set; reads the parts (row groups or files) whose number of steps is unknown."""
        known = [piece.num_steps for piece in self.pieces]
        pairs = zip(self.pieces, known, strict=True)
        return sum(self.read(piece).num_steps if number is None else number for piece, number in pairs)

    def take_batch(self, batch_size: int = 20) -> dict[str, Any]:
        """Returns the first `batch_size` rows of the data set (fewer if it is smaller) as ``{column: array [N, ...]}``;
        columns of nested spaces are pytrees.

        Args:
            batch_size: Largest number of rows.

        Raises:
            ValueError: `batch_size` is below 1, or there are no steps.
        """
        if batch_size < 1:
            raise ValueError(f"take_batch({batch_size}): ask for at least one row.")
        parts: list[dict[str, Any]] = []
        missing = batch_size
        for piece in self.pieces:
            rows = rows_of(self.read(piece))
            number = min(missing, len(rows[Columns.T]))
            missing -= number
            if number:
                parts.append(jax.tree.map(lambda x: x[:number], rows))  # noqa: B023
            if not missing:
                break
        if not parts:
            raise ValueError("take_batch(): the data set has no steps. Open files with steps.")
        names = [name for name in parts[0] if all(name in part for part in parts)]
        return {name: jax.tree.map(lambda *xs: np.concatenate(xs), *(part[name] for part in parts)) for name in names}

    def columns(self) -> list[str]:
        """Returns the names of the data set's columns, the keys of the dict from `take_batch`."""
        return list(self.take_batch(1))

    def schema(self) -> pa.Schema:
        """Returns the Arrow schema of the data set: the names and types of its columns."""
        return pa.schema([(name, _type_of(column)) for name, column in self.take_batch(1).items()])


def _type_of(column: Any) -> pa.DataType:
    """Returns the Arrow type of a single value of a column ``[N, ...]``."""
    if isinstance(column, dict):
        return pa.struct([(str(name), _type_of(own)) for name, own in column.items()])
    if isinstance(column, tuple | list):
        return pa.struct([(str(place), _type_of(own)) for place, own in enumerate(column)])
    array = np.asarray(column)
    own = pa.string() if array.dtype.kind in "OUS" else pa.from_numpy_dtype(array.dtype)
    for _ in array.shape[1:]:
        own = pa.list_(own)
    return own
