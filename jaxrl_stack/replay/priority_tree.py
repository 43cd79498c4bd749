"""Tree of sums and minima of priorities, for sampling in proportion to them."""

from __future__ import annotations

import numpy as np

_FAN_OUT = 64
"""Children per node. Wide nodes make few levels, so few calls of NumPy: 3 for a quarter of a million priorities."""
_SEARCHED_AT_ONCE = 4096


class PriorityTree:
    """Tree of non-negative priorities of items, for sampling in proportion to them. All operations are vectorised.

    Every node is the sum (and the minimum) of its children, recomputed from all of them when one changes: no rounding
    errors add up, and equal priorities make equal trees whatever happened before.

    Args:
        size: Number of priorities, all absent at first.
    """

    def __init__(self, size: int):
        # Level 0 is the priorities, in the sums times their multiplicity; the last level has at most one group of
        # siblings. 0 and inf stand for absent ones.
        self._sums: list[np.ndarray] = []
        self._minima: list[np.ndarray] = []
        while True:
            groups = -(-size // _FAN_OUT)
            self._sums.append(np.zeros((groups, _FAN_OUT)))
            self._minima.append(np.full((groups, _FAN_OUT), np.inf))
            if groups <= 1:
                break
            size = groups
        # Up to some size a level is searched faster as a whole than from above.
        self._first_level = next(i for i, sums in enumerate(self._sums) if sums.size <= _SEARCHED_AT_ONCE)

    @property
    def size(self) -> int:
        """Capacity of the tree: the number of priorities that it has room for."""
        return self._sums[0].size

    @property
    def total(self) -> float:
        """Sum of all priorities in the tree, each multiplied by its multiplicity (a factor in draws, see `set`)."""
        return float(np.cumsum(self._sums[-1])[-1])

    @property
    def minimum(self) -> float:
        """Smallest priority in the tree; infinity if the tree is empty."""
        return float(self._minima[-1].min())

    def get(self, indices: np.ndarray) -> np.ndarray:
        """Priorities at `indices` in the tree, float64; 0 at an index whose priority was removed or never set."""
        priorities = self._minima[0].reshape(-1)[indices]
        return np.where(np.isinf(priorities), 0.0, priorities)

    def set(self, indices: np.ndarray, priorities: np.ndarray | float, multiplicities: np.ndarray | int = 1) -> None:
        """Sets the priorities (> 0) at `indices` in the tree.

        Args:
            indices: int ``[n]``. If an index occurs several times, its last priority is set.
            priorities: ``[n]``, or one for all.
            multiplicities: int ``[n]``, factor of each priority in draws; or one number for all.
        """
        self._update(indices, priorities * multiplicities, priorities)

    def remove(self, indices: np.ndarray) -> None:
        """Removes the priorities at `indices`. Sampling does not select these indices until they are set again."""
        self._update(indices, 0.0, np.inf)

    def find(self, masses: np.ndarray) -> np.ndarray:
        """Finds, for each of `masses`, the first index at which the cumulative sum of priorities exceeds the mass.

        Uniformly random masses select items in proportion to their priorities.

        Args:
            masses: float64 ``[n]`` in ``[0, total)``.

        Returns:
            int64 ``[n]``; always of priorities that are present.
        """
        siblings = self._sums[self._first_level].reshape(-1)
        sums = np.cumsum(siblings)
        group = np.searchsorted(sums, masses, side="right")
        # Sums up to here and sums of whole groups round differently: a mass may come out at the very end.
        over = group == len(sums)
        if over.any():
            group[over] = np.flatnonzero(siblings)[-1]
        masses = masses - np.where(group > 0, sums[group - 1], 0.0)
        for level in reversed(self._sums[: self._first_level]):
            children = level[group]
            sums = np.cumsum(children, axis=1)
            child = (sums <= masses[:, None]).sum(axis=1)
            over = np.flatnonzero(child == _FAN_OUT)
            if len(over):
                child[over] = _FAN_OUT - 1 - np.argmax(children[over, ::-1] > 0, axis=1)
            # Where there is no child before, this reads the sum of others, which `where` leaves out.
            before = sums.reshape(-1)[np.arange(len(child)) * _FAN_OUT + child - 1]
            masses = masses - np.where(child > 0, before, 0.0)
            group = group * _FAN_OUT + child
        return group

    def resized(self, size: int) -> PriorityTree:
        """Returns a copy of the tree with room for `size` priorities."""
        tree = PriorityTree(size)
        present = np.flatnonzero(self._sums[0].reshape(-1))
        tree._update(present, *(levels[0].reshape(-1)[present] for levels in (self._sums, self._minima)))
        return tree

    def _update(self, indices: np.ndarray, sums: np.ndarray | float, minima: np.ndarray | float) -> None:
        self._sums[0].reshape(-1)[indices] = sums
        self._minima[0].reshape(-1)[indices] = minima
        for level in range(1, len(self._sums)):
            indices = indices // _FAN_OUT
            below = self._sums[level - 1]
            # Of few nodes, computing some twice is faster than finding out which.
            if len(indices) > _FAN_OUT:
                is_touched = np.zeros(len(below), bool)
                is_touched[indices] = True
                indices = np.flatnonzero(is_touched)
            self._sums[level].reshape(-1)[indices] = below[indices].sum(axis=1)
            self._minima[level].reshape(-1)[indices] = self._minima[level - 1][indices].min(axis=1)
