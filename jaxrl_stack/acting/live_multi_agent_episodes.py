"""Unfinished multi-agent episodes of a host EnvRunner as objects.

The objects are for `sample` calls that return episodes, and for callbacks and host connectors (plain Python, outside
jit). Callbacks and host connectors read the episodes in every step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jaxrl_stack.acting.episode_builder import WEIGHTS_SEQ_NO
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.episodes.multi_agent_episode import MultiAgentEpisode
from jaxrl_stack.utils.nested import owned, row

_NOT_OUTPUTS = (Columns.OBS, Columns.ACTIONS, Columns.ACTIONS_FOR_ENV, Columns.RESETS)


class LiveMultiAgentEpisodes:
    """Unfinished multi-agent episodes as objects, one per environment, extended step by step; see `LiveEpisodes` for
    single agents.

    Observations are the environment's until a module acts on them; then the module's inputs replace them.

    Args:
        call: ``(hook name, env index, episode, **more)``; called for ``on_episode_created``, ``on_episode_start``,
            ``on_episode_step`` and ``on_episode_end``.
        module_of: ``(agent id, episode) -> module id``.
        num_envs: ``B``.
        len_lookback_buffer: Number of environment steps of the previous chunk that a chunk keeps.

    Attributes:
        episodes: The episode of each environment, ``B``.
    """

    def __init__(
        self,
        call: Callable[..., None],
        module_of: Callable[[Any, MultiAgentEpisode], str],
        num_envs: int,
        len_lookback_buffer: int,
    ):
        self._call, self._module_of, self._len_lookback_buffer = call, module_of, len_lookback_buffer
        self.episodes = [MultiAgentEpisode() for _ in range(num_envs)]
        self._chunks: list[list[MultiAgentEpisode]] = [[] for _ in range(num_envs)]
        self._actions: list[dict[Any, Any]] = [{} for _ in range(num_envs)]
        self._outputs: list[dict[Any, Any]] = [{} for _ in range(num_envs)]
        self._finished: list[tuple[int, MultiAgentEpisode]] = []

    def create(self, index: int) -> MultiAgentEpisode:
        """Creates a new episode object for one environment, without observations."""
        episode = self.episodes[index] = MultiAgentEpisode(agent_to_module_mapping_fn=self._module_of)
        self._chunks[index] = []
        self._call("on_episode_created", index, episode)
        return episode

    def start(self, index: int, observations: Mapping[Any, Any], infos: Mapping[Any, Any]) -> None:
        """Adds the first observations, after the environment's reset, to the episode that `create` has made."""
        episode = self.episodes[index]
        episode.add_env_reset(observations=owned(dict(observations)), infos=owned(dict(infos)))
        self._call("on_episode_start", index, episode)

    def saw(self, index: int, agent: Any, columns: Mapping[str, Any], at: int, weights_seq_no: int) -> None:
        """Stores an agent's action and module outputs until `append` adds the env step to the episode.

        If `columns` contain the module's inputs, replaces the agent's last observation in the episode by the module's
        input.

        Args:
            index: Index of the environment.
            agent: Id of the agent.
            columns: The policy's results, ``{column: [R, ...]}``; they contain its inputs if a pipeline made them.
            at: The agent's row.
            weights_seq_no: Number of updates of the acting weights.
        """
        if Columns.OBS in columns:
            self.see(index, agent, columns[Columns.OBS], at)
        self._actions[index][agent] = row(columns[Columns.ACTIONS], at)
        outputs = {name: row(own, at) for name, own in columns.items() if name not in _NOT_OUTPUTS}
        self._outputs[index][agent] = {**outputs, WEIGHTS_SEQ_NO: weights_seq_no}

    def see(self, index: int, agent: Any, inputs: Any, at: int) -> None:
        """Replaces the last observation in an agent's unfinished episode by the module's input for this observation.

        The input, which was computed from the observation, is row `at` of the arrays ``[rows, ...]`` in `inputs`.
        """
        episode = self.episodes[index].agent_episodes.get(agent)
        if episode is not None:
            episode.set_observations(new_data=row(inputs, at), at_indices=-1)

    def append(self, index: int, observations: Mapping[Any, Any], step: Any) -> None:
        """Appends one step of an environment to the environment's episode object, with the observations after the step
        and before any reset.

        Args:
            index: Index of the environment.
            observations: Observations by agent; agents that are truncated without an observation have their last one.
            step: The `MultiAgentVectorStep`.
        """
        actions, outputs = self._actions[index], self._outputs[index]
        self._actions[index], self._outputs[index] = {}, {}
        self.episodes[index].add_env_step(
            owned(dict(observations)),
            actions,
            {**dict.fromkeys(observations, 0.0), **step.rewards[index]},
            owned(dict(step.infos[index])),
            terminateds=step.terminateds[index],
            truncateds=step.truncateds[index],
            extra_model_outputs=outputs,
        )

    def report(self, index: int, *, has_ended: bool) -> None:
        """Calls the callback ``on_episode_step`` for the step that `append` has added and, if the episode has ended,
        the callback ``on_episode_end``.
        """
        episode = self.episodes[index]
        self._call("on_episode_step", index, episode)
        if has_ended:
            self._call("on_episode_end", index, episode, prev_episode_chunks=self._chunks[index])
            self._finished.append((index, episode))

    def forget(self, index: int) -> None:
        """Discards the actions and module outputs stored for an environment that failed before its step could be
        appended.
        """
        self._actions[index], self._outputs[index] = {}, {}

    def take_finished(self) -> list[tuple[int, MultiAgentEpisode]]:
        """Returns the episodes that ended since the last call, as pairs ``(environment index, episode)``."""
        finished, self._finished = self._finished, []
        return finished

    def cut(self) -> list[MultiAgentEpisode]:
        """Cuts the unfinished episodes: returns their steps so far as chunks. Each episode continues in a new chunk."""
        chunks = []
        for index, episode in enumerate(self.episodes):
            if len(episode):
                self.episodes[index] = episode.cut(len_lookback_buffer=self._len_lookback_buffer)
                self._chunks[index].append(episode)
                chunks.append(episode)
        return chunks
