"""Removal of the extra steps that gymnasium's vector environments record when they reset in the step after an episode's
end.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.datasets.bad_data import BadDataError
from jaxrl_stack.datasets.checks import RowOf
from jaxrl_stack.datasets.rows import Rows
from jaxrl_stack.utils.nested import take, tree_leaves
from jaxrl_stack.utils.notices import notice_once

_FEWEST = 2
"""Episodes, and different observations, that it takes to tell a reset from a coincidence."""
_SHARE = 0.4
"""Share of the episodes of which resets must be seen: the first one of each environment has none."""


def without_resets(rows: Rows, source: np.ndarray, row_of: RowOf) -> tuple[Rows, np.ndarray]:
    """Drops recorded steps in which gymnasium's vector environment only reset and did not apply the recorded action.

    gymnasium's vector environments take a step of its own for that: its observation is the last one of the episode
    before, its action does nothing, its reward is 0, and its next observation is the first one of the next episode.
    Observations are compared bit for bit, and only if they are floats that hardly repeat.

    Args:
        rows: In the order of episodes.
        source: Row of the table that each of them is.
        row_of: File and row in it, of a row of the table.

    Returns:
        The rows that are left, and rows of the table that they are.

    Raises:
        BadDataError: Next observations of truncated steps are first ones of other episodes.
    """
    if rows.next_obs is None or not rows.num_rows or not _tells_states_apart(rows.columns[Columns.OBS]):
        return rows, source
    first = _first_rows(rows)
    resets = _resets(rows, first)
    if len(resets):
        notice_once(
            f"{row_of(0)[0]}: {len(resets):,} rows in which a vector environment only reset are left out. They begin "
            "with the last observation of an episode, and their action had no effect."
        )
        kept = np.setdiff1d(np.arange(rows.num_rows), resets)
        rows, source = _only(rows, kept, first, resets), source[kept]
    _check_truncated(rows, source, row_of)
    return rows, source


def _first_rows(rows: Rows) -> np.ndarray:
    return np.flatnonzero(np.append([True], ~rows.same_episode))


def _resets(rows: Rows, first: np.ndarray) -> np.ndarray:
    """Returns the indices of rows in which the environment probably only reset, without a step.

    These rows are the first rows of episodes, with reward 0 and the final observation of another episode. Returns an
    empty array if too few episodes begin like this.
    """
    rewards = np.asarray(rows.columns.get(Columns.REWARDS, np.zeros(rows.num_rows)))
    ended = set(_as_bytes(rows.next_obs, np.flatnonzero(rows.ended)))
    candidates = first[rewards[first] == 0]
    texts = _as_bytes(rows.columns[Columns.OBS], candidates)
    found = np.array([text in ended for text in texts], bool)
    different = {text for text in texts if text in ended}
    if len(different) < _FEWEST or np.count_nonzero(found) < _SHARE * len(first):
        return first[:0]
    return candidates[found]


def _only(rows: Rows, kept: np.ndarray, first: np.ndarray, resets: np.ndarray) -> Rows:
    """Returns only the table rows with the indices `kept`.

    If the first row of an episode is left out because the environment only reset in it, the step numbers of the
    episode's other rows are reduced by 1.
    """
    t = rows.t
    if t is not None:
        number = np.searchsorted(first, np.arange(rows.num_rows), "right") - 1
        t = (t - np.isin(first, resets).astype(t.dtype)[number])[kept]
    columns = {name: take(column, kept) for name, column in rows.columns.items()}
    episode = None if rows.episode is None else rows.episode[kept]
    return Rows(columns, take(rows.next_obs, kept), episode, lambda row: rows.episode_id(int(kept[row])), t)


def _check_truncated(rows: Rows, source: np.ndarray, row_of: RowOf) -> None:
    truncated = np.flatnonzero(rows.columns[Columns.TRUNCATEDS] & ~rows.columns[Columns.TERMINATEDS])
    begins = set(_as_bytes(rows.columns[Columns.OBS], _first_rows(rows)))
    texts = _as_bytes(rows.next_obs, truncated)
    odd = np.array([text in begins for text in texts], bool)
    number = int(np.count_nonzero(odd))
    if len({text for text in texts if text in begins}) < _FEWEST or 2 * number <= len(truncated):
        return
    path, row = row_of(int(source[truncated[int(np.argmax(odd))]]))
    raise BadDataError(
        "The step is truncated, but its next observation is the first observation of another episode. Write "
        "infos['final_obs'] as the step's next observation. Or, if rows are consecutive steps, set "
        "offline_data(input_read_schema={'new_obs': ''}) to read the next observation from the following row.",
        path=path,
        row=row,
    )


def _tells_states_apart(obs: Any) -> bool:
    """Whether an observation probably occurs in only one state of the environment.

    This is assumed if all observations are floats, and more than half of the first `_SAMPLE` observations are distinct.
    """
    leaves = tree_leaves(obs)
    if any(leaf.dtype.kind != "f" for leaf in leaves):
        return False
    number = min(len(leaves[0]), _SAMPLE)
    return len(set(_as_bytes(obs, np.arange(number)))) > number / 2


_SAMPLE = 1000


def _as_bytes(obs: Any, rows: np.ndarray) -> list[bytes]:
    """Converts the observations of some rows to bytes, one string per row, for comparison."""
    parts = [np.ascontiguousarray(leaf[rows].astype(np.float32)) for leaf in tree_leaves(obs)]
    return [b"".join(part[i].tobytes() for part in parts) for i in range(len(rows))]
