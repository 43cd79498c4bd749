"""Conversion of table rows to chunks of episodes; each chunk ends with an extra row that contains the final
observation.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.datasets.steps import Steps
from jaxrl_stack.utils.nested import tree_leaves, tree_map

_TOLERANCE = 1e-5
"""Relative difference of float observations that counts as rounding: files may hold float64 beside float32."""


@dataclasses.dataclass(frozen=True)
class Rows:
    """N steps of a table, without extra rows for final observations. The rows of an episode are consecutive, in the
    order of time.

    Attributes:
        columns: ``{column: pytree of [N, ...]}``, observations, actions, both flags, and others.
        next_obs: Observations after the steps; None if they are not known.
        episode: int ``[N]``, equal in rows of one episode; None if it is not known.
        episode_id: Id of the episode of a row, as text.
        t: int ``[N]``, the number of the step in its episode; None if it is not known.
    """

    columns: Mapping[str, Any]
    next_obs: Any
    episode: np.ndarray | None
    episode_id: Callable[[int], str]
    t: np.ndarray | None = None

    @property
    def num_rows(self) -> int:
        return len(self.ended)

    @functools.cached_property
    def ended(self) -> np.ndarray:
        """Mask of the rows whose step terminates or truncates the episode, bool ``[N]``."""
        return self.columns[Columns.TERMINATEDS] | self.columns[Columns.TRUNCATEDS]

    @functools.cached_property
    def same_episode(self) -> np.ndarray:
        """Mask of the rows whose next row belongs to the same episode, bool ``[N - 1]``.

        True if the row's step does not end the episode, and the episode ids, if known, are equal.
        """
        same = ~self.ended[:-1]
        return same if self.episode is None else same & (self.episode[1:] == self.episode[:-1])

    @functools.cached_property
    def counts_on(self) -> np.ndarray:
        """Mask of the rows whose next row has a step number greater by exactly 1, bool ``[N - 1]``; all True if step
        numbers are not known.
        """
        if self.t is None:
            return np.ones(max(self.num_rows - 1, 0), bool)
        return self.t[1:] == self.t[:-1] + 1

    @functools.cached_property
    def observed_next(self) -> np.ndarray:
        """Mask of the rows whose recorded next observation equals the next row's observation up to rounding, bool
        ``[N - 1]``.

        True for all rows if the table has no next observations.
        """
        if self.next_obs is None:
            return np.ones(max(self.num_rows - 1, 0), bool)
        return is_next(self.next_obs, self.columns[Columns.OBS], slice(None, -1), slice(1, None))

    @functools.cached_property
    def ends(self) -> np.ndarray:
        """Mask of the last rows of episode chunks, bool ``[N]``: the episode ends, or the next row does not continue
        it.

        A row continues the row before it if both are of one episode, step numbers count on, and its observation is the
        next observation of the row before it.
        """
        ends = np.ones(self.num_rows, bool)
        ends[:-1] = ~(self.same_episode & self.counts_on & self.observed_next)
        return ends


def is_next(next_obs: Any, obs: Any, before: np.ndarray | slice, after: np.ndarray | slice) -> np.ndarray:
    """Compares n pairs of rows. Returns, for each pair, whether the second row's observation equals the first row's
    recorded next observation up to rounding, bool ``[n]``.
    """
    same: Any = True
    for all_next, all_obs in zip(tree_leaves(next_obs), tree_leaves(obs), strict=True):
        following, found = all_next[before], all_obs[after]
        differs = any_in_row(following != found)
        if "f" in (following.dtype.kind, found.dtype.kind) and differs.any():
            pairs = (np.asarray(own[differs], np.float64) for own in (following, found))
            close = np.isclose(*pairs, rtol=_TOLERANCE, atol=_TOLERANCE * 1e-2)
            differs[differs] = any_in_row(~close)
        same = same & ~differs
    return same


def any_in_row(flags: np.ndarray) -> np.ndarray:
    """Reduces flags ``[N, ...]`` over all axes except the first with `any`, bool ``[N]``."""
    return np.asarray(flags.any(axis=tuple(range(1, flags.ndim))))


def joined(rows: Rows, *, zero_final: bool = False) -> tuple[Steps, np.ndarray]:
    """Converts table rows to recorded steps (`Steps`): splits the rows into chunks of episodes, and adds a row with the
    final observation to each chunk.

    The observation of a final row is the last next observation. Where next observations are not known, it is zeros if
    `zero_final`; else it repeats that of a terminal step, which nothing is computed from, and a piece that ends
    otherwise gives up its last step, whose observation is that of the final row.

    Args:
        rows: The steps.
        zero_final: See above.

    Returns:
        The steps, and for every row of them the row that it comes from.
    """
    ends = rows.ends
    gives_up = np.zeros_like(ends)
    if rows.next_obs is None and not zero_final:
        gives_up = ends & ~rows.columns[Columns.TERMINATEDS]
    starts = np.concatenate([[True], ends[:-1]])[: len(ends)]
    number = _episode_numbers(rows, starts)
    copies = 1 + (ends & ~gives_up)
    copies[starts & gives_up] = 0  # a piece of one row, of which no step would remain
    index = np.repeat(np.arange(len(ends)), copies)
    is_last = np.concatenate([index[1:] != index[:-1], [True]])[: len(index)]
    is_final = is_last & ends[index]
    steps_of = {**rows.columns, **_with_truncation(rows.columns, gives_up, ends)}

    def taken(name: str, column: Any) -> Any:
        return tree_map(lambda x: _taken(x, index, None if name == Columns.OBS else is_final), column)

    columns = {name: taken(name, column) for name, column in steps_of.items()}
    added = is_final & ~gives_up[index]
    if rows.next_obs is not None:
        tree_map(lambda obs, after: _put(obs, added, after[index[added]]), columns[Columns.OBS], rows.next_obs)
    elif zero_final:
        tree_map(lambda obs: _put(obs, added, 0), columns[Columns.OBS])
    t = _counted(starts, number) if rows.t is None else rows.t
    t = (t[index] + added).astype(np.int32)
    first = np.flatnonzero(np.concatenate([[True], number[1:] != number[:-1]])[: len(number)])
    return _made(columns, is_final, number[index], t, [rows.episode_id(int(row)) for row in first]), index


def _made(columns: Any, is_final: np.ndarray, number: np.ndarray, t: np.ndarray, ids: list[str]) -> Steps:
    """Creates a `Steps` object from columns that already contain the extra rows with final observations.

    Drops the ids of episodes of which no row is left, and numbers the other episodes from 0.
    """
    used, episode = np.unique(number, return_inverse=True)
    return Steps(columns, is_final, episode.astype(np.int32), t, [ids[i] for i in used.tolist()])


def _episode_numbers(rows: Rows, starts: np.ndarray) -> np.ndarray:
    """Returns the episode index of each row, int ``[N]``.

    An episode begins with a new id or after the end of another episode. Without ids, each chunk of consecutive steps is
    a separate episode.
    """
    begins = starts if rows.episode is None else np.append([True], ~rows.same_episode)[: len(starts)]
    return np.cumsum(begins) - 1


def _counted(starts: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Returns the step number of each row, counted from the first row of its episode."""
    if not len(starts):
        return np.zeros(0, np.int32)
    first = np.searchsorted(number, number)
    return np.arange(len(starts)) - first


def _with_truncation(columns: Mapping[str, Any], gives_up: np.ndarray, ends: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the truncated flags, ``{TRUNCATEDS: bool [N]}``, after the last steps of some chunks are dropped.

    The mask `gives_up` marks these steps: their next observation is unknown, so the row of the step becomes the chunk's
    final row. If a dropped step is truncated, the step before it in the chunk is flagged as truncated.
    """
    truncated = columns[Columns.TRUNCATEDS].copy()
    truncated[:-1] |= truncated[1:] & gives_up[1:] & ~ends[:-1]
    return {Columns.TRUNCATEDS: truncated}


def _taken(array: np.ndarray, index: np.ndarray, zero: np.ndarray | None) -> np.ndarray:
    found = array[index]
    if zero is not None:
        found[zero] = 0
    return found


def _put(array: np.ndarray, where: np.ndarray, values: Any) -> None:
    array[where] = values
