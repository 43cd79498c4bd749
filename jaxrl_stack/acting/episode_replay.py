"""Episodes step by step out of recorded blocks, for callbacks that watch them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl_stack.core.columns import NOT_MODEL_OUTPUTS, Columns
from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode
from jaxrl_stack.utils.nested import batch, take, unbatch

logger = logging.getLogger(__name__)


class EpisodeReplay:
    """Feeds the per-episode callback hooks of an algorithm whose environments run inside a compiled program.

    The program is ahead of the hooks. Where a hook raises, or Ctrl-C comes in between, the environments stand where
    the program has left them: `expect` and `pass_over_missed` see to it that episodes with a gap are shown no further.

    Args:
        call: ``(hook name, env index, episode)``; called for ``on_episode_created``, ``on_episode_start``,
            ``on_episode_step`` and ``on_episode_end``, in the order in which a host runner would.
        observation_space: Of the module's inputs.
        action_space: Of the module's actions.
        first_env: Index of the first environment of the blocks.
    """

    def __init__(self, call: Callable[..., None], observation_space: Any, action_space: Any, first_env: int = 0):
        self._call = call
        self._first_env = first_env
        self._spaces = {"observation_space": observation_space, "action_space": action_space}
        self._running: dict[int, SingleAgentEpisode] = {}
        # Environments in the middle of episodes whose beginning was not seen.
        self._missed: set[int] = set()
        # Env steps that were sampled and are not replayed yet; None between calls, when there are none.
        self._due: int | None = None

    def expect(self, num_env_steps: int) -> None:
        """Take note of env steps that the environments have taken, and that the next `replay` is to show."""
        self._due = num_env_steps

    def pass_over_missed(self, lengths: Callable[[], np.ndarray]) -> None:
        """If an error or Ctrl-C came before the end of the last `replay`, leave the running episodes out.

        Args:
            lengths: ``() -> int [B]``, steps of the environments' running episodes. The next ones are watched again.
        """
        if self._due is None:
            return
        logger.warning(
            "An error or Ctrl-C came before callbacks were told of all that was sampled: they have missed %d env steps "
            "and the end of the episodes that were running. They see the episodes that begin from here on.",
            self._due,
        )
        self.set_state({}, lengths())

    def replay(self, columns: dict[str, Any], counts: np.ndarray | None = None) -> list[SingleAgentEpisode]:
        """Go through a block step by step.

        Args:
            columns: NumPy arrays ``[T, B, ...]`` of one rollout.
            counts: bool ``[T, B]``, False for steps to pass over; None: all count.

        Returns:
            The episodes that ended in it, then what was sampled so far of those that go on.
        """
        num_steps, num_envs = columns[Columns.REWARDS].shape
        self._due = due = num_steps * num_envs if counts is None else int(np.sum(counts))
        ended: list[SingleAgentEpisode] = []
        for t in range(num_steps):
            row = take(columns, t)
            for place in range(num_envs):
                if counts is not None and not counts[t, place]:
                    continue
                step, index = take(row, place), self._first_env + place
                self._due = due = due - 1
                if index in self._missed:
                    if step[Columns.TERMINATEDS] or step[Columns.TRUNCATEDS]:
                        self._missed.remove(index)
                    continue
                if index not in self._running:
                    episode = self._running[index] = SingleAgentEpisode(**self._spaces)
                    self._call("on_episode_created", index, episode)
                    episode.add_env_reset(step[Columns.OBS])
                    self._call("on_episode_start", index, episode)
                episode = self._running[index]
                episode.add_env_step(
                    step[Columns.FINAL_OBS],
                    step[Columns.ACTIONS],
                    float(step[Columns.REWARDS]),
                    terminated=bool(step[Columns.TERMINATEDS]),
                    truncated=bool(step[Columns.TRUNCATEDS]),
                    extra_model_outputs={k: v for k, v in step.items() if k not in NOT_MODEL_OUTPUTS},
                )
                self._call("on_episode_step", index, episode)
                if episode.is_done:
                    self._call("on_episode_end", index, episode)
                    ended.append(self._running.pop(index))
        self._due = None
        return [*ended, *self._running.values()]

    def get_state(self) -> dict[str, Any]:
        """The running episodes, all steps of all of them in a row; empty if there are none, or not all was shown."""
        episodes = list(self._running.values())
        if not episodes or self._due is not None:
            return {}
        columns = [
            {
                **{name: column.get() for name, column in episode.extra_model_outputs.items()},
                Columns.OBS: episode.get_observations(),
                Columns.ACTIONS: episode.get_actions(),
                Columns.REWARDS: episode.get_rewards(),
            }
            for episode in episodes
        ]
        return {
            "env_indices": list(self._running),
            "ids": [episode.id_ for episode in episodes],
            "lengths": [len(episode) for episode in episodes],
            "custom_data": [
                {key: value for key, value in episode.custom_data.items() if _is_data(value)} for episode in episodes
            ],
            "columns": {name: batch([row for own in columns for row in own[name]]) for name in columns[0]},
        }

    def set_state(self, state: Mapping[str, Any], lengths: np.ndarray) -> None:
        """Go on with the episodes of `get_state`, without calling hooks for what they hold.

        Args:
            state: What `get_state` or `joined_states` returned; ``{}`` if these episodes were not watched.
            lengths: int ``[B]``, steps of the environments' running episodes. Where `state` has no episode of that
                length, the next one is the first to be watched; other environments' episodes are passed over.
        """
        self._running, self._due = {}, None
        length_of = dict(enumerate(lengths.tolist(), start=self._first_env))
        start = 0
        members = [state.get(name, ()) for name in ("env_indices", "ids", "lengths", "custom_data")]
        for number, (index, id_, length, custom_data) in enumerate(zip(*members, strict=True)):
            if length == length_of.get(index):
                # One observation more than steps, in every episode before this one.
                columns = _rows_of(state["columns"], slice(start, start + length), start + number)
                episode = self._running[index] = SingleAgentEpisode(
                    id_,
                    observations=columns.pop(Columns.OBS),
                    actions=columns.pop(Columns.ACTIONS),
                    rewards=[float(reward) for reward in columns.pop(Columns.REWARDS)],
                    extra_model_outputs=columns,
                    len_lookback_buffer=0,
                    **self._spaces,
                )
                episode.custom_data.update(custom_data)
            start += length
        self._missed = {i for i, length in length_of.items() if length} - self._running.keys()


def joined_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One state for `EpisodeReplay.set_state` out of those of several, each of other environments."""
    states = [state for state in states if state]
    if not states:
        return {}
    lists = {name: [value for state in states for value in state[name]] for name in states[0] if name != "columns"}
    return {**lists, "columns": jax.tree.map(lambda *leaves: np.concatenate(leaves), *(s["columns"] for s in states))}


def _rows_of(columns: Mapping[str, Any], steps: slice, first_observation: int) -> dict[str, list[Any]]:
    """One episode's rows of `EpisodeReplay.get_state`."""
    observations = slice(first_observation, first_observation + steps.stop - steps.start + 1)
    return {name: unbatch(take(c, observations if name == Columns.OBS else steps)) for name, c in columns.items()}


def side_by_side(columns: Any) -> Any:
    """Blocks ``[D, T, B, ...]`` of all devices as one block ``[T, D * B, ...]`` of all environments."""
    return jax.tree.map(lambda x: np.moveaxis(x, 0, 1).reshape(x.shape[1], -1, *x.shape[3:]), columns)


def _is_data(value: Any) -> bool:
    """Whether it can be kept: numbers, text, arrays, and lists and dicts of these."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_data(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_data, value))
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in "biufc"
    return value is None or isinstance(value, bool | int | float | str)
