"""Data sets: files of recorded steps, opened and read piece by piece."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxrl_stack.datasets.bad_data import BadDataError
from jaxrl_stack.datasets.dataset_info import DatasetInfo
from jaxrl_stack.datasets.locations import files_at, filesystem_of
from jaxrl_stack.datasets.pieces import PieceRef, Reader
from jaxrl_stack.datasets.read_options import ReadOptions
from jaxrl_stack.datasets.readers import SUFFIXES, readers_of
from jaxrl_stack.datasets.steps import Steps
from jaxrl_stack.utils.spaces import difference

Inputs = str | os.PathLike[str] | Sequence[Any] | Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Recorded steps that lie in files.

    Attributes:
        info: What they are of: what the first file says that says it, and the spaces of the options where no file does.
        pieces: What can be read alone, in order: inputs as they were named, files by their names, rows as they lie.
        inputs: Names of the inputs.
        weights: How often each input is to be drawn from, relative to the others; adds up to 1. None if they were not
            weighted: every row counts the same.
    """

    info: DatasetInfo
    pieces: list[PieceRef]
    inputs: list[str]
    weights: list[float] | None
    _readers: Mapping[tuple[int, str], Reader] = dataclasses.field(repr=False)

    @property
    def num_rows(self) -> int | None:
        """Rows of all pieces as `read` returns them, final rows included; None if only reading them tells."""
        return _sum(piece.num_rows for piece in self.pieces)

    @property
    def num_steps(self) -> int | None:
        """Rows of all pieces that are steps; None if only reading them tells."""
        return _sum(piece.num_steps for piece in self.pieces)

    def read(self, piece: PieceRef) -> Steps:
        """The steps of a piece; the last row is final.

        Raises:
            BadDataError: The file is damaged, or is not what the options say; names file and row.
        """
        return self._readers[piece.input, piece.path].read(piece)

    def read_all(self, input_: int | None = None) -> Steps:
        """All steps, or those of one input, in order.

        Raises:
            BadDataError: As `read`, or there are none.
        """
        readers = [reader for (number, _), reader in self._readers.items() if input_ in (None, number)]
        parts = [part for reader in readers for part in reader.read_all() if part.num_rows]
        if not parts:
            raise BadDataError(f"{self._named(input_)} has no steps: name files that have some.")
        return Steps.concatenated(parts)

    def _named(self, input_: int | None) -> str:
        return ", ".join(self.inputs) if input_ is None else self.inputs[input_]


def open_dataset(inputs: Inputs, *, options: ReadOptions | None = None) -> Dataset:
    """Find the files of a data set and read what they say of themselves; no rows yet.

    Args:
        inputs: A path, several, or ``{path: weight}``. A path is a file, a folder (with all below it) or a glob, of
            this machine (perhaps with ``local://`` in front), or of a store that pyarrow reaches, as ``s3://...``.
            Files are Parquet (this package's, RLlib's episodes, tables of steps), npz, HDF5 in D4RL's layout, or
            Minari's.
        options: How to read them; None: as files say of themselves.

    Raises:
        BadDataError: Nothing is there, a file cannot be read, its space differs from the others', or it has steps of
            several agents.
        ValueError: A weight is not above 0.
    """
    options = ReadOptions() if options is None else options
    names, weights = _named(inputs)
    filesystem = filesystem_of(options.filesystem, options.filesystem_kwargs, setting="input_filesystem")
    readers: dict[tuple[int, str], Reader] = {}
    for number, name in enumerate(names):
        found_on, files = files_at(name, filesystem, SUFFIXES)
        if not files:
            raise BadDataError(
                f"input_ names {name!r}, where there are no files of {', '.join(SUFFIXES)}: name a file, a folder or a "
                "glob that has some."
            )
        for reader in readers_of(found_on, files, options):
            readers[number, reader.path] = reader
    pieces = [
        dataclasses.replace(piece, input=number) for (number, _), reader in readers.items() for piece in reader.pieces
    ]
    if not pieces:
        raise BadDataError(f"input_={inputs!r}: the files are empty; record some steps first.")
    return Dataset(_common_info(list(readers.values()), options), pieces, names, weights, readers)


def _sum(counts: Iterable[int | None]) -> int | None:
    known = list(counts)
    return None if None in known else sum(count or 0 for count in known)


def _named(inputs: Inputs) -> tuple[list[str], list[float] | None]:
    if isinstance(inputs, Mapping):
        odd = {name: weight for name, weight in inputs.items() if not 0 < weight < float("inf")}
        if odd or not inputs:
            raise ValueError(f"input_={dict(inputs)!r}: every path needs a weight above 0.")
        total = sum(inputs.values())
        return list(inputs), [weight / total for weight in inputs.values()]
    names = [inputs] if isinstance(inputs, str | os.PathLike) else list(inputs)
    if not names:
        raise ValueError("input_=[] names no data: name at least one path.")
    return [os.fspath(name) for name in names], None


def _common_info(readers: Sequence[Reader], options: ReadOptions) -> DatasetInfo:
    """What the files say; where a space is not said, that of the options."""
    infos = [reader.info for reader in readers]
    first = next((info for info in infos if info.env_id is not None), infos[0])
    spaces: dict[str, Any] = {}
    for name in ("observation_space", "action_space"):
        known, whose = getattr(options, name), f"The config's {name}"
        for reader in readers:
            own = getattr(reader.info, name)
            if own is None:
                continue
            if known is not None and (differs := difference(known, own)):
                raise BadDataError(
                    f"{whose} and that of this file differ: {differs}. Name data of one environment, and that "
                    "environment in config.environment().",
                    path=reader.path,
                )
            if known is None:
                known, whose = own, f"The {name} of {reader.path}"
        spaces[name] = known
    return dataclasses.replace(first, **spaces)
