"""The running episodes of a host runner as objects, for host connectors and callbacks that look at every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxrl_stack.acting.episode_builder import WEIGHTS_SEQ_NO
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode
from jaxrl_stack.utils.nested import owned, row
from jaxrl_stack.utils.notices import notice_once

JOINED_STEPS = 128
"""Earlier chunks of a running episode are joined until they have so many steps."""
MOST_EARLIER_STEPS = 2**16
"""Of an episode that goes on and on, so many earlier steps are kept for ``on_episode_end``."""


class LiveEpisodes:
    """One running episode per environment, extended step by step.

    The last observation of a running episode is the environment's own until the module acts on it; from then on it
    is what the module saw. Where a connector leaves the episodes alone and puts observations of its own into the batch,
    running episodes go on with theirs, which it looks back on; what is handed out holds what the module saw.

    Args:
        call: ``(hook name, env index, episode, **more)``; called for ``on_episode_created``, ``on_episode_start``,
            ``on_episode_step`` and ``on_episode_end``.
        num_envs: ``B``.
        len_lookback_buffer: Steps of the previous chunk that a chunk keeps.
        keeps_chunks: Whether ``on_episode_end`` is called, and gets the earlier chunks: joined ones, so that their
            number does not depend on the lengths of recordings, of at most `MOST_EARLIER_STEPS` steps or so.
    """

    def __init__(
        self, call: Callable[..., None], num_envs: int, len_lookback_buffer: int, *, keeps_chunks: bool = True
    ):
        self._call = call
        self._len_lookback_buffer = len_lookback_buffer
        self._keeps_chunks = keeps_chunks
        self.episodes: list[SingleAgentEpisode] = [SingleAgentEpisode() for _ in range(num_envs)]
        self._chunks: list[list[SingleAgentEpisode]] = [[] for _ in range(num_envs)]
        self._finished: list[tuple[int, SingleAgentEpisode]] = []
        self._last_inputs: Any = None
        # What the module saw of a running episode that keeps its own observations, look-back included.
        self._seen: list[list[Any]] = [[] for _ in range(num_envs)]

    def start(self, index: int, observation: Any, info: dict) -> None:
        """A new episode in one environment."""
        episode = self.episodes[index] = SingleAgentEpisode()
        self._chunks[index] = []
        self._seen[index] = []
        self._call("on_episode_created", index, episode)
        episode.add_env_reset(observation, owned(info))
        self._call("on_episode_start", index, episode)

    def saw(self, observations: Any, keeps_own: bool = False) -> None:
        """What the module acts on now, ``[B, ...]``: takes the place of the environments' last observations.

        Args:
            observations: Those.
            keeps_own: Not before the episode is handed out.
        """
        for index, episode in enumerate(self.episodes):
            if episode.is_done:
                continue
            if keeps_own:
                self._seen[index].append(row(observations, index))
            else:
                episode.set_observations(new_data=row(observations, index), at_indices=-1)

    def _see(self, index: int, episode: SingleAgentEpisode, last: Any) -> None:
        """Put what the module saw into an episode that is handed out, `last` after its last step."""
        seen = [*self._seen[index], last]
        episode.observations.data[-len(seen) :] = seen

    def append(self, step: Any, columns: dict[str, Any], next_obs: Any, weights_seq_no: int) -> None:
        """Take in one vector step; ended episodes stay in place until `begin`.

        Args:
            step: The `VectorStep`.
            columns: What the policy put out for it, ``{column: [B, ...]}``.
            next_obs: The environments' observations after the step and before any reset, ``[B, ...]``.
            weights_seq_no: Updates that the acting weights had seen.
        """
        for index, episode in enumerate(self.episodes):
            if step.valid is not None and not step.valid[index]:
                continue
            outputs = {
                name: row(column, index)
                for name, column in columns.items()
                if name not in (Columns.OBS, Columns.ACTIONS, Columns.ACTIONS_FOR_ENV, Columns.RESETS)
            }
            episode.add_env_step(
                row(next_obs, index),
                row(columns[Columns.ACTIONS], index),
                np.float64(step.rewards[index]),  # a float that connectors can cast
                owned(step.infos[index]),
                terminated=bool(step.terminateds[index]),
                truncated=bool(step.truncateds[index]),
                extra_model_outputs={**outputs, WEIGHTS_SEQ_NO: weights_seq_no},
            )

    def report(self, step: Any, final_inputs: Any = None) -> None:
        """Tell the callbacks about the step that was appended.

        Args:
            step: The `VectorStep`.
            final_inputs: The module's view of what is after the step, ``[B, ...]``; needed where an episode ends, and
                before `cut`.
        """
        self._last_inputs = final_inputs
        for index, episode in enumerate(self.episodes):
            if step.valid is not None and not step.valid[index]:
                continue
            if episode.is_done and final_inputs is not None and not self._seen[index]:
                episode.set_observations(new_data=row(final_inputs, index), at_indices=-1)
            self._call("on_episode_step", index, episode)
            if episode.is_done:
                self._call("on_episode_end", index, episode, prev_episode_chunks=self._chunks[index])
                if self._seen[index]:
                    self._see(index, episode, row(final_inputs, index))
                self._finished.append((index, episode))

    def begin(self, step: Any) -> None:
        """New episodes in the environments that were reset."""
        for index in np.flatnonzero(step.resets).tolist():
            info = step.reset_infos[index] if step.reset_infos is not None else {}
            self.start(index, row(step.obs, index), info)

    def take_finished(self) -> list[tuple[int, SingleAgentEpisode]]:
        """``(environment, episode)`` of what ended since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def cut(self) -> list[SingleAgentEpisode]:
        """Hand the running episodes out as chunks, and go on with their successors."""
        chunks = []
        for index, episode in enumerate(self.episodes):
            if episode.is_done or not len(episode):
                continue
            successor = self.episodes[index] = episode.cut(len_lookback_buffer=self._len_lookback_buffer)
            seen = self._seen[index]
            if self._last_inputs is not None and not seen:
                # Nothing acts on it in this chunk: it is to look like the others all the same.
                episode.set_observations(new_data=row(self._last_inputs, index), at_indices=-1)
            if self._keeps_chunks:
                self._keep(self._chunks[index], episode)
            if seen:
                self._see(index, episode, row(self._last_inputs, index))
                del seen[: len(seen) - successor.observations.lookback]
            chunks.append(episode)
        return chunks

    def _keep(self, chunks: list[SingleAgentEpisode], chunk: SingleAgentEpisode) -> None:
        """Note a chunk among the earlier chunks of its episode."""
        # A copy: the chunk itself is handed out.
        chunk = chunk.slice(slice(None), len_lookback_buffer=0)
        if chunks and len(chunks[-1]) + len(chunk) <= JOINED_STEPS:
            # Statistics of a filter may have moved on in between: what the module acted on counts.
            chunks[-1].set_observations(new_data=chunk.get_observations(0), at_indices=-1)
            chunks[-1].concat_episode(chunk)
        else:
            if chunks:
                chunks[-1].to_numpy()
            chunks.append(chunk)
        if chunk.t - chunks[0].t_started > MOST_EARLIER_STEPS:
            notice_once(
                f"An episode has more than {MOST_EARLIER_STEPS} steps: on_episode_end gets the last ones of them only, "
                f"in prev_episode_chunks. Sum up in on_episode_step what is needed of all."
            )
            del chunks[0]
