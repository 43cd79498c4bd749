"""Conversion of episode objects, or of chunks of episodes, to tables of recorded steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.datasets.steps import Steps
from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode
from jaxrl_stack.utils.nested import batch


class ChunkJoiner:
    """Joins, for each episode, the chunks that successive calls of `EnvRunner.sample` return, and stores these chunks
    until the episode ends.

    Args:
        max_rows: Number of rows at which an episode is cut; it continues as another piece with the same id.
        has_infos: Whether infos are recorded.
    """

    def __init__(self, max_rows: int, *, has_infos: bool = False):
        self._max_rows = max_rows
        self._has_infos = has_infos
        self._held: dict[str, list[Steps]] = {}

    @property
    def num_held(self) -> int:
        """Number of stored steps of unfinished episodes."""
        return sum(part.num_steps for parts in self._held.values() for part in parts)

    def add(self, episodes: Sequence[SingleAgentEpisode]) -> Steps | None:
        """Adds the episode chunks of one `sample` call to the stored chunks, and returns the steps of ended or cut
        episodes.

        Returns:
            A table with the steps of each episode that ended, reached `max_rows` rows, or was not continued by a chunk
            of this call; None without any.
        """
        episodes = [episode for episode in episodes if len(episode)]
        going_on = {episode.id_ for episode in episodes}
        out = [self._held.pop(id_) for id_ in list(self._held) if id_ not in going_on]
        for episode in episodes:
            parts = self._held.pop(episode.id_, [])
            parts.append(steps_of(episode, has_infos=self._has_infos))
            is_long = sum(part.num_steps for part in parts) + 1 >= self._max_rows
            if episode.is_done or is_long:
                out.append(parts)
            else:
                self._held[episode.id_] = parts
        return _together(out)

    def cut(self) -> Steps | None:
        """Removes and returns the stored steps of unfinished episodes; None if no steps are stored. Later steps of
        these episodes get the same episode ids.
        """
        held, self._held = self._held, {}
        return _together(list(held.values()))


def steps_of(episode: SingleAgentEpisode, *, has_infos: bool = False) -> Steps:
    """Converts an episode, or a chunk of one, to a table of steps. Leaves out the look-back buffer, which repeats the
    last steps of the previous chunk.

    Args:
        episode: Has at least one step.
        has_infos: Whether infos are among the columns, as an array of dicts.
    """
    length = len(episode)
    flags = np.zeros((2, length), bool)
    flags[:, -1] = episode.is_terminated, episode.is_truncated
    of_steps = {
        Columns.ACTIONS: episode.get_actions(),
        Columns.REWARDS: np.asarray(episode.get_rewards(), np.float32),
        Columns.TERMINATEDS: flags[0],
        Columns.TRUNCATEDS: flags[1],
        **{name: episode.get_extra_model_outputs(name) for name in episode.extra_model_outputs},
    }
    columns = {Columns.OBS: _stacked(episode.get_observations())}
    for name, column in of_steps.items():
        # The final row has an observation only; other columns are zeros.
        columns[name] = jax.tree.map(lambda x: np.concatenate([x, np.zeros_like(x[:1])]), _stacked(column))
    if has_infos:
        columns[Columns.INFOS] = object_array(episode.get_infos())
    numbers = np.arange(length + 1, dtype=np.int32)
    return Steps(columns, numbers == length, np.zeros_like(numbers), episode.t_started + numbers, [episode.id_])


def object_array(values: Sequence[Any]) -> np.ndarray:
    """Converts a sequence to a 1-D array of Python objects, one per value, even if the values are sequences or arrays
    themselves.
    """
    out = np.empty(len(values), object)
    for i, value in enumerate(values):
        out[i] = value
    return out


def _together(episodes: Sequence[Sequence[Steps]]) -> Steps | None:
    """Joins several episodes, each given as a list of chunks, to one table of steps; None for an empty list."""
    return Steps.concatenated([_joined(parts) for parts in episodes]) if episodes else None


def _joined(parts: Sequence[Steps]) -> Steps:
    """Joins the chunks of one episode to a contiguous table of steps."""
    steps = Steps.concatenated(parts)
    kept = ~steps.is_final
    kept[-1] = True
    columns = {name: jax.tree.map(lambda x: x[kept], own) for name, own in steps.columns.items()}
    return Steps(columns, steps.is_final[kept], steps.episode[kept], steps.t[kept], steps.episode_ids)


def _stacked(rows: Any) -> Any:
    """Stacks a list of values of an episode, such as its observations, into arrays. Values of a finalized episode are
    arrays already, and are returned unchanged.
    """
    return batch(rows) if isinstance(rows, list) else rows
