"""Recorded steps in memory, as columns: the form that is written to files, read from files, and trained on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl_stack.core.columns import Columns

_FLAGS = (Columns.TERMINATEDS, Columns.TRUNCATEDS)
IN_FINAL_ROWS = (Columns.OBS, Columns.INFOS)
"""The columns that say something in final rows; all others are zero there."""


@dataclasses.dataclass(frozen=True)
class Steps:
    """Recorded steps of one agent, one row per step, sorted by episode and time.

    Each chunk (piece) of an episode ends with an extra *final row* for its last observation.

    A piece is a whole episode, or a part of an episode that was cut during recording. Its final row contains the
    observation after its last step, and no action. So the next observation of the step in row ``i`` is always the
    observation in row ``i + 1``, and no observation is stored twice. A piece that continues a cut piece follows it
    directly and has the same episode id, or counts as a separate episode.

    Attributes:
        columns: ``{column: pytree of [N, ...]}``: ``Columns.OBS``, ``ACTIONS``, ``REWARDS`` (float32), ``TERMINATEDS``,
            ``TRUNCATEDS`` (bool; True at most in the last step of a piece), and what else was recorded of every step,
            such as ``ACTION_LOGP``. `IN_FINAL_ROWS` says which of them final rows have.
        is_final: bool ``[N]``, which rows are final rows; the last row is one.
        episode: int32 ``[N]``, position of the row's episode in `episode_ids`; never falls.
        t: int32 ``[N]``, number of the step in its episode, from 0.
        episode_ids: Ids of the episodes, as text. An episode of several pieces has one.
    """

    columns: Mapping[str, Any]
    is_final: np.ndarray
    episode: np.ndarray
    t: np.ndarray
    episode_ids: Sequence[str]

    @property
    def num_rows(self) -> int:
        """Number of rows N: one per step, and one final row (the last observation) per episode chunk."""
        return len(self.is_final)

    @property
    def num_steps(self) -> int:
        """Number of steps: all rows except final rows, which contain the last observation of an episode chunk."""
        return self.num_rows - self.num_pieces

    @property
    def num_pieces(self) -> int:
        """Number of episode chunks, each of which ends with a final row."""
        return int(np.count_nonzero(self.is_final))

    @property
    def num_bytes(self) -> int:
        """Bytes of all columns of the recorded steps in memory."""
        return sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(dict(self.columns)))

    def map_columns(self, function: Callable[[str, Any], Any]) -> Steps:
        """Returns new `Steps` in which every column is the result of ``function(name, column)``."""
        return dataclasses.replace(self, columns={name: function(name, own) for name, own in self.columns.items()})

    def only(self, columns: Sequence[str]) -> Steps:
        """Returns new `Steps` with only the given columns; ignores names of columns that are missing."""
        own = {name: column for name, column in self.columns.items() if name in columns}
        return dataclasses.replace(self, columns=own)

    def rows(self, start: int, stop: int) -> Steps:
        """Returns rows `start` to `stop` of the recorded steps as views. `start` and `stop` must be values in
        `piece_starts()`, the bounds of episode chunks.

        Raises:
            ValueError: If `start` or `stop` is within a chunk.
        """
        for name, at in (("start", start), ("stop", stop)):
            if not (at in (0, self.num_rows) or (0 < at < self.num_rows and self.is_final[at - 1])):
                raise ValueError(
                    f"{name}={at} is within a chunk of an episode, but rows() returns only whole chunks. Pass a "
                    "row index from piece_starts()."
                )
        cut = slice(start, stop)
        columns = {name: jax.tree.map(lambda x: x[cut], own) for name, own in self.columns.items()}
        first, last = (int(self.episode[start]), int(self.episode[stop - 1]) + 1) if start < stop else (0, 0)
        return Steps(columns, self.is_final[cut], self.episode[cut] - first, self.t[cut], self.episode_ids[first:last])

    def continues_in(self, other: Steps) -> bool:
        """Whether the first step of `other` directly follows the last step of this object, in the same episode."""
        if not self.num_rows or not other.num_rows or self.episode_ids[-1] != other.episode_ids[0]:
            return False
        ended = any(self.columns[name][-2:-1].any() for name in _FLAGS if name in self.columns)
        return bool(self.t[-1] == other.t[0]) and not ended

    def piece_starts(self) -> np.ndarray:
        """Returns the index of the first row of each of P episode chunks, followed by the number of rows N, int64 ``[P
        + 1]``.
        """
        return np.concatenate([[0], np.flatnonzero(self.is_final) + 1])

    @classmethod
    def concatenated(cls, parts: Sequence[Steps]) -> Steps:
        """Concatenates several `Steps` objects. The result has only the columns that are present in all of them.

        If the first step of a part continues the last episode of the part before it (same id, next step number, no end
        before it), both are one episode.

        Raises:
            ValueError: If `parts` is empty.
        """
        if not parts:
            raise ValueError(
                "Steps.concatenated(parts=[]): there are no steps to concatenate. Pass at least one Steps object."
            )
        if len(parts) == 1:
            return parts[0]
        names = [name for name in parts[0].columns if all(name in part.columns for part in parts)]
        ids: list[str] = []
        episodes = []
        for before, part in zip((None, *parts[:-1]), parts, strict=True):
            continues = before is not None and before.continues_in(part)
            episodes.append(part.episode + np.int32(len(ids) - continues))
            ids.extend(part.episode_ids[continues:])
        columns = {
            name: jax.tree.map(lambda *xs: np.concatenate(xs), *(part.columns[name] for part in parts))
            for name in names
        }
        is_final, t = (np.concatenate([getattr(part, name) for part in parts]) for name in ("is_final", "t"))
        return cls(columns, is_final, np.concatenate(episodes), t, ids)
