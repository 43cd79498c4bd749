"""Unfinished single-agent episodes of a host EnvRunner as objects, for callbacks and host connectors (plain Python,
outside jit), which read the episodes in every step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from jaxrl_stack.acting.episode_builder import WEIGHTS_SEQ_NO
from jaxrl_stack.acting.episode_forms import restored_episode, stored_episode
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode
from jaxrl_stack.utils.nested import owned, row
from jaxrl_stack.utils.notices import notice_once

JOINED_STEPS = 128
"""Number of steps up to which earlier chunks of an unfinished episode are joined."""
MOST_EARLIER_STEPS = 2**16
"""Approximate maximum number of earlier steps of a long episode that are kept for ``on_episode_end``."""


class LiveEpisodes:
    """Unfinished single-agent episodes as objects, one per environment, extended step by step.

    The last observation of an unfinished episode is the environment's until the module acts on it; then the module's
    input replaces it. If a connector puts its own observations into the batch and leaves the episodes unchanged,
    unfinished episodes keep the environment's observations, since the connector may read earlier ones. Episodes that
    are returned contain the module's inputs.

    Args:
        call: ``(hook name, env index, episode, **more)``; called for ``on_episode_created``, ``on_episode_start``,
            ``on_episode_step`` and ``on_episode_end``.
        num_envs: ``B``.
        len_lookback_buffer: Number of steps of the previous chunk that a chunk keeps.
        keeps_chunks: Whether earlier chunks of unfinished episodes are kept for ``on_episode_end``. They are joined, so
            that their number does not depend on the lengths of recordings, and limited to about `MOST_EARLIER_STEPS`
            steps.
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
        # The module's inputs for an unfinished episode that keeps the environment's observations, look-back included.
        self._seen: list[list[Any]] = [[] for _ in range(num_envs)]

    def start(self, index: int, observation: Any, info: dict) -> None:
        """Starts a new episode object for one environment, with the first observation after a reset."""
        episode = self.episodes[index] = SingleAgentEpisode()
        self._chunks[index] = []
        self._seen[index] = []
        self._call("on_episode_created", index, episode)
        episode.add_env_reset(observation, owned(info))
        self._call("on_episode_start", index, episode)

    def saw(self, observations: Any, keeps_own: bool = False) -> None:
        """Replaces the last observation of each unfinished episode by the module's input, which connectors computed
        from this observation.

        Args:
            observations: The module's inputs, ``[B, ...]``.
            keeps_own: Whether unfinished episodes keep the environments' observations until they are returned.
        """
        for index, episode in enumerate(self.episodes):
            if episode.is_done:
                continue
            if keeps_own:
                self._seen[index].append(row(observations, index))
            else:
                episode.set_observations(new_data=row(observations, index), at_indices=-1)

    def _see(self, index: int, episode: SingleAgentEpisode, last: Any) -> None:
        """Replaces an episode's newest observations by the module's inputs for these observations, before the episode
        is returned.

        The inputs are the values that `saw` has stored, then `last`, the input for the observation after the last step.
        """
        seen = [*self._seen[index], last]
        episode.observations.data[-len(seen) :] = seen

    def append(self, step: Any, columns: dict[str, Any], next_obs: Any, weights_seq_no: int) -> None:
        """Appends one vector step (a step of all environments) to the unfinished episodes. Ended episodes remain in
        `episodes` until `begin` replaces them.

        Args:
            step: The `VectorStep`.
            columns: The policy's results for the step, ``{column: [B, ...]}``.
            next_obs: The environments' observations after the step and before any reset, ``[B, ...]``.
            weights_seq_no: Number of updates of the acting weights.
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
        """Calls the callback ``on_episode_step`` for the step that `append` has added to each episode and, if an
        episode has ended, the callback ``on_episode_end``.

        Args:
            step: The `VectorStep`.
            final_inputs: The module's inputs after the step, ``[B, ...]``; required if an episode ends, and before
                `cut`.
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
        """Starts new episode objects for the environments that were reset in a vector step (a step of all
        environments).
        """
        for index in np.flatnonzero(step.resets).tolist():
            info = step.reset_infos[index] if step.reset_infos is not None else {}
            self.start(index, row(step.obs, index), info)

    def take_finished(self) -> list[tuple[int, SingleAgentEpisode]]:
        """Returns the episodes that ended since the last call, as pairs ``(environment index, episode)``."""
        finished, self._finished = self._finished, []
        return finished

    def cut(self) -> list[SingleAgentEpisode]:
        """Cuts the unfinished episodes: returns their steps so far as chunks. Each episode continues in a new chunk."""
        chunks = []
        for index, episode in enumerate(self.episodes):
            if episode.is_done or not len(episode):
                continue
            successor = self.episodes[index] = episode.cut(len_lookback_buffer=self._len_lookback_buffer)
            seen = self._seen[index]
            if self._last_inputs is not None and not seen:
                # The module does not act on the last observation in this chunk; it has the form of the others anyway.
                episode.set_observations(new_data=row(self._last_inputs, index), at_indices=-1)
            if self._keeps_chunks:
                self._keep(self._chunks[index], episode)
            if seen:
                self._see(index, episode, row(self._last_inputs, index))
                del seen[: len(seen) - successor.observations.lookback]
            chunks.append(episode)
        return chunks

    def get_state(self) -> dict[str, Any]:
        """Returns the unfinished episodes as plain data for checkpoints. Call `take_finished` first: its result is not
        part of the state.
        """
        return {
            "episodes": [stored_episode(episode) for episode in self.episodes],
            "earlier_chunks": [[stored_episode(chunk) for chunk in chunks] for chunks in self._chunks],
            "inputs": [list(seen) for seen in self._seen],
        }

    def set_state(self, state: Mapping[str, Any], without: Collection[int] = ()) -> None:
        """Restores the unfinished episodes from a result of `get_state`, except for the environments with the indices
        in `without`. Calls no callback hooks.
        """
        for index in set(range(len(self.episodes))).difference(without):
            self.episodes[index] = restored_episode(state["episodes"][index])
            self._chunks[index] = [restored_episode(own) for own in state["earlier_chunks"][index]]
            self._seen[index] = list(state["inputs"][index])

    def _keep(self, chunks: list[SingleAgentEpisode], chunk: SingleAgentEpisode) -> None:
        """Adds a copy of `chunk` to `chunks`, the earlier chunks of the same episode.

        The callback ``on_episode_end`` gets these chunks at the end of the episode. Joins short chunks, and drops the
        oldest chunk if the chunks have more than `MOST_EARLIER_STEPS` steps.
        """
        # A copy: the chunk itself is returned to the caller.
        chunk = chunk.slice(slice(None), len_lookback_buffer=0)
        if chunks and len(chunks[-1]) + len(chunk) <= JOINED_STEPS:
            # A filter's statistics may have changed in between: keep the observation that the module acted on.
            chunks[-1].set_observations(new_data=chunk.get_observations(0), at_indices=-1)
            chunks[-1].concat_episode(chunk)
        else:
            if chunks:
                chunks[-1].to_numpy()
            chunks.append(chunk)
        if chunk.t - chunks[0].t_started > MOST_EARLIER_STEPS:
            notice_once(
                f"An episode has more than {MOST_EARLIER_STEPS} steps: prev_episode_chunks of on_episode_end contains "
                f"only the last of them. Sum up in on_episode_step the values that need all steps."
            )
            del chunks[0]
