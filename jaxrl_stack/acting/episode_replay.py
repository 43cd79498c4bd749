"""Calls per-episode callback hooks for on-device environments, with episodes that are rebuilt from recorded steps.

On-device environments run inside a compiled program. After the program has recorded a block of steps, the episodes are
rebuilt step by step, and the hooks are called for each step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl_stack.acting.episode_forms import EpisodeForm
from jaxrl_stack.episodes.segments import segments
from jaxrl_stack.utils.nested import take

logger = logging.getLogger(__name__)


class EpisodeReplay:
    """Calls the per-episode callback hooks for environments that run inside a compiled program, after the program has
    recorded its steps.

    The program is ahead of the hooks. If a hook raises or Ctrl-C interrupts, the environments stay where the program
    left them. `expect` and `pass_over_missed` make sure that episodes with a gap are not shown any further.

    Args:
        call: ``(hook name, env index, episode)``; called for ``on_episode_created``, ``on_episode_start``,
            ``on_episode_step`` and ``on_episode_end``, in the order of a host runner.
        form: Converts recorded steps to episodes.
        first_env: Index of the first environment of the blocks.
    """

    def __init__(self, call: Callable[..., None], form: EpisodeForm, first_env: int = 0):
        self._call = call
        self._form = form
        self._first_env = first_env
        self._running: dict[int, Any] = {}
        # Environments in the middle of episodes whose beginning was not seen.
        self._missed: set[int] = set()
        # Env steps that were sampled and not replayed yet; None between calls, without such steps.
        self._due: int | None = None

    def expect(self, num_env_steps: int) -> None:
        """Stores the number of sampled env steps that the next `replay` will pass to the callbacks.

        With this number, `pass_over_missed` detects that `replay` was interrupted or not called.
        """
        self._due = num_env_steps

    def pass_over_missed(self, lengths: Callable[[], np.ndarray]) -> None:
        """Discards the unfinished episodes and logs a warning if callbacks have missed steps.

        Callbacks have missed steps if an error or Ctrl-C interrupted or prevented the last `replay`. If no steps were
        missed, does nothing. Callbacks are called again for episodes that begin later.

        Args:
            lengths: ``() -> int [B]``, steps of the environments' unfinished episodes.
        """
        if self._due is None:
            return
        logger.warning(
            "An error or Ctrl-C interrupted the callbacks: they have missed %d env steps and the end of the "
            "unfinished episodes. They are called again for episodes that begin from now on.",
            self._due,
        )
        self.set_state({}, lengths())

    def replay(self, block: Any, counts: np.ndarray | None = None) -> list[Any]:
        """Calls the callback hooks for the steps of a recorded block, in the order of time.

        Args:
            block: Record of one rollout, NumPy arrays ``[T, B, ...]``.
            counts: bool ``[T, B]``, False for steps to skip; None: all count.

        Returns:
            The episodes that ended in the block, then the unfinished episodes.
        """
        terminateds, truncateds = self._form.flags(block)
        known = self._running.keys() | self._missed
        starts = np.array([self._first_env + place not in known for place in range(terminateds.shape[1])])
        found = segments(terminateds, truncateds, mask=counts, starts=starts)
        self._due = due = int(found.length.sum())
        parts, ended = list(found.each()), []
        for t, numbers in enumerate(found.numbers().tolist()):
            row = take(block, t)
            for place, number in enumerate(numbers):
                if number < 0:
                    continue
                step, index = take(row, place), self._first_env + place
                self._due = due = due - 1
                if parts[number].begins and t == parts[number].start:
                    episode = self._running[index] = self._form.new()
                    self._call("on_episode_created", index, episode)
                    self._form.reset(episode, step)
                    self._call("on_episode_start", index, episode)
                if index not in self._running:  # The beginning of the episode was missed.
                    continue
                episode = self._running[index]
                self._form.add(episode, step)
                self._call("on_episode_step", index, episode)
                if episode.is_done:
                    self._call("on_episode_end", index, episode)
                    ended.append(self._running.pop(index))
        self._missed -= {self._first_env + part.env for part in parts if part.has_ended}
        self._due = None
        return [*ended, *self._running.values()]

    def get_state(self) -> dict[str, Any]:
        """Returns, as plain data, the unfinished episodes that callbacks have seen from the beginning.

        Returns {} if there are none, or if callbacks have not seen all sampled steps.
        """
        episodes = list(self._running.values())
        if not episodes or self._due is not None:
            return {}
        lengths = [len(episode) for episode in episodes]
        return {"env_indices": list(self._running), "lengths": lengths, **self._form.stored(episodes)}

    def set_state(self, state: Mapping[str, Any], lengths: np.ndarray) -> None:
        """Restores the unfinished episodes from a result of `get_state`; callback hooks are not called for their
        earlier steps.

        Args:
            state: Result of `get_state` or `joined_states`; ``{}`` if these episodes were not watched.
            lengths: int ``[B]``, steps of the environments' unfinished episodes. If `state` has no episode of that
                length for an environment, the environment's next episode is the first one to be shown. Episodes of
                other environments are ignored.
        """
        self._due = None
        length_of = dict(enumerate(lengths.tolist(), start=self._first_env))
        episodes = self._form.restored(state) if state else []
        numbers = state.get("env_indices", ()), state.get("lengths", ())
        self._running = {
            index: episode
            for index, length, episode in zip(*numbers, episodes, strict=True)
            if length == length_of.get(index)
        }
        self._missed = {i for i, length in length_of.items() if length} - self._running.keys()


def joined_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Joins the states of several `EpisodeReplay` objects, which replay the episodes of different environments, into
    one state for `EpisodeReplay.set_state`.
    """
    states = [state for state in states if state]
    if not states:
        return {}
    joined = {name: [value for state in states for value in state[name]] for name in states[0] if name != "columns"}
    if "columns" in states[0]:
        joined["columns"] = jax.tree.map(lambda *leaves: np.concatenate(leaves), *(s["columns"] for s in states))
    return joined


def side_by_side(columns: Any) -> Any:
    """Joins blocks of D devices, ``[D, T, B, ...]``, to one block of all environments, ``[T, D * B, ...]``."""
    return jax.tree.map(lambda x: np.moveaxis(x, 0, 1).reshape(x.shape[1], -1, *x.shape[3:]), columns)
