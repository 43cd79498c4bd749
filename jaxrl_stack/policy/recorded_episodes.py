"""Complete episodes in recorded steps, as row indices of a table."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.datasets.episode_pieces import episode_of_pieces
from jaxrl_stack.datasets.steps import Steps


class RecordedEpisodes(NamedTuple):
    """Complete episodes in a table of recorded steps, as row indices: E episodes of at most T steps.

    Attributes:
        rows: int32 ``[E, T]``, the row of every step; after the end of an episode, the row of its last step.
        mask: bool ``[E, T]``, True at the steps of an episode, False after its end.
        final_rows: int32 ``[E]``, the row with the observation after the last step.
        terminated: bool ``[E]``, True if the episode terminated, False if it was truncated.
        num_left_out: Number of incomplete episodes, which lack their beginning, their end or a step between.
    """

    rows: np.ndarray
    mask: np.ndarray
    final_rows: np.ndarray
    terminated: np.ndarray
    num_left_out: int

    @property
    def lengths(self) -> np.ndarray:
        """Number of steps of each recorded episode, int64 ``[E]``."""
        return self.mask.sum(axis=1)

    def select(self, episodes: np.ndarray) -> RecordedEpisodes:
        """Returns only the recorded episodes with the given indices."""
        longest = max(int(self.lengths[episodes].max(initial=0)), 1)
        cut = (self.rows[episodes, :longest], self.mask[episodes, :longest])
        return RecordedEpisodes(*cut, self.final_rows[episodes], self.terminated[episodes], self.num_left_out)

    def alone(self, columns: dict[str, Any]) -> tuple[dict[str, Any], RecordedEpisodes]:
        """Copies the rows of these complete episodes to new columns, one episode after the other.

        The new columns contain no other rows. Returns ``(columns, episodes)``: the new columns, and the same episodes
        with row indices into the new columns.

        Args:
            columns: ``{column: [R, ...]}`` of all rows.
        """
        lengths = self.lengths
        starts = np.cumsum(lengths + 1) - lengths - 1
        rows = np.zeros(int((lengths + 1).sum()), np.int64)
        number = starts[:, None] + np.minimum(np.arange(self.rows.shape[1]), (lengths - 1)[:, None])
        rows[number] = self.rows
        rows[starts + lengths] = self.final_rows
        own = {name: jax.tree.map(lambda x: np.asarray(x)[rows], column) for name, column in columns.items()}
        final = (starts + lengths).astype(np.int32)
        return own, self._replace(rows=number.astype(np.int32), final_rows=final)


def whole_episodes(steps: Steps) -> RecordedEpisodes:
    """Finds the episodes of which every step was recorded, from the first step to the terminated or truncated one.

    Args:
        steps: Recorded steps; the pieces of an episode may be at any positions.

    Raises:
        ValueError: If a required column is missing, or no episode is complete.
    """
    missing = {Columns.REWARDS, Columns.TERMINATEDS} - steps.columns.keys()
    if missing:
        raise ValueError(
            f"The data has the columns {sorted(steps.columns)} and no {sorted(missing)}, which whole episodes need. "
            f"If the data has them under other names, set offline_data(input_read_schema={{{min(missing)!r}: 'name in "
            "the data'}); otherwise record these columns."
        )
    rows = np.flatnonzero(~steps.is_final)
    _, episode = np.unique(_episode_numbers(steps)[rows], return_inverse=True)
    order = np.lexsort((steps.t[rows], episode))
    rows, episode = rows[order], episode[order]
    lengths = np.bincount(episode)
    starts = np.cumsum(lengths) - lengths
    last = rows[starts + lengths - 1]
    at = np.arange(len(rows)) - starts[episode]
    gaps = np.bincount(episode, weights=steps.t[rows] != at) > 0
    terminated = np.asarray(steps.columns[Columns.TERMINATEDS], bool)[last]
    whole = ~gaps & (terminated | np.asarray(steps.columns[Columns.TRUNCATEDS], bool)[last])
    if not whole.any():
        raise ValueError(
            f"None of the {len(lengths)} episodes is complete: each lacks its first step (t = 0), its last step "
            f"(terminated or truncated) or a step between. Record whole episodes, for example with "
            f"`jaxrl record CHECKPOINT --episodes N --out FOLDER`."
        )
    number = np.minimum(np.arange(lengths[whole].max()), (lengths[whole] - 1)[:, None])
    mask = np.arange(lengths[whole].max()) < lengths[whole][:, None]
    return RecordedEpisodes(
        rows=rows[starts[whole][:, None] + number].astype(np.int32),
        mask=mask,
        final_rows=(last[whole] + 1).astype(np.int32),
        terminated=terminated[whole],
        num_left_out=int((~whole).sum()),
    )


def _episode_numbers(steps: Steps) -> np.ndarray:
    """Returns, for each of R rows of recorded steps, the index of the episode that contains the row, int64 ``[R]``.

    Episodes are numbered from 0 in the order of their ids, sorted as strings. If several episodes have the same id,
    they get different indices, in the order in which they appear in the data.
    """
    starts = steps.piece_starts()
    first, final = starts[:-1], starts[1:] - 1
    ids = [str(steps.episode_ids[number]) for number in steps.episode[first].tolist()]
    flags = [
        np.asarray(steps.columns[c], bool) for c in (Columns.TERMINATEDS, Columns.TRUNCATEDS) if c in steps.columns
    ]
    ended = np.any([flag[np.maximum(final - 1, first)] for flag in flags], axis=0)
    number = episode_of_pieces(ids, steps.t[first], steps.t[final], ended)
    _, rank = np.unique(np.asarray(ids), return_inverse=True)
    _, by_id = np.unique(np.stack([rank, number]), axis=1, return_inverse=True)
    return np.repeat(by_id.reshape(-1), np.diff(starts))
