"""Reset seeds and recorded actions, from which unfinished episodes of gymnasium environments are restored by replay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_stack.env.vector.interface import HostVectorEnv, Replayed
from jaxrl_stack.utils.nested import has_equal_bits, row
from jaxrl_stack.utils.seeds import derived_seed

_FIRST_CAPACITY = 64
"""Vector steps for which memory is allocated first; it doubles when it is full."""


class RestoredEpisodes(NamedTuple):
    """Result of `ReplayableEpisodes.restore` for ``B`` environments: the last infos, and descriptions of problems.

    A text describes the problem of each environment whose episode could not be restored.

    Attributes:
        infos: The last info of each environment, from a reset or from the last replayed step.
        problems: ``{environment: problem}`` of the environments that could not be restored.
    """

    infos: list[dict[str, Any]]
    problems: dict[int, str]


class ReplayableEpisodes:
    """Records the reset seeds and actions of ``B`` environments. A replay of these seeds and actions restores the
    unfinished episodes later.

    A gymnasium environment does not return its state, but the seed of its last reset and the actions since then
    determine the state if the environment draws all random numbers from ``self.np_random``. Every reset gets a seed
    from the stream ``"episode"``: reset n of environment i has ``derived_seed("episode", *seeds, i, n)``.

    Memory: the actions of all environments since the oldest unfinished episode began, in arrays that double when they
    are full.

    Args:
        num_envs: ``B``.
        seeds: Integers from which seeds of resets are derived.

    Attributes:
        seeds: The constructor argument, or the argument of the last `reseed`.
    """

    def __init__(self, num_envs: int, seeds: Sequence[int]):
        self._num_envs = num_envs
        self._columns: Any = None
        self._rows: list[np.ndarray] = []
        self._capacity = 0
        self.reseed(seeds)

    def reseed(self, seeds: Sequence[int]) -> None:
        """Starts a new sequence of reset seeds, which are derived from `seeds`, and discards the recorded actions."""
        self.seeds = tuple(seeds)
        # Number of seeds that each environment got, and the last one.
        self._num_resets = [0] * self._num_envs
        self._last_seed = [0] * self._num_envs
        # Position of the next row, and of the first row of each unfinished episode.
        self._time = 0
        self._start = [0] * self._num_envs

    def next_seed(self, index: int) -> int:
        """Returns the seed for the next reset of one environment, and begins to record the environment's new
        episode.
        """
        seed = derived_seed("episode", *self.seeds, index, self._num_resets[index])
        self._num_resets[index] += 1
        self._last_seed[index], self._start[index] = seed, self._time
        return seed

    def add(self, actions: Any) -> None:
        """Records the actions of all ``B`` environments for one vector step. Call this method before the environments
        step.

        Args:
            actions: Actions for the environments, NumPy pytree ``[B, ...]``; they are copied.
        """
        leaves = (actions,) if isinstance(actions, np.ndarray) else jax.tree.leaves(actions)
        if self._time == self._capacity:
            self._make_room(actions, leaves)
        for column, leaf in zip(self._rows, leaves, strict=True):
            column[self._time] = leaf
        self._time += 1

    def _make_room(self, actions: Any, leaves: Sequence[np.ndarray]) -> None:
        """Makes space for further actions: discards actions of ended episodes, and enlarges the arrays if unfinished
        episodes fill more than half of them.
        """
        first = min(self._start)
        kept = slice(first, self._time)
        self._time -= first
        self._start = [start - first for start in self._start]
        if self._time * 2 > self._capacity or not self._capacity:
            self._capacity = max(_FIRST_CAPACITY, 2 * self._capacity)
        own = self._rows or [leaf[:0] for leaf in (np.asarray(leaf)[None] for leaf in leaves)]
        moved = [np.empty((self._capacity, *column.shape[1:]), column.dtype) for column in own]
        for new, column in zip(moved, own, strict=True):
            new[: self._time] = column[kept]
        self._rows = moved
        self._columns = jax.tree.unflatten(jax.tree.structure(actions), moved)

    # -------------------------------------------------------------------------------------------------------- state

    def get_state(self, *, are_running: bool) -> dict[str, Any]:
        """Returns the reset seeds and recorded actions of the unfinished episodes as plain data, for checkpoints.

        Args:
            are_running: Whether the episodes continue; False if all environments are reset next.

        Returns:
            ``seeds`` of the stream; ``num_resets``, ``last_seeds`` and ``lengths``, int64 ``[B]``; and ``actions``,
            a pytree ``[sum(lengths), ...]``, environment by environment, or None without any.
        """
        end = self._time
        lengths = [end - start if are_running else 0 for start in self._start]
        actions = None
        if any(lengths):
            parts = [(i, slice(start, end)) for i, start in enumerate(self._start) if start < end]
            actions = jax.tree.map(lambda x: np.concatenate([x[steps, i] for i, steps in parts]), self._columns)
        return {
            "seeds": list(self.seeds),
            "num_resets": np.array(self._num_resets, np.int64),
            "last_seeds": np.array(self._last_seed, np.int64),
            "lengths": np.array(lengths, np.int64),
            "actions": actions,
        }

    def continue_seeds(self, state: Mapping[str, Any]) -> None:
        """Continues the sequence of reset seeds that a `get_state()` result contains.

        Sets `seeds` and each environment's number of resets from this result. Discards the recorded actions, and does
        not restore the saved episodes.
        """
        self.reseed([int(seed) for seed in state["seeds"]])
        self._num_resets = [int(number) for number in state["num_resets"]]

    def restore(
        self,
        state: Mapping[str, Any],
        vector: HostVectorEnv,
        obs: Any,
        returns: np.ndarray,
        renew: Callable[[int], object],
    ) -> RestoredEpisodes:
        """Restores the unfinished episodes in a `get_state` result by repeating the saved actions.

        First resets each environment with the saved seed. Returns the last infos, and the problems of environments
        whose episode could not be restored.

        An environment whose last observation or return differs from the stored one, in any bit, is reset with its next
        seed instead.

        Args:
            state: Result of `get_state` for ``B`` environments.
            vector: The environments.
            obs: Stored last observations, ``[B, ...]``.
            returns: float64 ``[B]``, stored returns of the unfinished episodes so far.
            renew: Replaces an environment that raises an exception in its replay.
        """
        self.continue_seeds(state)
        self._last_seed = [int(seed) for seed in state["last_seeds"]]
        lengths = [int(length) for length in state["lengths"]]
        ends = np.cumsum(lengths).tolist()
        infos, problems = [], {}
        for i, (length, end) in enumerate(zip(lengths, ends, strict=True)):
            own = jax.tree.map(lambda x, steps=slice(end - length, end): x[steps], state["actions"])
            info: dict[str, Any] = {}
            try:
                replayed = vector.replay(i, self._last_seed[i], own, length)
            except Exception as error:
                problem = f"raised {type(error).__name__} in a replay of {length} actions: {error}"
                renew(i)
            else:
                info, problem = replayed.info, _difference(replayed, length, row(obs, i), float(returns[i]))
            if problem is not None:
                problems[i] = problem
            infos.append(info)
        self._take_in(state["actions"], lengths, ends, problems)
        for i in problems:
            infos[i] = vector.replay(i, self.next_seed(i), None, 0).info
        return RestoredEpisodes(infos, problems)

    def _take_in(self, actions: Any, lengths: Sequence[int], ends: Sequence[int], problems: Mapping[int, str]) -> None:
        """Replaces the recorded actions with the actions of the restored episodes.

        Later `add` calls then append to the restored actions. Omits the actions of episodes that could not be restored.
        """
        kept = [0 if i in problems else length for i, length in enumerate(lengths)]
        self._time = longest = max(kept, default=0)
        self._start = [longest - length for length in kept]
        self._rows, self._columns, self._capacity = [], None, 0
        if not longest:
            return
        self._capacity = max(_FIRST_CAPACITY, 2 * longest)
        shape = (self._capacity, self._num_envs)
        self._columns = jax.tree.map(lambda x: np.zeros((*shape, *x.shape[1:]), x.dtype), actions)
        self._rows = jax.tree.leaves(self._columns)
        for column, given in zip(self._rows, jax.tree.leaves(actions), strict=True):
            for i, (length, end) in enumerate(zip(kept, ends, strict=True)):
                column[longest - length : longest, i] = given[end - length : end]


def _difference(replayed: Replayed, length: int, obs: Any, episode_return: float) -> str | None:
    """Returns the difference between a replayed episode and the stored one as text; None if they are equal."""
    if replayed.num_steps < length or replayed.has_ended:
        return f"ended its episode after {replayed.num_steps} of {length} replayed actions"
    pairs = {"observation": (replayed.obs, obs), "return": (replayed.episode_return, episode_return)}
    different = [name for name, pair in pairs.items() if not has_equal_bits(*pair)]
    return f"returned another {' and '.join(different)} after {length} replayed actions" if different else None


__all__ = ["ReplayableEpisodes", "RestoredEpisodes"]
