"""What `offline_data(input_=...)` names, opened."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import jax
import numpy as np

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.datasets.steps import Steps

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig


class Piece(Protocol):
    """A part of a data set that is read by itself: a row group, or a file.

    Attributes:
        num_rows: Its rows; None if that is not known without reading.
        input_index: Of the input that it belongs to.
    """

    num_rows: int | None
    input_index: int


class Dataset(Protocol):
    """Recorded steps in files, or elsewhere.

    Attributes:
        pieces: All of it, in order.
        weights: Share of minibatches that comes from each input.
        num_rows: Rows in all; None if that is not known without reading.
    """

    @property
    def pieces(self) -> Sequence[Any]: ...
    @property
    def weights(self) -> Sequence[float]: ...
    @property
    def num_rows(self) -> int | None: ...
    def read(self, ref: Any) -> Steps: ...


class OfflineData:
    """The recorded data of a config, which `OfflineStep` trains on.

    Args:
        config: The algorithm's config.

    Attributes:
        config: As given.
    """

    def __init__(self, config: AlgorithmConfig):
        self.config: Any = config

    @functools.cached_property
    def data(self) -> Dataset:
        """The data set; nothing but its metadata is read for it."""
        return self.open()

    def open(self) -> Dataset:
        """Open it. Subclasses may return any object with the attributes of a data set."""
        raise NotImplementedError

    def num_bytes(self, columns: Sequence[str]) -> int | None:
        """What it takes in memory with these columns; of several pieces as many bytes per row as the first one has.

        None: not known without reading all.
        """
        pieces = self.data.pieces
        if not pieces:
            return 0
        first = self.data.read(pieces[0])
        of_first = sum(_num_bytes(first.columns[name]) for name in columns if name in first.columns)
        if len(pieces) == 1:
            return of_first
        num_rows = self.data.num_rows
        return None if num_rows is None else round(of_first / max(1, first.num_rows) * num_rows)

    def pieces_of_inputs(self) -> list[list[Any]]:
        """The pieces of each input."""
        found: list[list[Any]] = [[] for _ in self.data.weights]
        for piece in self.data.pieces:
            found[piece.input_index].append(piece)
        return found

    def read(self, piece: Any, columns: Sequence[str], spaces: tuple[Any, Any]) -> Steps:
        """The steps of a piece, as modules take them.

        Args:
            piece: One of the data set.
            columns: Their names; others are left out.
            spaces: The module's observation and action space.

        Raises:
            ValueError: If a column is missing, or has another shape than the space.
        """
        steps = self.data.read(piece)
        missing = [name for name in columns if name not in steps.columns]
        if missing:
            raise ValueError(
                f"{_name_of(piece)} has the columns {sorted(steps.columns)}, and training reads {missing}: name those "
                f"of the data, offline_data(input_read_schema={{{missing[0]!r}: '...'}}), or record them."
            )
        own = {name: jax.tree.map(_with_32_bits, steps.columns[name]) for name in columns}
        for name, space in zip((Columns.OBS, Columns.ACTIONS), spaces, strict=True):
            shape = getattr(space, "shape", None)
            if name in own and shape is not None and isinstance(own[name], np.ndarray) and own[name].shape[1:] != shape:
                raise ValueError(
                    f"{_name_of(piece)}: {name!r} has values of shape {own[name].shape[1:]}, and the module's space is "
                    f"{space}. Set the spaces of the data: environment(observation_space=..., action_space=...)."
                )
        return Steps(own, steps.is_final, steps.episode, steps.t, steps.episode_ids)

    def steps(self, columns: Sequence[str], spaces: tuple[Any, Any]) -> tuple[list[Steps], list[float]]:
        """``(all steps of each input, its weight)``; see `read`.

        Raises:
            ValueError: If an input has none.
        """
        inputs = []
        for number, pieces in enumerate(self.pieces_of_inputs()):
            parts = [self.read(piece, columns, spaces) for piece in pieces]
            if not sum(part.num_steps for part in parts):
                raise ValueError(
                    f"Input {number} of offline_data(input_={self.config.input_!r}) has no steps: leave it out, or "
                    f"record some."
                )
            inputs.append(Steps.concatenated(parts))
        return inputs, [float(weight) for weight in self.data.weights]


def _num_bytes(column: Any) -> int:
    return sum(x.nbytes for x in jax.tree.leaves(column))


def _name_of(piece: Any) -> str:
    return str(getattr(piece, "path", piece))


def _with_32_bits(x: np.ndarray) -> np.ndarray:
    """As JAX has it: numbers of 32 bits."""
    narrow = {"float64": np.float32, "int64": np.int32, "uint64": np.uint32}.get(x.dtype.name)
    return x if narrow is None else x.astype(narrow)
