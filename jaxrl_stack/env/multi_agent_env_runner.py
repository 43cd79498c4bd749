"""The env runner of several agents: environments stepped on the host, with a compiled policy per module."""

from __future__ import annotations

import collections
import functools
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import jax

from jaxrl_stack.acting.host_policy import HostPolicy, Mode
from jaxrl_stack.acting.live_multi_agent_episodes import LiveMultiAgentEpisodes
from jaxrl_stack.acting.module_policies import ModulePolicies
from jaxrl_stack.acting.recording import SampleBlock, SampleReport
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.experience import Part, RecordingId, Versions
from jaxrl_stack.core.layouts import Layouts, at_chunk_starts, layout_of
from jaxrl_stack.core.module_map import ModuleMap
from jaxrl_stack.core.rl_module.functional import PureModule
from jaxrl_stack.env.acting_settings import policy_device, static_settings, traced_settings
from jaxrl_stack.env.agent_mapping import AgentSpaces, HostMapping
from jaxrl_stack.env.agent_preprocessing import agent_preprocessing
from jaxrl_stack.env.host_env_runner import HostEnvRunner
from jaxrl_stack.env.module_connectors import ModuleConnectors
from jaxrl_stack.env.module_pipelines import pure_pipelines, spaces_of_modules
from jaxrl_stack.env.multi_agent_rollout import MultiAgentRollout
from jaxrl_stack.episodes.multi_agent_episode import MultiAgentEpisode
from jaxrl_stack.policy.inputs import checked_observations
from jaxrl_stack.utils import counters

if TYPE_CHECKING:
    from jaxrl_stack.acting.agent_recording import AgentRecordings
    from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModule


class MultiAgentEnvRunner(HostEnvRunner):
    """Steps environments of several agents with their modules, in this process.

    One vector step is at most one call of a compiled policy per module, for all of its agents in all environments, and
    one ``step`` of the environments. A step of an agent is recorded when it is complete: with the agent's next
    observation, or with its end. Until then it is kept, over the end of a block, too.

    As a Ray actor: ``ray.remote(MultiAgentEnvRunner).remote(config=config)``. For failures see `SingleAgentEnvRunner`.

    Args:
        config, worker_index, num_workers, recreated_worker, spaces, module, **kwargs: See `SingleAgentEnvRunner`.

    Attributes:
        module_map: Which module acts for which agent.

    Raises:
        ValueError: An agent has a policy that there is not, or agents of one policy have spaces that differ.
    """

    _policy: ModulePolicies
    _connectors: ModuleConnectors
    _rollout: MultiAgentRollout
    _wants_episodes = False

    # -------------------------------------------------------------------------------------------------- building

    def make_module(self) -> None:
        """Make pipelines and modules for the environments' spaces."""
        self._preprocessing = agent_preprocessing(self.config, AgentSpaces(*self._single_spaces()), self.env)
        self._mapping = HostMapping(self.config, self._agent_spaces(), f"environment({self.config.env!r})")
        connectors = self._make_connectors()
        steps_of = connectors.pipelines
        module = self._built_modules(steps_of.spaces)
        self._module_ids = list(module)
        config, ids = self.config, self._module_ids
        settings, static, device = traced_settings(config, ids), static_settings(config, ids), policy_device(config)
        steps = steps_of.steps(PureModule(module))
        self._policy = ModulePolicies(
            {
                mid: HostPolicy(step, settings=settings, static_settings=static, device=device, seed=0)
                for mid, step in steps.items()
            }
        )
        self._policy.reseed(self._policy_seed())
        self._make_rollout(connectors)

    @property
    def module_map(self) -> ModuleMap:
        """Which module acts for which agent."""
        return self._mapping.module_map

    @property
    def module(self) -> MultiRLModule:
        """The modules with their current weights; one object until other weights come."""
        return self._policy.module

    def acting_parts_of_modules(self) -> dict[str, Any]:
        return {mid: (self._policy.modules, *own) for mid, own in self._connectors.pipelines.items()}

    def _agent_spaces(self) -> AgentSpaces:
        """Spaces of the environments' agents, as pipelines of modules get their observations."""
        return self._preprocessing.spaces

    def _single_spaces(self) -> Any:
        vector = self._envs.vector
        if vector is not None:
            return vector.single_observation_space, vector.single_action_space
        assert self._given_spaces is not None
        return self._given_spaces["__env_single__"]

    def get_spaces(self) -> dict[str, tuple[gym.Space, gym.Space]]:
        single = self._single_spaces()
        return {"__env__": single, "__env_single__": single, **self._connectors.pipelines.spaces}

    def _module_inputs(self, observation_space: gym.Space) -> list[gym.Space]:
        spaces: Any = AgentSpaces(observation_space, self._single_spaces()[1])  # type: ignore[arg-type]
        preprocessing = agent_preprocessing(self.config, spaces, self.env)
        module_map = HostMapping(self.config, preprocessing.spaces, f"environment({self.config.env!r})").module_map
        return [own for own, _ in pure_pipelines(self.config, self.env, module_map, preprocessing).spaces.values()]

    def _make_connectors(self) -> ModuleConnectors:
        pipelines = pure_pipelines(self.config, self.env, self.module_map, self._preprocessing)
        num_envs = max(1, self.num_envs)
        return ModuleConnectors(pipelines, {mid: num_envs * n for mid, n in self.module_map.num_slots.items()})

    def _make_rollout(self, connectors: ModuleConnectors) -> None:
        self._connectors = connectors
        self._counts.agents = tuple(self.module_map.module_of)
        self._counts.modules_vary = bool(self.module_map.slots)
        spaces = spaces_of_modules(self._agent_spaces(), self.module_map)
        self._rollout = MultiAgentRollout(
            envs=self._envs,
            policies=self._policy,
            connectors=connectors,
            spaces=spaces,
            mapping=self._mapping,
            preprocessing=self._preprocessing,
            metrics=self._counts,
            make_live=self._make_live,
        )

    def _make_live(self, wants_episodes: bool) -> Any:
        """Running episodes as objects, where callbacks or preprocessors look at them, or episodes are asked for."""
        if not (wants_episodes or self._watches_episodes) and self._preprocessing.is_empty:
            return None
        call = functools.partial(self.callbacks.call_for_episode, env_runner=self, metrics_logger=self.metrics)
        horizon = self.config.episode_lookback_horizon
        return LiveMultiAgentEpisodes(call, self._mapping.module_of, self.num_envs, horizon)

    # -------------------------------------------------------------------------------------------------- sampling

    def sample_block(
        self,
        *,
        num_steps: int | None = None,
        explore: bool | None = None,
        keeps_all_final_obs: bool = False,
        takes_metrics: bool = True,
        layouts: Layouts | None = None,
        keeps_times: bool = False,
    ) -> SampleBlock:
        """`num_steps` steps of every environment as arrays by module: what training uses, without making episodes.

        Args:
            num_steps, explore, keeps_all_final_obs, takes_metrics, layouts: See `SingleAgentEnvRunner.sample_block`.
            keeps_times: Whether the part has `times`.

        Returns:
            Columns ``[T, R, ...]`` of a module with S agents, ``R = S * B``: rows of its first agent first. Complete
            steps come first in each, ``LOSS_MASK`` is False behind them.

        Raises:
            ValueError: If this runner has no environments, or one of them returned something that is not finite.
            ConsecutiveFailuresError: If environments failed too often in a row.
            Exception: Raised by an environment.
        """
        started = time.perf_counter()
        length = num_steps or self.config.get_rollout_fragment_length(self.worker_index)
        mode = self._mode(explore, False)
        self._wants_episodes = False
        recordings: Any = None
        attempts = self._attempts()
        for attempt in attempts:
            with attempt:
                self._reset_if_needed()
                recordings = self._rollout.record(
                    length,
                    mode,
                    learns=self._learns(mode),
                    weights_seq_no=self.weights_seq_no,
                    wants_episodes=keeps_all_final_obs,
                    keeps_times=keeps_times,
                )
        live = self._rollout.live
        if live is not None:
            samples = [episode for _, episode in live.take_finished()] + live.cut()
            with attempts.dropped_on_error():
                self.callbacks.on_sample_end(env_runner=self, metrics_logger=self.metrics, samples=samples)
            if not self._watches_episodes and self._preprocessing.is_empty:
                # Of a call of sample() before.
                self._rollout.live = None
        part = self._part_of(recordings, layouts, keeps_times=keeps_times)
        self._counts.time_sample(started)
        states = self._connectors.compiled_state()
        # Before the metrics, which numbers of modules may be among.
        ended, agent_steps = self.take_ended_episodes(), self.take_agent_steps()
        report = SampleReport(
            ended,
            self.take_metrics() if takes_metrics else {},
            states if any(jax.tree.leaves(state) for state in states.values()) else None,
            agent_steps,
            self.take_step_times(),
        )
        return SampleBlock(part, report)

    def _part_of(self, recordings: AgentRecordings, layouts: Layouts | None, *, keeps_times: bool) -> Part:
        """What was recorded, as learners get it."""
        modules, laid_out = {}, {}
        for mid, recording in recordings.of_modules.items():
            module = self._policy.module_of(mid)
            own = layouts[mid] if layouts else layout_of(module, recordings.num_steps, is_masked=True)
            modules[mid], laid_out[mid] = at_chunk_starts(recording.columns(), own), own
        steps = recordings.num_module_steps()
        self._counts.agent_steps = collections.Counter(recordings.num_agent_steps())
        self._counts.module_steps.update(steps)
        return Part(
            modules,
            num_agent_steps=sum(steps.values()),
            versions=Versions(self.weights_seq_no, self.weights_seq_no),
            starts=recordings.starts(),
            times=recordings.times() if keeps_times else None,
            num_env_steps=recordings.num_env_steps,
            source=RecordingId(self.worker_index, self._num_restarts, self._rollout.num_recordings - 1),
            layouts=Layouts(laid_out).masked_as(modules),
        )

    def act(
        self, observation: Any, *, module_id: str, explore: bool, key: jax.Array, recurrent: Any = None
    ) -> dict[str, Any]:
        """Both pipelines and a module on one observation of an agent, seen as the first of an episode.

        Args:
            observation: One observation, without batch axis.
            module_id, explore, key, recurrent: See `SingleAgentEnvRunner.act`.

        Raises:
            ValueError: If the observation does not fit the module's agents, or the module is for learners only.
        """
        acting = module_id if module_id in self._connectors else next(iter(self._connectors))
        space = spaces_of_modules(self._agent_spaces(), self.module_map)[acting][0]
        batch = {Columns.OBS: jax.tree.map(lambda x: x[None], checked_observations(space, observation, 0))}
        if recurrent is not None:
            batch[Columns.STATE_IN] = jax.tree.map(lambda x: x[None], recurrent)
        timesteps = counters.from_int(self._counts.timesteps)
        states = {mid: own.value[0] for mid, own in self._connectors.items()}
        return self._policy.act_once(states, batch, key, timesteps, module_id=module_id, explore=explore)

    def _reset_rollout(self) -> None:
        self._rollout.reset(self._mode(None, False), self._wants_episodes)

    @property
    def _sees_every_step(self) -> bool:
        return self._watches_episodes

    def _record(self, num_steps: int, mode: Mode) -> AgentRecordings:
        return self._rollout.record(
            num_steps, mode, learns=self._learns(mode), weights_seq_no=self.weights_seq_no, wants_episodes=True
        )

    def _record_episodes(self, num_steps: int, mode: Mode) -> list[tuple[int, MultiAgentEpisode]]:
        self._record(num_steps, mode)
        return self._rollout.live.take_finished()

    def _record_amount(self, num_steps: int, mode: Mode) -> list[MultiAgentEpisode]:
        if self.config.count_steps_by == "env_steps":
            return super()._record_amount(num_steps, mode)
        # Nobody completes more steps than the environments take.
        missing, most = num_steps * self.num_envs, self.num_envs * len(self.module_map.module_of)
        while missing > 0:
            recordings = self._record(max(1, missing // most), mode)
            missing -= sum(recordings.num_module_steps().values())
        return [episode for _, episode in self._rollout.live.take_finished()]

    def _note_episodes(self, episodes: Sequence[MultiAgentEpisode]) -> None:
        for episode in episodes:
            for agent, own in episode.agent_episodes.items():
                self._counts.agent_steps[agent] += len(own)
                self._counts.module_steps[episode.module_for(agent)] += len(own)

    def _cut_episodes(self) -> list[MultiAgentEpisode]:
        return self._rollout.live.cut()

    def _begin_sample(self) -> None:
        # Episodes are built while environments are stepped: running ones of blocks before begin anew.
        self._envs.needs_reset |= self._rollout.live is None
        self._wants_episodes = True
