"""The env runner of the actor driver: gymnasium environments, stepped on the host, with a compiled policy."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import jax

from jaxrl_stack.acting.episode_builder import EpisodeBuilder
from jaxrl_stack.acting.host_policy import HostPolicy, Mode
from jaxrl_stack.acting.live_episodes import LiveEpisodes
from jaxrl_stack.acting.module_step import ModuleStep
from jaxrl_stack.acting.recording import Recording, SampleBlock, SampleReport
from jaxrl_stack.core import frames
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.experience import Part, RecordingId, Versions
from jaxrl_stack.core.layouts import Layouts, at_chunk_starts, layout_of
from jaxrl_stack.core.rl_module.functional import PureModule
from jaxrl_stack.core.rl_module.rl_module import RLModule
from jaxrl_stack.env.acting_settings import policy_device, static_settings, traced_settings
from jaxrl_stack.env.connector_states import ConnectorStates
from jaxrl_stack.env.host_connectors import HostConnectors
from jaxrl_stack.env.host_env_runner import HostEnvRunner
from jaxrl_stack.env.host_rollout import HostRollout, ResetInfos
from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode
from jaxrl_stack.policy.inputs import checked_observations
from jaxrl_stack.utils import counters


class SingleAgentEnvRunner(HostEnvRunner):
    """Steps a vector of gymnasium environments with the module, in this process.

    One vector step is one call of a compiled policy and one ``step`` of the environments; what happens is written
    into preallocated ``[T, B]`` arrays. Episodes are made from them only where they are asked for (`sample`), unless a
    callback or a host connector wants to see every step.

    As a Ray actor: ``ray.remote(SingleAgentEnvRunner).remote(config=config)``.

    When an environment raises, or returns an observation or a reward that is not finite, what was being recorded is
    dropped: statistics of connectors, counters and metrics are as before, and all environments are reset next
    time. The exception is raised. With ``restart_failed_sub_environments`` it is logged, the failed environment is made
    anew, with a fresh seed, and only its running episode is left out: LOSS_MASK is False there, while statistics of
    connectors have seen it. Where the others cannot go on (environments that step themselves, numbers that are not
    finite, which connectors have seen), what was being recorded is dropped, and sampling starts over. A failure in the
    first reset or the first step of its environments is raised in any case: it is a mistake.

    Args:
        config: The algorithm's config; the runner's `config` is a copy.
        worker_index: 0 for the runner in the algorithm's process, from 1 for actors; None for a runner of one's own,
            which counts as 0 and always has environments. Environments of different runners have different seeds.
        num_workers: Number of runner actors; None for ``config.num_sampling_actors``.
        recreated_worker: Whether this runner takes the place of one that failed.
        spaces: Result of `get_spaces` of another runner: for a runner without environments.
        module: A built MultiRLModule to act with, instead of a new one.
        **kwargs: RLlib's other arguments (``tune_trial_id``, ``log_level``), which nothing depends on.

    Attributes:
        env: The `gymnasium.vector.VectorEnv`; None for a runner without environments.
        num_envs: Its environments, ``B``.
        metrics: A `MetricsLogger`; callbacks get it, `get_metrics` reduces it.
    """

    _rollout: HostRollout
    _connectors: ConnectorStates
    _keeps_all_of_steps = False
    """Whether final observations and infos of all episodes are kept, for `_note_block`."""

    def acting_parts_of_modules(self) -> dict[str, Any]:
        return {self.module_id: self.acting_parts()}

    @functools.cached_property
    def module_id(self) -> str:
        """The module that acts: the one of the only agent."""
        return self.config.module_map.module_id

    # ----------------------------------------------------------------------------------------------------- building

    def make_module(self) -> None:
        """Make pipelines and module for the environments' spaces."""
        connectors = self._make_connectors()
        env_to_module, module_to_env = connectors.pure
        self._module_spaces = (env_to_module.observation_space, env_to_module.action_space)
        module = self._built_modules({self.module_id: self._module_spaces})
        self._module_ids = list(module)
        self._policy = HostPolicy(
            ModuleStep(
                module_id=self.module_id,
                pure=PureModule(module),
                env_to_module=env_to_module,
                module_to_env=module_to_env,
            ),
            settings=traced_settings(self.config, self._module_ids),
            static_settings=static_settings(self.config, self._module_ids),
            device=policy_device(self.config),
            seed=self._policy_seed(),
        )
        self._builder = EpisodeBuilder(*self._module_spaces, self.config.episode_lookback_horizon)
        self._make_rollout(connectors)

    def _make_connectors(self) -> ConnectorStates:
        """New connectors of both pipelines, in their initial states."""
        env: Any = self.env
        spaces = {"__env_single__": self._single_spaces()}
        pipeline = self.config.build_env_to_module_connector(env=env, spaces=spaces)
        module_to_env = self.config.build_module_to_env_connector(env=env, spaces=spaces)
        return ConnectorStates(pipeline, module_to_env, max(1, self.num_envs))

    def _module_inputs(self, observation_space: gym.Space) -> list[gym.Space]:
        spaces = {"__env_single__": (observation_space, self._single_spaces()[1])}
        return [self.config.build_env_to_module_connector(env=self.env, spaces=spaces).observation_space]

    def _make_rollout(self, connectors: ConnectorStates) -> None:
        """Sample with these connectors from here on."""
        self._connectors = connectors
        self._host_connectors = None
        if connectors.has_host_connectors:
            self._host_connectors = HostConnectors(connectors.env_to_module, lambda: self.module, self.metrics)
        self._rollout = HostRollout(
            self._envs, self._policy, connectors, self._counts, self._host_connectors, self._make_live
        )

    def _make_live(self) -> LiveEpisodes | None:
        """Running episodes as objects, where callbacks or host connectors look at every step."""
        if not (self._watches_episodes or self._host_connectors):
            return None
        keeps_chunks = self.callbacks.overrides("on_episode_end")
        horizon = self.config.episode_lookback_horizon
        call = functools.partial(self.callbacks.call_for_episode, env_runner=self, metrics_logger=self.metrics)
        return LiveEpisodes(call, self.num_envs, horizon, keeps_chunks=keeps_chunks)

    def _single_spaces(self) -> tuple[gym.Space, gym.Space]:
        vector = self._envs.vector
        if vector is not None:
            given = self.config.observation_space
            if given is None or self._envs.observes_floats:
                given = vector.single_observation_space
            return given, self.config.action_space or vector.single_action_space
        assert self._given_spaces is not None
        return self._given_spaces["__env_single__"]

    def get_spaces(self) -> dict[str, tuple[gym.Space, gym.Space]]:
        single = self._single_spaces()
        vector = self._envs.vector
        batched = single if vector is None else (vector.observation_space, vector.action_space)
        return {"__env__": batched, "__env_single__": single, self.module_id: self._module_spaces}

    @property
    def module(self) -> RLModule:
        """The acting module with its current weights; one object until other weights come."""
        return self._policy.module

    # ----------------------------------------------------------------------------------------------------- sampling

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
        """`num_steps` steps of every environment as arrays: what training uses, without making episodes.

        Args:
            num_steps: None for ``rollout_fragment_length``.
            explore: Sample actions or take the greedy ones; None for ``config.explore``.
            keeps_all_final_obs: Whether FINAL_OBS holds the observations after steps that terminated an episode, too.
            takes_metrics: Whether the block has the metrics. Short blocks take less time without; `take_metrics` has
                the metrics of several then.
            layouts: How the columns are to lie, by module; None for whole observations, in the chunks that losses see.
            keeps_times: Ignored: one agent acts in every step, and `Part.times` stays None.

        Raises:
            ValueError: If this runner has no environments, or one of them returned something that is not finite.
            ConsecutiveFailuresError: If environments failed too often in a row.
            Exception: Raised by an environment; see the class.
        """
        started = time.perf_counter()
        length = num_steps or self.config.get_rollout_fragment_length(self.worker_index)
        mode = self._mode(explore, False)
        recorded: Any = None
        attempts = self._attempts()
        for attempt in attempts:
            with attempt:
                self._reset_if_needed()
                recorded = self._rollout.record(
                    length,
                    mode,
                    learns=self._learns(mode),
                    weights_seq_no=self.weights_seq_no,
                    wants_episodes=keeps_all_final_obs or self._keeps_all_of_steps,
                )
        recording, *_ = recorded
        self._note_block(*recorded)
        live = self._rollout.live
        if live is None:
            # A call of sample() in between starts with episodes of its own.
            self._builder.reset()
        else:
            samples = [episode for _, episode in live.take_finished()] + live.cut()
            with attempts.dropped_on_error():
                self.callbacks.on_sample_end(env_runner=self, metrics_logger=self.metrics, samples=samples)
        ended = self.take_ended_episodes()
        self._counts.time_sample(started)
        states = self._connectors.compiled_state()
        report = SampleReport(
            ended,
            self.take_metrics() if takes_metrics else {},
            states if any(jax.tree.leaves(state) for state in states.values()) else None,
            step_times=self.take_step_times(),
        )
        return SampleBlock(self._part_of(recording, layouts), report)

    def _part_of(self, recording: Recording, layouts: Layouts | None) -> Part:
        """What was recorded, as learners get it."""
        columns = recording.columns()
        layout = layouts[self.module_id] if layouts else layout_of(self.module, recording.num_steps)
        columns = at_chunk_starts(columns, layout)
        if layout.num_frames > 1:
            columns = frames.as_frames(columns, recording.resets[: recording.num_steps], layout.num_frames)
        return Part(
            {self.module_id: columns},
            num_agent_steps=recording.num_env_steps,
            versions=Versions(self.weights_seq_no, self.weights_seq_no),
            starts={self.module_id: recording.resets[0]},
            num_env_steps=recording.num_env_steps,
            source=RecordingId(self.worker_index, self._num_restarts, self._rollout.num_recordings - 1),
            layouts=Layouts({self.module_id: layout}).masked_as({self.module_id: columns}),
        )

    def act(
        self, observation: Any, *, module_id: str, explore: bool, key: jax.Array, recurrent: Any = None
    ) -> dict[str, Any]:
        """Both pipelines and a module on one observation, seen as the first of an episode.

        Args:
            observation: One observation of the environment, without batch axis.
            module_id: The module that acts.
            explore: Sample the action or take the greedy one.
            key: PRNG key.
            recurrent: State of the module, without batch axis; None for the start of an episode.

        Returns:
            The columns that the module-to-env pipeline made, as NumPy arrays without batch axis.

        Raises:
            ValueError: If the observation does not fit the observation space, or the module is for learners only.
        """
        observation = checked_observations(self._single_spaces()[0], observation, 0)
        batch = {Columns.OBS: jax.tree.map(lambda x: x[None], observation)}
        if self._host_connectors is not None:
            episode = SingleAgentEpisode()
            episode.add_env_reset(observation)
            mode = "explore" if explore else "greedy"
            batch = self._host_connectors.run([episode], mode, self._policy.module_of(module_id))
        if recurrent is not None:
            batch = {**batch, Columns.STATE_IN: jax.tree.map(lambda x: x[None], recurrent)}
        timesteps = counters.from_int(self._counts.timesteps)
        return self._policy.act_once(
            self._connectors.value[0], batch, key, timesteps, module_id=module_id, explore=explore
        )

    def _record_episodes(self, num_steps: int, mode: Mode) -> list[tuple[int, SingleAgentEpisode]]:
        """Record, and return ``(environment, episode)`` of what ended."""
        recording, infos, reset_infos = self._rollout.record(
            num_steps, mode, learns=self._learns(mode), weights_seq_no=self.weights_seq_no, wants_episodes=True
        )
        if recording.num_failures and not recording.num_env_steps:
            self._builder.reset()
            return []
        if self._rollout.live is not None:
            return self._rollout.live.take_finished()
        return self._builder.add(
            recording.columns(), infos=infos, reset_infos=reset_infos, weights_seq_no=self.weights_seq_no
        )

    def _note_block(self, recording: Recording, infos: Sequence[Sequence[dict]], reset_infos: ResetInfos) -> None:
        """Take note of what `sample_block` has recorded.

        Args:
            recording: The steps.
            infos, reset_infos: As `EpisodeBuilder.add` takes them, where `_keeps_all_of_steps`.
        """

    def _cut_episodes(self) -> list[SingleAgentEpisode]:
        return (self._rollout.live or self._builder).cut()

    def _forget_episodes(self) -> None:
        self._builder.reset()

    def _reset_rollout(self) -> None:
        self._rollout.reset(self._mode(None, False))

    @property
    def _sees_every_step(self) -> bool:
        return self._watches_episodes or self._host_connectors is not None
