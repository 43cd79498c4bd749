"""PrioritizedEpisodeReplayBuffer: replay in proportion to priorities (Schaul et al., 2016)."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode
from jaxrl_stack.replay import arithmetic
from jaxrl_stack.replay.episode_replay_buffer import EpisodeReplayBuffer
from jaxrl_stack.replay.priority_tree import PriorityTree

if TYPE_CHECKING:
    from jaxrl_stack.replay.frame_store import StoredFrames


class PrioritizedEpisodeReplayBuffer(EpisodeReplayBuffer):
    """Replay buffer that samples items in proportion to ``priority ** alpha``.

    ``P(i) = p_i ** alpha / sum_k p_k ** alpha``; ``w_i = (N P(i)) ** -beta / max_k w_k``, the maximum over the whole
    buffer (Schaul et al., 2016, "Prioritized Experience Replay", equation 1 and section 3.4, proportional variant).

    An item is a step with the window or the sequence that begins at it; new items have the largest priority that was
    ever set (at first 1). `sample` returns episodes by default, as sequences of `batch_length_T`.
    See `EpisodeReplayBuffer` for everything else.

    Args:
        capacity: Largest number of steps.
        batch_length_T: Length of the sequences of `sample`, 1 for n-step transitions.
        alpha: Exponent of priorities, >= 0; 0 draws all items equally often.
        **more: All others, as in `EpisodeReplayBuffer`.

    Raises:
        ValueError: If an argument is out of range, or memory cannot hold the capacity.
    """

    def __init__(self, capacity: int = 10000, *, batch_length_T: int = 1, alpha: float = 1.0, **more: Any):
        if not isinstance(alpha, numbers.Real) or not 0 <= alpha < math.inf:
            raise ValueError(f"alpha={alpha!r} must be a number >= 0.")
        super().__init__(capacity, batch_length_T=batch_length_T, **more)
        self._alpha = float(alpha)

    _only_episodes = True

    def _forget(self) -> None:
        super()._forget()
        self._max_priority = 1.0
        self._tree = PriorityTree(0)
        # As how many of its priority the first step of an episode is drawn.
        self._first_multiplicity = 1
        self._new_priority: float | None = None

    # ---------------------------------------------------------------------------------------------------------- adding

    def add(self, episodes: Sequence[SingleAgentEpisode] | SingleAgentEpisode, weight: float | None = None) -> None:
        """Copies episodes, or chunks of episodes, into the buffer, but not the steps in their lookback buffers.
        `weight` is the priority of the copied steps.

        Args:
            episodes: As in `EpisodeReplayBuffer.add`.
            weight: Priority of the episodes' steps, > 0. None: the largest priority that `update_priorities` has set,
                at least 1.

        Raises:
            ValueError: As there, and if `weight` is out of range.
        """
        self._new_priority = checked_weight(weight)
        super().add(episodes)

    def add_block(self, columns: Mapping[str, Any], *, weight: float | None = None, **more: Any) -> None:
        """Adds a block to the replay buffer: T steps of B environments as arrays, without building episodes.

        Args:
            columns: As in `EpisodeReplayBuffer.add_block`, like `more`.
            weight: As in `add`.

        Raises:
            ValueError: As there, and if `weight` is out of range.
        """
        self._new_priority = checked_weight(weight)
        super().add_block(columns, **more)

    def update_priorities(
        self, priorities: Any, module_id: str | None = None, *, indices: np.ndarray | None = None
    ) -> None:
        """Sets the priorities of sampled items.

        Args:
            priorities: ``[N]``, such as TD errors; their absolute values are used, at least 1e-12.
            module_id: Without effect with one module.
            indices: int64 ``[N]``, "batch_indexes" of the sample; items that were evicted since then are ignored. None:
                the indices of the last sample, once.

        Raises:
            ValueError: If the number of priorities differs from the number of items, a priority is not finite,
                `indices` are not int64 or contain a position outside of this buffer, or nothing was sampled since the
                last call.
        """
        values = arithmetic.magnitudes(np, np.asarray(priorities, np.float64))
        items = np.asarray(self._last_sampled if indices is None else indices)
        if items.shape == ():
            raise ValueError(
                "update_priorities() has no items to update, because nothing was sampled since the last call. Sample "
                "first, or pass update_priorities(priorities, indices=batch['batch_indexes'])."
            )
        self._store.own()
        if items.dtype != np.int64 or np.count_nonzero(items & 0xFFFFFFFF >= self._store.num_rows):
            raise ValueError(
                f"update_priorities() got indices of dtype {items.dtype} that do not come from a sample of this replay "
                "buffer. Pass the sample's batch_indexes (int64) unchanged: indices=batch['batch_indexes']."
            )
        rows, generations = items & 0xFFFFFFFF, items >> 32
        is_there = (self._store.generation[rows] == generations) & (self._store.next[rows] >= 0)
        if values.shape != rows.shape:
            raise ValueError(
                f"update_priorities() got priorities of shape {values.shape} for {len(rows)} items. Pass one for each "
                "item."
            )
        num_bad = np.count_nonzero(~np.isfinite(values))
        if num_bad:
            raise ValueError(
                f"update_priorities() got {num_bad} priorities that are NaN or infinite. Check the loss from which "
                "they are computed."
            )
        if indices is None:
            self._last_sampled = None
        values = values[is_there]
        if len(values):
            self._set(rows[is_there], self._scaled(values))
            self._max_priority = max(self._max_priority, float(values.max()))

    def _scaled(self, priorities: Any) -> Any:
        # Far below any priority that matters, and far from the end of float64, where a large alpha could lead.
        return np.maximum(priorities**self._alpha, 1e-200)

    # ----------------------------------------------------------------------------------------------------------- items

    def _bookkeeping(self) -> dict[str, int]:
        return {"priorities": 17}

    def _add_items(self, rows: np.ndarray) -> None:
        if self._tree.size < self._store.num_rows:
            self._tree = self._tree.resized(self._store.num_rows)
        priority = self._max_priority if self._new_priority is None else self._new_priority
        self._set(rows, self._scaled(priority))

    def _set(self, rows: np.ndarray, scaled: Any) -> None:
        """Sets the scaled priorities (``priority ** alpha``) of the steps with the row indices `rows`.

        Steps are drawn in proportion to their scaled priorities; an episode's first step is drawn more often, see
        `arithmetic.num_starts`.
        """
        if self._first_multiplicity == 1:
            self._tree.set(rows, scaled)
        else:
            is_first = self._store.prev[rows] < 0
            self._tree.set(rows, scaled, arithmetic.num_starts(np, is_first, self._first_multiplicity))

    def _begins_at(self, row: int) -> None:
        rows = np.array([row])
        self._set(rows, self._tree.get(rows))

    def _remove_items(self, rows: np.ndarray) -> None:
        self._tree.remove(rows)

    def _get_items(self) -> dict[str, Any]:
        rows = self._store.steps().astype(np.int32)
        return {"rows": rows, "priorities": self._tree.get(rows), "max_priority": self._max_priority}

    def _restored_items(self, items: Mapping[str, Any], store: StoredFrames) -> dict[str, Any]:
        tree = PriorityTree(store.num_rows)
        tree.set(items["rows"], items["priorities"])
        return {"_tree": tree, "_max_priority": float(items["max_priority"]), "_first_multiplicity": 1}

    def _draw_starts(self, number: int, length: int) -> np.ndarray:
        if length != self._first_multiplicity:
            # Sequences of one length after the other are the rule: this happens once.
            self._first_multiplicity = length
            firsts = np.array([record.first for record in self._records.values()])
            self._set(firsts, self._tree.get(firsts))
        return self._tree.find(self.rng.random(number) * self._tree.total)

    def _importance_weights(self, rows: np.ndarray, beta: float) -> np.ndarray:
        if not isinstance(beta, numbers.Real) or not 0 <= beta < math.inf:
            raise ValueError(f"beta={beta!r} must be a number >= 0.")
        return arithmetic.importance_weights(np, self._tree.get(rows), self._tree.minimum, beta)

    # ----------------------------------------------------------------------------------------------------------- state

    def get_ctor_args_and_kwargs(self) -> tuple[tuple, dict[str, Any]]:
        args, kwargs = super().get_ctor_args_and_kwargs()
        return args, kwargs | {"alpha": self._alpha}


def checked_weight(weight: float | None) -> float | None:
    """Checks `weight`, the priority for new steps, and returns it as a float or None.

    None stands for the maximum of 1 and the largest priority that `update_priorities` has set so far.

    Raises:
        ValueError: If `weight` is out of range.
    """
    if weight is not None and not (isinstance(weight, numbers.Real) and 0 < weight < math.inf):
        raise ValueError(
            f"weight={weight!r} must be a priority > 0 and below infinity, or None for the largest priority that "
            "update_priorities() has set (at least 1)."
        )
    return None if weight is None else float(weight)
