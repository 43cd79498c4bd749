"""Builds episode objects from recorded time-major blocks ``[T, B, ...]``, without a Python loop over steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl_stack.acting.episode_forms import EpisodeForm, restored_episode, stored_episode
from jaxrl_stack.core.columns import NOT_MODEL_OUTPUTS, Columns
from jaxrl_stack.episodes.multi_agent_episode import MultiAgentEpisode
from jaxrl_stack.episodes.segments import Segment, segments
from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode
from jaxrl_stack.utils.nested import equal, take

WEIGHTS_SEQ_NO = "weights_seq_no"
"""Extra model output: number of updates of the weights that chose an action."""


class EpisodeBuilder:
    """Cuts recorded blocks ``[T, B, ...]`` into single-agent episodes, and stores episodes that continue in the next
    block.

    Args:
        observation_space: Space of the module's inputs.
        action_space: Space of the module's actions.
        len_lookback_buffer: Number of steps of the previous chunk that a chunk keeps.
    """

    def __init__(self, observation_space: Any, action_space: Any, len_lookback_buffer: int):
        self._spaces = {"observation_space": observation_space, "action_space": action_space}
        self._len_lookback_buffer = len_lookback_buffer
        self._running: dict[int, SingleAgentEpisode] = {}

    def reset(self) -> None:
        """Discards the unfinished episodes: the steps of the next block begin new episodes."""
        self._running = {}

    def add(
        self,
        columns: dict[str, Any],
        *,
        infos: Sequence[Sequence[dict]] | None = None,
        reset_infos: dict[tuple[int, int], dict] | None = None,
        weights_seq_no: int | None = None,
    ) -> list[tuple[int, SingleAgentEpisode]]:
        """Cuts a recorded block of steps ``[T, B, ...]`` into episodes, and returns the episodes that ended.

        An environment's first episode in the block may continue the environment's unfinished episode.

        Args:
            columns: NumPy arrays ``[T, B, ...]``; ``final_obs`` is read where an episode ends and in the last row.
            infos: ``infos[t][b]`` belongs to the observation after step t of environment b; None for none.
            reset_infos: ``{(t, b): info}`` of the observations in row t with which an episode of environment b begins.
            weights_seq_no: Number of updates of the acting weights, stored with every step; None stores nothing.

        Returns:
            ``(environment, episode)`` of the episodes that ended in the block, environment by environment.
        """
        terminateds, truncateds = columns[Columns.TERMINATEDS], columns[Columns.TRUNCATEDS]
        num_steps, num_envs = terminateds.shape
        starts = _not_running(self._running, num_envs)
        found = segments(terminateds, truncateds, mask=columns.get(Columns.LOSS_MASK), starts=starts)
        # Episodes without a segment that continues them are dropped: their environments failed.
        finished, before, self._running = [], self._running, {}
        for segment in found.each():
            episode = self._chunk(columns, segment, infos, reset_infos or {}, weights_seq_no)
            if not segment.begins:
                episode = _continued(before[segment.env], episode)
            if segment.has_ended:
                finished.append((segment.env, episode))
            elif segment.stop == num_steps:
                self._running[segment.env] = episode
        return finished

    def _chunk(self, columns, segment: Segment, infos, reset_infos, weights_seq_no) -> SingleAgentEpisode:
        index, start, stop = segment.env, segment.start, segment.stop
        own = jax.tree.map(lambda x: x[start:stop, index], columns)
        observations = jax.tree.map(
            lambda obs, final: np.concatenate([obs, final[-1:]]), own[Columns.OBS], own[Columns.FINAL_OBS]
        )
        outputs = {name: column for name, column in own.items() if name not in NOT_MODEL_OUTPUTS}
        if weights_seq_no is not None:
            outputs[WEIGHTS_SEQ_NO] = np.full(stop - start, weights_seq_no)
        own_infos = None
        if infos is not None:
            first = reset_infos.get((start, index), infos[start - 1][index] if start else {})
            own_infos = [first, *(infos[t][index] for t in range(start, stop))]
        return SingleAgentEpisode.from_arrays(
            observations=observations,
            actions=own[Columns.ACTIONS],
            rewards=own[Columns.REWARDS],
            terminated=segment.terminated,
            truncated=segment.truncated,
            infos=own_infos,
            extra_model_outputs=outputs,
            **self._spaces,
        )

    def get_state(self) -> dict[str, Any]:
        """Returns the unfinished episodes as plain data for checkpoints."""
        return {"env_indices": list(self._running), "episodes": [stored_episode(own) for own in self._running.values()]}

    def set_state(self, state: Mapping[str, Any], without: Collection[int] = ()) -> None:
        """Restores the unfinished episodes from a result of `get_state`, except for the environments with the indices
        in `without`.
        """
        self._running = {
            index: restored_episode(own)
            for index, own in zip(state["env_indices"], state["episodes"], strict=True)
            if index not in without
        }

    def cut(self) -> list[SingleAgentEpisode]:
        """Cuts the unfinished episodes: returns their steps so far as chunks. Each episode continues in a new chunk."""
        chunks = list(self._running.items())
        self._running = {index: chunk.cut(len_lookback_buffer=self._len_lookback_buffer) for index, chunk in chunks}
        return [chunk for _, chunk in chunks if len(chunk)]


def _not_running(running: Collection[int], num_envs: int) -> np.ndarray:
    """Returns a mask of the environments whose next step is the first of an episode, bool ``[B]``."""
    return np.array([index not in running for index in range(num_envs)])


def _continued(running: SingleAgentEpisode, chunk: SingleAgentEpisode) -> SingleAgentEpisode:
    """Appends `chunk`, the next steps of an episode, to `running`, which contains the earlier steps of the same
    episode. Returns `running`.
    """
    chunk.id_ = running.id_
    chunk.t_started, chunk.t = running.t, running.t + len(chunk)
    first = chunk.get_observations(0)
    if not equal(running.get_observations(-1), first):
        # The statistics of a filter changed after the chunk's end: keep the observation that the module acted on.
        running.set_observations(new_data=first, at_indices=-1)
    running.concat_episode(chunk)
    return running


class StepwiseEpisodeBuilder:
    """Builds multi-agent episodes from recorded blocks, step by step, and stores episodes that continue in the next
    block.

    Args:
        form: Converts recorded steps to episodes.
        len_lookback_buffer: Number of environment steps of the previous chunk that a chunk keeps.
    """

    def __init__(self, form: EpisodeForm, len_lookback_buffer: int):
        self._form = form
        self._len_lookback_buffer = len_lookback_buffer
        self._running: dict[int, MultiAgentEpisode] = {}

    def reset(self) -> None:
        """Discards the unfinished episodes: the steps of the next block begin new episodes."""
        self._running = {}

    def add(self, block: Any) -> list[tuple[int, MultiAgentEpisode]]:
        """Appends the steps of a recorded block to the unfinished episodes, and returns the episodes that ended.

        Args:
            block: A `ShownStep` with NumPy arrays ``[T, B, ...]``.

        Returns:
            ``(environment, episode)`` of the episodes that ended in the block, environment by environment.
        """
        terminateds, truncateds = self._form.flags(block)
        finished, starts = [], _not_running(self._running, terminateds.shape[1])
        for segment in segments(terminateds, truncateds, starts=starts).each():
            own = jax.tree.map(lambda x, segment=segment: x[segment.start : segment.stop, segment.env], block)
            if segment.begins:
                self._running[segment.env] = self._form.new()
                self._form.reset(self._running[segment.env], take(own, 0))
            for t in range(segment.stop - segment.start):
                self._form.add(self._running[segment.env], take(own, t))
            if segment.has_ended:
                finished.append((segment.env, self._running.pop(segment.env)))
        return finished

    def cut(self) -> list[MultiAgentEpisode]:
        """Cuts the unfinished episodes: returns their steps so far as chunks, environment by environment. Each episode
        continues in a new chunk.
        """
        chunks = [(index, self._running[index]) for index in sorted(self._running)]
        self._running = {index: chunk.cut(len_lookback_buffer=self._len_lookback_buffer) for index, chunk in chunks}
        return [chunk for _, chunk in chunks if len(chunk)]
