"""Sorting of rows by episode, for tables whose episodes are shuffled or interleaved."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class RowOrder(NamedTuple):
    """Permutation that sorts a table's rows by episode.

    Attributes:
        rows: int64 ``[N]``, rows of the table in this order; None if they are in it.
        episode: int64 ``[N]``, number of the episode of each of the ordered rows.
    """

    rows: np.ndarray | None
    episode: np.ndarray


class JumbledRows(ValueError):
    """Error for rows that cannot be sorted: several episodes have the same id, and their rows are out of order.

    Attributes:
        row: A row that neither continues the row before it nor begins an episode.
    """

    def __init__(self, row: int):
        super().__init__(f"row {row} neither continues the row before it nor begins an episode")
        self.row = row


def order_of(
    ids: np.ndarray,
    t: np.ndarray | None,
    ended: np.ndarray,
    file: np.ndarray,
    continues: Callable[[np.ndarray, np.ndarray], np.ndarray] | None,
) -> RowOrder:
    """Returns the permutation that sorts a table's rows by episode and time. Rows of several episodes may be mixed.

    If no step number of an id occurs twice, the rows with this id are one episode, in the order of `t`. If a step
    number occurs twice, several episodes have the id: each file has separate episodes, and within a file an episode
    begins after the end of another one, or where `t` starts again. Without `t`, rows with one id keep their order. An
    episode continues in a later file if the first row of its id there follows its last row in the earlier file.

    Args:
        ids: int ``[N]``, equal in rows with the same id.
        t: int ``[N]``, step numbers; None if they are not known.
        ended: bool ``[N]``, rows that end their episode.
        file: int ``[N]``, number of the file that a row is from; never falls.
        continues: ``f(rows, next rows)``: whether the next observation of the one is the observation of the other;
            None if next observations are not known.

    Returns:
        Episodes in the order of their first rows.

    Raises:
        JumbledRows: Rows of an id that is used again are not in order.
    """
    if _is_ordered(ids, t, file):
        return RowOrder(None, np.cumsum(np.diff(ids, prepend=ids[:1]) != 0))
    rows, starts = _by_position(ids, ended, file, continues) if t is None else _by_step(ids, t, ended, file)
    segment = np.cumsum(starts) - 1
    position = np.full(segment[-1] + 1, len(ids))
    np.minimum.at(position, segment, rows)
    order = np.argsort(position[segment], kind="stable")
    rows, segment = rows[order], segment[order]
    episode = np.cumsum(np.diff(segment, prepend=segment[:1]) != 0)
    is_same = bool((rows == np.arange(len(rows))).all())
    return RowOrder(None if is_same else rows, episode)


def _is_ordered(ids: np.ndarray, t: np.ndarray | None, file: np.ndarray) -> bool:
    """Whether the rows of a table are already sorted by episode.

    True if rows with the same episode id are consecutive and in one file, and their step numbers (if known) increase.
    """
    if len(ids) < 2:
        return True
    same = ids[1:] == ids[:-1]
    if np.count_nonzero(~same) + 1 != len(np.unique(ids)) or (same & (file[1:] != file[:-1])).any():
        return False
    return t is None or not (same & (t[1:] <= t[:-1])).any()


def _by_step(ids: np.ndarray, t: np.ndarray, ended: np.ndarray, file: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the row indices that sort rows by episode id and step number, and a mask of the sorted rows that begin an
    episode.

    The indices are int ``[N]``, the mask is bool ``[N]``. If a file contains a step number twice for one id, all rows
    of this file with this id keep their order. Raises JumbledRows if one of these rows neither continues the row before
    it nor begins an episode.
    """
    position = np.arange(len(ids))
    reused = _with_repetition(ids, t)[ids]
    # Ids that are used again are those of their files, unless an episode continues in the next one.
    own_file = np.where(reused, file, 0).astype(np.int64)
    group = np.unique(ids * (own_file.max() + 1) + own_file, return_inverse=True)[1]
    in_turn = _with_repetition(group, t)[group]
    rows = np.lexsort((np.where(in_turn, position, t), group))
    sorted_ids, sorted_group, sorted_t, was_ended = ids[rows], group[rows], t[rows], ended[rows]
    starts = np.ones(len(rows), bool)
    same_id, same_group = sorted_ids[1:] == sorted_ids[:-1], sorted_group[1:] == sorted_group[:-1]
    counts_on = (sorted_t[1:] == sorted_t[:-1] + 1) & ~was_ended[:-1]
    falls = sorted_t[1:] <= sorted_t[:-1]
    begins = in_turn[rows][1:] & (falls | was_ended[:-1])
    starts[1:] = np.where(same_group, begins, ~(same_id & counts_on))
    first_t = np.full(int(group.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first_t, group, t)
    jumbled = same_group & begins & ~was_ended[:-1] & (sorted_t[1:] > first_t[sorted_group[1:]])
    if jumbled.any():
        raise JumbledRows(int(rows[1:][jumbled].min()))
    return rows, starts


def _with_repetition(group: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Returns for each of G groups of rows whether the group contains a step number twice, bool ``[G]``; `group` is the
    group index of each row.
    """
    found = np.zeros(int(group.max()) + 1, bool)
    rows = np.lexsort((t, group))
    again = (group[rows][1:] == group[rows][:-1]) & (t[rows][1:] == t[rows][:-1])
    found[group[rows][1:][again]] = True
    return found


def _by_position(
    ids: np.ndarray,
    ended: np.ndarray,
    file: np.ndarray,
    continues: Callable[[np.ndarray, np.ndarray], np.ndarray] | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the row indices that sort rows by episode id, and a mask of the sorted rows that begin an episode.

    The indices are int ``[N]``, the mask is bool ``[N]``. Rows with the same id keep their order.
    """
    rows = np.argsort(ids, kind="stable")
    starts = np.ones(len(rows), bool)
    before, after = rows[:-1], rows[1:]
    starts[1:] = ids[before] != ids[after]
    crossing = np.flatnonzero(~starts[1:] & (file[before] != file[after]))
    before, after = before[crossing], after[crossing]
    follows = (after == before + 1) if continues is None else continues(before, after)
    starts[crossing + 1] = ended[before] | ~follows
    return rows, starts
