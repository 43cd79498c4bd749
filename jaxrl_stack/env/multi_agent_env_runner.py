"""Env runner for multi-agent environments that are stepped in Python, with one compiled policy per module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym

from jaxrl_stack.acting.host_policy import Mode
from jaxrl_stack.acting.live_multi_agent_episodes import LiveMultiAgentEpisodes
from jaxrl_stack.core.module_map import ModuleMap
from jaxrl_stack.env.agent_mapping import AgentSpaces, HostMapping
from jaxrl_stack.env.agent_preprocessing import AgentPreprocessing, agent_preprocessing
from jaxrl_stack.env.host_env_runner import HostEnvRunner
from jaxrl_stack.env.module_pipelines import ModulePipelines, pure_pipelines, spaces_of_modules
from jaxrl_stack.env.multi_agent_rollout import MultiAgentRollout
from jaxrl_stack.episodes.multi_agent_episode import MultiAgentEpisode


class MultiAgentEnvRunner(HostEnvRunner):
    """Steps multi-agent environments in this process, with actions of several modules.

    One vector step is at most one call of a compiled policy per module, for all of its agents in all environments, and
    one ``step`` of the environments. A step of an agent is recorded when it is complete: with the agent's next
    observation, or with its end. Until then it is kept, over the end of a block, too.

    As a Ray actor: ``ray.remote(MultiAgentEnvRunner).remote(config=config)``. For failures see `SingleAgentEnvRunner`.

    Args:
        config, worker_index, num_workers, recreated_worker, spaces, module, **kwargs: See `SingleAgentEnvRunner`.

    Attributes:
        module_map: Map of agents to modules.

    Raises:
        ValueError: If the policy of an agent is unknown, or agents of one policy have different spaces.
    """

    def make_module(self) -> None:
        self._preprocessing, self._mapping = self._agents_of(AgentSpaces(*self._single_spaces()))
        self._counts.agents = tuple(self.module_map.module_of)
        self._counts.modules_vary = bool(self.module_map.slots)
        super().make_module()

    def _agents_of(self, spaces: AgentSpaces) -> tuple[AgentPreprocessing, HostMapping]:
        """Builds the preprocessing of observations and the mapping of agents to modules, for agents with the given
        `spaces`.

        The `AgentPreprocessing` applies the config's preprocessors to the observations of all agents jointly. The
        `HostMapping` maps agents to modules.
        """
        preprocessing = agent_preprocessing(self.config, spaces, self.env)
        return preprocessing, HostMapping(self.config, preprocessing.spaces, f"environment({self.config.env!r})")

    @property
    def module_map(self) -> ModuleMap:
        """Map from agents to modules."""
        return self._mapping.module_map

    def _make_pipelines(self) -> ModulePipelines:
        return pure_pipelines(self.config, self.env, self.module_map, self._preprocessing)

    def _module_inputs(self, observation_space: gym.Space) -> list[gym.Space]:
        spaces: Any = AgentSpaces(observation_space, self._single_spaces()[1])  # type: ignore[arg-type]
        preprocessing, mapping = self._agents_of(spaces)
        pipelines = pure_pipelines(self.config, self.env, mapping.module_map, preprocessing)
        return [own for own, _ in pipelines.spaces.values()]

    def _input_spaces(self) -> dict[str, tuple[gym.Space, gym.Space]]:
        return spaces_of_modules(self._preprocessing.spaces, self.module_map)

    def _new_rollout(self) -> MultiAgentRollout:
        return MultiAgentRollout(
            envs=self._envs,
            policies=self._policies,
            connectors=self._connectors,
            spaces=self._input_spaces(),
            mapping=self._mapping,
            preprocessing=self._preprocessing,
            metrics=self._counts,
            make_live=self._make_live,
            needs_live=self._sees_every_step or not self._preprocessing.is_empty,
        )

    def _make_live(self) -> LiveMultiAgentEpisodes:
        horizon = self.config.episode_lookback_horizon
        return LiveMultiAgentEpisodes(self._call_for_episode, self._mapping.module_of, self.num_envs, horizon)

    def _record_amount(self, num_steps: int, mode: Mode) -> list[MultiAgentEpisode]:
        if self.config.count_steps_by == "env_steps":
            return super()._record_amount(num_steps, mode)
        # Nobody completes more steps than the environments take.
        missing, most = num_steps * self.num_envs, self.num_envs * len(self.module_map.module_of)
        episodes: list[MultiAgentEpisode] = []
        while missing > 0:
            recording = self._record_for_episodes(max(1, missing // most), mode)
            missing -= sum(recording.num_module_steps().values())
            episodes += [episode for _, episode in self._rollout.take_ended(recording, self.weights_seq_no)]
        return episodes

    def _note_episodes(self, episodes: Sequence[MultiAgentEpisode]) -> None:
        for episode in episodes:
            for agent, own in episode.agent_episodes.items():
                self._counts.agent_steps[agent] += len(own)
                self._counts.module_steps[episode.module_for(agent)] += len(own)
