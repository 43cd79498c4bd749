"""Builds tables of recorded steps, episode by episode, from time-major blocks ``[T, B, ...]``, without a Python loop
over steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.datasets.steps import Steps
from jaxrl_stack.episodes.segments import Segments, segments

FINAL_INFOS = "final_infos"
"""Column of a block with `Columns.INFOS`: infos of the observations after the steps."""
MOST_HELD_BYTES = 2**29
"""Limit for the bytes of held steps of unfinished episodes; above it all unfinished episodes are cut."""

_AFTER_STEPS = {Columns.OBS: Columns.FINAL_OBS, Columns.INFOS: FINAL_INFOS}
"""Mapping from columns of values before a step to columns of the same values after the step."""
_NO_EPISODE = -1
_NOT_RECORDED = {*_AFTER_STEPS.values(), Columns.LOSS_MASK, Columns.RESETS}


@dataclasses.dataclass(frozen=True)
class _Rows:
    """Stored steps of unfinished episodes, ordered by environment and time.

    Attributes:
        columns: ``{column: pytree of [n, ...]}``.
        number: int64 ``[n]``, number of the row's episode.
        t: int32 ``[n]``, index of the step in its episode.
    """

    columns: Mapping[str, Any]
    number: np.ndarray
    t: np.ndarray

    @property
    def num_bytes(self) -> int:
        return sum(leaf.nbytes for leaf in jax.tree.leaves(dict(self.columns)))

    def only(self, kept: np.ndarray) -> _Rows:
        """Returns the stored steps where the mask `kept`, bool ``[n]``, is True."""
        return _Rows(jax.tree.map(lambda x: x[kept], dict(self.columns)), self.number[kept], self.t[kept])


class StepsBuilder:
    """Cuts recorded blocks of steps into episodes, for data files. Steps are stored until their episode ends, so that
    each episode is contiguous in a file.

    An unfinished episode is cut, and continues as another piece with the same id, if it has at least `max_rows` rows
    after a block. All unfinished episodes are cut if the held steps take more than `MOST_HELD_BYTES`.

    Args:
        name: Prefix of the ids of episodes; no other ids may have it.
        max_rows: Number of rows at which an episode is cut, its final row included.
    """

    def __init__(self, name: str, max_rows: int):
        self._name = name
        self._max_rows = max_rows
        self._next_number = 0
        self._held: list[_Rows] = []
        # For each environment, once the first block is known: the number of its unfinished episode, or `_NO_EPISODE`,
        # the steps of this episode so far, and how many of these are held.
        self._number = self._t = self._num_held = np.zeros(0, np.int64)
        # Values after the last steps, {column: pytree of [B, ...]}.
        self._after: dict[str, Any] = {}

    @property
    def num_held(self) -> int:
        """Number of stored steps of unfinished episodes."""
        return int(self._num_held.sum())

    def add(self, columns: Mapping[str, Any], counts: np.ndarray | None = None) -> Steps | None:
        """Appends a block of recorded steps to the unfinished episodes, and returns the steps of episodes that ended or
        were cut.

        Args:
            columns: NumPy arrays ``[T, B, ...]``. ``FINAL_OBS``, and with ``INFOS`` also `FINAL_INFOS`, are read
                where an episode ends and in the last row.
            counts: bool ``[T, B]``, False for steps to skip; None: all count.

        Returns:
            One table with the stored steps of all episodes that ended in the block, or were cut after it; None without
            any. Episodes are cut if they reached `max_rows` rows, or if the stored steps took too much memory.
        """
        found = self._segments(columns, counts)
        begins, env = found.begins, found.env
        # Episodes are numbered environment by environment.
        number = np.where(begins, self._next_number - 1 + np.cumsum(begins), self._number[env])
        self._next_number += int(np.count_nonzero(begins))
        t, num_held = (np.where(begins, 0, of_running[env]) for of_running in (self._t, self._num_held))
        time, at, segment = found.steps()
        rows = _Rows(
            {
                name: jax.tree.map(lambda x: x[time, at], column)
                for name, column in columns.items()
                if name not in _NOT_RECORDED
            },
            number[segment],
            ((t - found.start)[segment] + time).astype(np.int32),
        )
        self._held.append(rows)
        runs = found.is_running
        self._forget_running(found.shape[1])
        self._number[env[runs]] = number[runs]
        self._t[env[runs]] = (t + found.length)[runs]
        self._num_held[env[runs]] = (num_held + found.length)[runs]
        self._after = {
            name: jax.tree.map(lambda x: np.array(x[-1]), columns[after])
            for name, after in _AFTER_STEPS.items()
            if name in columns
        }
        is_cut = (self._num_held > 0) & (self._num_held + 1 >= self._max_rows)
        if sum(held.num_bytes for held in self._held) > MOST_HELD_BYTES:
            is_cut = self._num_held > 0
        taken = found.has_ended | (runs & is_cut[env])
        self._num_held[is_cut] = 0
        time, at = (own[taken] for own in found.last)
        after = {
            name: jax.tree.map(lambda x: x[time, at], columns[of])
            for name, of in _AFTER_STEPS.items()
            if name in columns
        }
        return self._taken(number[taken], after)

    def cut(self) -> Steps | None:
        """Removes and returns the stored steps of unfinished episodes; None if no steps are stored. Later steps of
        these episodes get the same episode ids.
        """
        envs = np.flatnonzero(self._num_held)
        after = {name: jax.tree.map(lambda x: x[envs], own) for name, own in self._after.items()}
        self._num_held = np.zeros_like(self._num_held)
        return self._taken(self._number[envs], after)

    def restart(self, lengths: np.ndarray | None = None) -> Steps | None:
        """Removes and returns the stored steps; None if no steps are stored. Later steps get new episode ids, even if
        they continue episodes that began earlier.

        Args:
            lengths: int ``[B]``, number of steps that each environment's unfinished episode already has, 0 for a new
                episode. None: all episodes are new.
        """
        out = self.cut()
        self._forget_running(0 if lengths is None else len(lengths))
        self._after = {}
        if lengths is not None:
            self._t[:] = lengths
            numbers = self._next_number + np.arange(len(lengths))
            self._number = np.where(self._t > 0, numbers, _NO_EPISODE)
            self._next_number += len(lengths)
        return out

    def _forget_running(self, num_envs: int) -> None:
        """Replaces the arrays of the unfinished episodes (episode numbers, lengths, numbers of stored steps) by initial
        arrays for `num_envs` environments, none of which has an unfinished episode.
        """
        self._number = np.full(num_envs, _NO_EPISODE)
        self._t, self._num_held = np.zeros((2, num_envs), np.int64)

    def _segments(self, columns: Mapping[str, Any], counts: np.ndarray | None) -> Segments:
        """Divides a block of recorded steps into segments, each from one episode; the first segment of an environment
        may continue an unfinished episode.
        """
        terminateds, truncateds = columns[Columns.TERMINATEDS], columns[Columns.TRUNCATEDS]
        if len(self._number) != terminateds.shape[1]:
            self._forget_running(terminateds.shape[1])
        # Rows in which an environment was only reset, and rows of an episode that failed, belong to no episode.
        mask = columns.get(Columns.LOSS_MASK)
        if counts is not None:
            mask = counts if mask is None else np.logical_and(mask, counts)
        return segments(terminateds, truncateds, mask=mask, starts=self._number == _NO_EPISODE)

    def _taken(self, numbers: np.ndarray, after: Mapping[str, Any]) -> Steps | None:
        """Removes the stored steps of the episodes whose episode numbers are in `numbers`, and returns the steps as a
        table; None if `numbers` is empty.

        Args:
            numbers: int64 ``[E]``, numbers of the episodes; all different.
            after: Values after the episodes' last steps, ``{column: pytree of [E, ...]}``.
        """
        order = np.argsort(numbers)
        numbers, after = numbers[order], jax.tree.map(lambda x: x[order], dict(after))
        if not len(numbers):
            self._forget_others()
            return None
        taken = [rows.only(np.isin(rows.number, numbers)) for rows in self._held]
        self._forget_others()
        of_rows = np.concatenate([rows.number for rows in taken])
        order = np.argsort(of_rows, kind="stable")
        piece = np.searchsorted(numbers, of_rows[order])
        # Each piece ends with a final row.
        at = np.empty(len(order), np.int64)
        at[order] = np.arange(len(order)) + piece
        finals = np.cumsum(np.bincount(piece, minlength=len(numbers))) + np.arange(len(numbers))
        num_rows = len(order) + len(numbers)
        is_final = np.zeros(num_rows, bool)
        is_final[finals] = True
        t = np.empty(num_rows, np.int32)
        t[at] = np.concatenate([rows.t for rows in taken])
        t[finals] = t[finals - 1] + 1
        episode = np.repeat(np.arange(len(numbers), dtype=np.int32), np.diff(finals, prepend=-1))
        places = np.split(at, np.cumsum([len(rows.number) for rows in taken])[:-1])

        def filled(name: str, *parts: Any) -> Any:
            def leaf(last: Any, *own: np.ndarray) -> np.ndarray:
                out = np.zeros((num_rows, *own[0].shape[1:]), own[0].dtype)
                for where, part in zip(places, own, strict=True):
                    out[where] = part
                if last is not None:
                    out[finals] = last
                return out

            if name in after:
                return jax.tree.map(leaf, after[name], *parts)
            return jax.tree.map(lambda *own: leaf(None, *own), *parts)

        columns = {name: filled(name, *(rows.columns[name] for rows in taken)) for name in taken[0].columns}
        return Steps(columns, is_final, episode, t, [f"{self._name}-{number}" for number in numbers.tolist()])

    def _forget_others(self) -> None:
        """Frees the memory of stored steps whose episodes have ended or were dropped.

        For that, the steps of unfinished episodes are copied. Held rows of a block are kept unchanged if at least half
        of them belong to unfinished episodes.
        """
        running = self._number[self._num_held > 0]
        held = []
        for rows in self._held:
            kept = np.isin(rows.number, running)
            if 2 * np.count_nonzero(kept) < len(kept):
                rows = rows.only(kept)
            if len(rows.number):
                held.append(rows)
        self._held = held
