"""Env runner for gymnasium environments with one agent, which are stepped in Python with a compiled policy."""

from __future__ import annotations

import functools

import gymnasium as gym

from jaxrl_stack.acting.episode_builder import EpisodeBuilder
from jaxrl_stack.acting.live_episodes import LiveEpisodes
from jaxrl_stack.core.module_map import ModuleMap
from jaxrl_stack.env.host_env_runner import HostEnvRunner
from jaxrl_stack.env.host_rollout import HostRollout
from jaxrl_stack.env.module_pipelines import ModulePipelines, Pipelines


class SingleAgentEnvRunner(HostEnvRunner):
    """Steps a vector of gymnasium environments in this process, with actions of one module.

    One vector step is one call of a compiled policy and one ``step`` of the environments; what happens is written
    into preallocated ``[T, B]`` arrays. Episodes are made from them only where they are asked for (`sample`), unless a
    callback or a host connector wants to see every step.

    As a Ray actor: ``ray.remote(SingleAgentEnvRunner).remote(config=config)``.

    If an environment raises, or returns an observation or a reward that is not finite, the current recording is
    dropped: connector statistics, counters and metrics are as before, and the next call resets all environments. The
    exception is raised. With ``restart_failed_sub_environments`` it is logged, the failed environment is replaced, with
    a fresh seed, and only its unfinished episode is left out: LOSS_MASK is False there, while connector statistics
    contain it. If the others cannot continue (environments that step themselves, or numbers that are not finite, which
    connectors have seen), the whole recording is dropped, and sampling starts over. A failure in the first reset or the
    first step of its environments is always raised: it is a mistake of the set-up.

    Args:
        config: The algorithm's config; the runner's `config` is a copy.
        worker_index: 0 for the runner in the algorithm's process, from 1 for actors; None for a runner outside of a
            group: it counts as 0 and always has environments. Environments of different runners have different seeds.
        num_workers: Number of runner actors; None for ``config.num_sampling_actors``.
        recreated_worker: Whether this runner takes the place of one that failed.
        spaces: Result of `get_spaces` of another runner: for a runner without environments.
        module: A built MultiRLModule to act with, instead of a new one.
        **kwargs: RLlib's other arguments (``tune_trial_id``, ``log_level``), which nothing depends on.

    Attributes:
        env: The `gymnasium.vector.VectorEnv`; None for a runner without environments.
        num_envs: Number of environments, ``B``.
        metrics: A `MetricsLogger`; callbacks get it, `get_metrics` reduces it.
    """

    @functools.cached_property
    def module_map(self) -> ModuleMap:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Map from the single agent to its module."""
        return self.config.module_map

    @functools.cached_property
    def module_id(self) -> str:
        """Id of the module that acts."""
        return self.module_map.module_id

    def _make_pipelines(self) -> ModulePipelines:
        """Creates the module's connector pipelines, which may contain host connectors (they run in Python, outside
        jit).
        """
        made = {"env": self.env, "spaces": {"__env_single__": self._single_spaces()}}
        config = self.config
        own = Pipelines(config.build_env_to_module_connector(**made), config.build_module_to_env_connector(**made))
        return ModulePipelines(self.module_map, {self.module_id: own})

    def _module_inputs(self, observation_space: gym.Space) -> list[gym.Space]:
        spaces = {"__env_single__": (observation_space, self._single_spaces()[1])}
        return [self.config.build_env_to_module_connector(env=self.env, spaces=spaces).observation_space]

    def _new_rollout(self) -> HostRollout:
        mid, horizon = self.module_id, self.config.episode_lookback_horizon
        return HostRollout(
            module_id=mid,
            envs=self._envs,
            policy=self._policies[mid],
            connectors=self._connectors[mid],
            metrics=self._counts,
            host_connectors=self._host_connectors.get(mid),
            builder=EpisodeBuilder(*self._connectors.pipelines.spaces[mid], horizon),
            make_live=self._make_live if self._sees_every_step else None,
        )

    def _make_live(self) -> LiveEpisodes:
        keeps_chunks = self.callbacks.overrides("on_episode_end")
        horizon = self.config.episode_lookback_horizon
        return LiveEpisodes(self._call_for_episode, self.num_envs, horizon, keeps_chunks=keeps_chunks)

    def _input_spaces(self) -> dict[str, tuple[gym.Space, gym.Space]]:
        return {self.module_id: self._single_spaces()}

    def _single_spaces(self) -> tuple[gym.Space, gym.Space]:
        observations, actions = super()._single_spaces()
        if self._envs.vector is None:
            return observations, actions
        given = None if self._envs.observes_floats else self.config.observation_space
        return observations if given is None else given, self.config.action_space or actions

    def get_spaces(self) -> dict[str, tuple[gym.Space, gym.Space]]:
        spaces, vector = super().get_spaces(), self._envs.vector
        return spaces if vector is None else {**spaces, "__env__": (vector.observation_space, vector.action_space)}
