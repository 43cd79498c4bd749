"""Sampling loop of an env runner that steps environments in Python: policy and environments act in turn, and steps are
written into preallocated arrays.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl_stack.acting.episode_builder import EpisodeBuilder
from jaxrl_stack.acting.host_policy import HostPolicy, Mode, PackedColumns
from jaxrl_stack.acting.live_episodes import LiveEpisodes
from jaxrl_stack.acting.recording import Recording
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.env.connector_states import ConnectorStates
from jaxrl_stack.env.fault_tolerant_envs import FaultTolerantEnvs
from jaxrl_stack.env.host_connectors import HostConnectors
from jaxrl_stack.env.observation_watch import ObservationWatch, OutOfRange
from jaxrl_stack.env.replayable_episodes import RestoredEpisodes
from jaxrl_stack.env.sampling_metrics import EndedEpisode, SamplingMetrics
from jaxrl_stack.env.vector.interface import VectorStep
from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode
from jaxrl_stack.ops.masks import expand
from jaxrl_stack.utils.nested import owned
from jaxrl_stack.utils.spaces import zeros

_STORED = ("reset", "prev_actions", "prev_rewards", "returns", "lengths", "recurrent")
"""Names of the arrays ``[B, ...]`` that unfinished episodes need between two recordings, apart from observations."""


@dataclasses.dataclass(eq=False)
class HostRollout:
    """Sampling loop (`Rollout`) for a single agent in ``B`` environments, with arrays ``[B, ...]``.

    Attributes:
        module_id: The module that acts.
        envs: The environments.
        policy: Computes the actions.
        connectors: States of the policy's pipelines.
        metrics: Counts steps, ended episodes and durations.
        host_connectors: Connectors that run in Python; None if there are none.
        builder: Builds episodes from recordings; used if `live` is None.
        make_live: ``() -> LiveEpisodes``, if something looks at every step of unfinished episodes; else None.
        live: Unfinished episodes, from the first `reset` on; None if they are not needed.
        num_recordings: Number of recordings of `record`.
    """

    module_id: str
    envs: FaultTolerantEnvs
    policy: HostPolicy
    connectors: ConnectorStates
    metrics: SamplingMetrics
    host_connectors: HostConnectors | None
    builder: EpisodeBuilder
    make_live: Callable[[], LiveEpisodes] | None
    live: LiveEpisodes | None = dataclasses.field(default=None, init=False)
    num_recordings: int = dataclasses.field(default=0, init=False)

    @property
    def has_episodes(self) -> bool:
        """Always True: `EnvRunner.sample` can build episode objects from recorded steps, so it need not reset the
        environments first.
        """
        return True

    def reset(self, mode: Mode, *, wants_episodes: bool) -> None:
        """Starts new episodes in all environments.

        Args:
            mode: Mode of choosing actions.
            wants_episodes: Ignored: recordings have everything that episodes consist of.
        """
        obs, infos = self.envs.reset()
        num_envs = self.envs.num_envs
        self._start(obs, infos)
        self.connectors.reset(num_envs)
        self._recurrent = self.policy.initial_recurrent(num_envs)
        if self.make_live is None:
            return
        self.live = self.make_live()
        self._start_live(range(num_envs), infos)
        if self.host_connectors is not None:
            self.host_connectors.update(self.live.episodes, mode)

    def _start(self, obs: Any, infos: Sequence[dict[str, Any]]) -> None:
        """Starts new episodes from the first observations ``[B, ...]``: clears returns, lengths, previous actions and
        previous rewards. Connector states and recurrent states do not change.
        """
        num_envs = self.envs.num_envs
        self._obs, self._watch = obs, self.envs.new_watch()
        self._reset_infos = {index: owned(info) for index, info in enumerate(infos) if info}
        self._reset = np.ones(num_envs, bool)
        self._valid = np.ones(num_envs, bool) if self.envs.vector.resets_in_next_step else None
        self._prev_actions = zeros(self.connectors.env_to_module.action_space, (num_envs,))
        self._no_actions = self._prev_actions
        self._prev_rewards = np.zeros(num_envs, np.float32)
        self._returns = np.zeros(num_envs, np.float64)
        self._lengths = np.zeros(num_envs, np.int64)
        self._started_at = np.full(num_envs, time.perf_counter())

    def _start_live(self, where: Iterable[int], infos: Sequence[dict[str, Any]]) -> None:
        """Creates an episode object for the new episode of each environment in `where` (indices). Callbacks and Python
        connectors read these objects.
        """
        assert self.live is not None
        for index in where:
            self.live.start(index, jax.tree.map(lambda x, i=index: np.array(x[i]), self._obs), infos[index])

    def record(
        self,
        num_steps: int,
        mode: Mode,
        *,
        learns: bool,
        weights_seq_no: int,
        wants_episodes: bool = False,
        keeps_times: bool = False,
    ) -> Recording:
        """Steps all environments `num_steps` times and returns the recorded steps, arrays by column.

        Args:
            num_steps, mode, learns, weights_seq_no: See `Rollout.record`.
            wants_episodes: Whether to record the final observations and infos of all episodes, not only the final
                observations that an update needs.
            keeps_times: Ignored: the agent acts in every step.
        """
        envs, policy, live, host = self.envs, self.policy, self.live, self.host_connectors
        watch = self._begin_watch()
        timesteps, steps_per_own_step = self.metrics.timesteps, self.metrics.steps_per_own_step
        returns, lengths = self._returns, self._lengths  # changed in place
        memory = (*self.connectors.value, self._recurrent)
        recording: Any = None
        layout: Any = None
        reset_infos = {(0, index): info for index, info in self._reset_infos.items()}
        acting = 0.0
        replayable = envs.replayable
        for t in range(num_steps):
            began = time.perf_counter()
            batch = {Columns.OBS: self._obs} if host is None else host.batch
            prev, valid = (self._prev_actions, self._prev_rewards), self._valid
            matrix, loose, memory = policy.act(
                mode, memory, batch, self._reset, *prev, timesteps, valid, update_statistics=learns
            )
            if recording is None:
                layout = policy.packed_columns(mode)
                recording = self._new_recording(num_steps, layout, batch)
            loose = [np.asarray(x) for x in loose] if loose else ()
            # Now: the environments may write their next observations into the same buffers.
            recording.add_obs(batch[Columns.OBS])
            if watch is not None:
                watch.add(t, self._obs)
            acting += time.perf_counter() - began
            actions, for_env = layout.read_actions(matrix, loose)
            inputs, is_last = None, t == num_steps - 1
            if replayable is not None:
                replayable.add(for_env)
            if live is None:
                with envs.stepping:
                    step = envs.vector.step(for_env, envs.recover, False)
            else:
                columns = {name: layout.read(name, matrix, loose) for name in layout.columns}
                live.saw(columns.get(Columns.OBS, batch[Columns.OBS]), host is not None and host.makes_obs)
                step, inputs = self._step_live(
                    for_env, columns, memory[0], timesteps, mode, weights_seq_no, is_last=is_last
                )
            recording.add(matrix, loose, step)
            returns += step.rewards
            lengths += 1 if step.valid is None else step.valid
            ended = step.terminateds | step.truncateds
            self._prev_actions, self._prev_rewards = actions, recording.rewards[t]
            if is_last or ended.any() or step.valid is not None:
                self._after_step(recording, step, inputs, memory[0], timesteps, ended, is_last, wants_episodes)
            if wants_episodes:
                recording.infos.append(owned(step.infos))
                reset_infos |= _infos_of_resets(step, t + 1)
            self._obs, self._reset = step.obs, step.resets
            if valid is not None:
                self._valid = ~ended
            timesteps += steps_per_own_step * (envs.num_envs if step.valid is None else int(step.valid.sum()))
        envs.accept(recording, self._out_of_range(recording, saw_steps=watch is not None))
        self.num_recordings += 1
        *connectors, self._recurrent = memory
        self.connectors.value = tuple(connectors)
        recording.reset_infos = reset_infos
        self._reset_infos = {index: info for (t, index), info in reset_infos.items() if t == num_steps}
        self.metrics.add_recording(recording.num_env_steps, acting / num_steps, envs.take_step_times(), lengths.sum())
        return recording

    def take_ended(self, recording: Recording, weights_seq_no: int) -> list[tuple[int, SingleAgentEpisode]]:
        """Returns the episodes that ended in `recording`, as pairs ``(environment index, episode)``. `recording`
        contains the sampled steps that ``record(..., wants_episodes=True)`` returned.
        """
        if recording.num_failures and not recording.num_env_steps:
            self.builder.reset()
            return []
        if self.live is not None:
            return self.live.take_finished()
        return self.builder.add(
            recording.columns()[self.module_id],
            infos=recording.infos,
            reset_infos=recording.reset_infos,
            weights_seq_no=weights_seq_no,
        )

    def cut(self) -> list[SingleAgentEpisode]:
        """Returns the steps so far of each unfinished episode as a chunk; later steps go into a new chunk."""
        return (self.live or self.builder).cut()

    def get_state(self) -> dict[str, Any]:
        """Returns the unfinished episodes as plain data, which `set_state` loads. Call this method only after `reset`
        or `set_state`, because these methods begin or continue the episodes.

        States of connectors and environments are not included.
        """
        host = self.host_connectors
        seen = {"live": None if self.live is None else self.live.get_state(), "builder": self.builder.get_state()}
        if host is not None:
            seen |= {"host_batch": jax.tree.map(np.array, host.batch), "makes_obs": host.makes_obs}
        return {
            "obs": jax.tree.map(np.array, self._obs),
            **{name: jax.tree.map(np.array, getattr(self, f"_{name}")) for name in _STORED},
            "num_recordings": self.num_recordings,
            **seen,
        }

    def fits(self, state: Mapping[str, Any]) -> bool:
        """Whether this sampling loop can continue from `state`, a saved `get_state()` result.

        False if callbacks or Python connectors read episode objects and `state` has none, or if `state` lacks the
        outputs of the loop's Python connectors.
        """
        has_live = self.make_live is None or state["live"] is not None
        return has_live and (self.host_connectors is None or "host_batch" in state)

    def set_state(self, state: Mapping[str, Any], restored: RestoredEpisodes, mode: Mode) -> None:
        """Continues the episodes of a saved `get_state()` result. Before the call, the environments must have been
        brought to the last saved observations by replaying seeds and actions.

        Args:
            state: Result of `get_state`, which `fits`.
            restored: Names the environments that started new episodes instead.
            mode: Mode of choosing actions.
        """
        self._start(self.envs.vector.obs, restored.infos)
        new = np.zeros(self.envs.num_envs, bool)
        new[list(restored.problems)] = True
        for name in _STORED:
            setattr(self, f"_{name}", jax.tree.map(np.array, state[name]))
        self._reset |= new
        self._reset_infos = {index: info for index, info in self._reset_infos.items() if self._reset[index]}
        self._recurrent = self.policy.to_device(self._recurrent)
        if new.any():
            self._begin(new)
        self.num_recordings = int(state["num_recordings"])
        self.builder.set_state(state["builder"], restored.problems)
        if self.make_live is None:
            return
        self.live = self.make_live()
        self.live.set_state(state["live"], restored.problems)
        self._start_live(restored.problems, restored.infos)
        host = self.host_connectors
        if host is not None:
            host.batch, host.makes_obs = jax.tree.map(np.array, state["host_batch"]), bool(state["makes_obs"])
            host.update(self.live.episodes, mode, new)

    @property
    def lengths(self) -> np.ndarray:
        """Number of steps of each unfinished episode so far, int64 ``[B]``."""
        return self._lengths

    def forget_episodes(self) -> None:
        """Discards the unfinished episodes from which `EnvRunner.sample` builds its results.

        The next call of `EnvRunner.sample` does not continue these episodes. The episode objects that callbacks and
        Python connectors read do not change.
        """
        self.builder.reset()

    def _begin_watch(self) -> ObservationWatch | None:
        """Begins the check of a rollout's observations for values outside of their space.

        Returns the `ObservationWatch` to which the rollout adds the observations of each step. Returns None if all
        steps are checked together after the rollout, if the space allows all values, or if checks are disabled
        (``disable_env_checking``).
        """
        watch = self._watch
        if watch is None:
            return None
        watch.begin()
        # Else the recording has the environments' observations.
        sees_steps = self.policy.records_obs or self.host_connectors is not None or not watch.takes_blocks
        return watch if sees_steps else None

    def _out_of_range(self, recording: Any, *, saw_steps: bool) -> Sequence[OutOfRange]:
        """Returns `OutOfRange` reports of the recorded observations that contain invalid numbers, sorted by step.

        A report consists of step, environment and problem. Numbers outside of the bounds of a `Box` are not reported as
        invalid: they only cause a notice.
        """
        if self._watch is None:
            return ()
        if not saw_steps:
            self._watch.add_block(recording.obs_of_envs)
        return self._watch.found()

    def _after_step(self, recording, step, inputs, env_to_module, timesteps, ended, is_last, keeps_all) -> None:
        """Completes the record of a vector step (one step of all environments).

        If training or episode objects need an environment's next observation (at the end of an episode: its final
        observation), adds the module inputs for this observation. Also records returns and lengths of ended episodes,
        and marks the starts of new episodes.
        """
        any_ended = ended.any()
        if self._watch is not None and step.final_obs is not None:
            self._watch.add(recording.num_steps - 1, step.final_obs, ended)
        needed = np.ones_like(ended) if is_last else ended if keeps_all else step.truncateds
        if (any_ended or is_last) and needed.any():
            if inputs is None:
                next_obs, before = _next_obs(step, ended), (self._prev_actions, self._prev_rewards)
                inputs = self._final_inputs(next_obs, env_to_module, *before, timesteps)
            recording.add_final(needed, inputs)
        if any_ended:
            self._note_ended(ended)
        if (any_ended or step.valid is not None) and step.resets.any():
            recording.begin(step.resets)
            self._begin(step.resets)

    def _new_recording(self, num_steps: int, layout: PackedColumns, batch: dict[str, Any]) -> Recording:
        obs = None if self.policy.records_obs else batch[Columns.OBS]
        return Recording(self.module_id, num_steps, self.envs.num_envs, layout, obs, starts=self._reset)

    def _step_live(
        self,
        for_env: Any,
        columns: dict[str, Any],
        env_to_module: Any,
        timesteps: int,
        mode: Mode,
        weights_seq_no: int,
        *,
        is_last: bool,
    ) -> tuple[VectorStep, Any]:
        """Steps all environments, and runs the Python connectors and callbacks that read episode objects.

        Before the connectors and callbacks run, appends the new step to the objects of the unfinished episodes. Also
        resets environments whose episode has ended. Used only if callbacks or Python connectors need episode objects.

        Returns:
            ``(step, inputs)``: the result of the step, and the module inputs for the observations after the step (see
            `_final_inputs`); `inputs` is None unless an episode ended, or this is the last step of a recording.
        """
        live: Any = self.live
        envs = self.envs
        # Environments whose episode ended stay in their final state, for callbacks that look at them.
        with envs.stepping:
            step = envs.vector.step(for_env, envs.recover, holds_ended=True)
        ended = step.terminateds | step.truncateds
        next_obs = _next_obs(step, ended)
        live.append(step, columns, next_obs, weights_seq_no)
        host = self.host_connectors
        if host is not None:
            # Where a step only reset, connectors have seen the observation.
            next_obs = host.update(live.episodes, mode, step.valid)[Columns.OBS]
        inputs = None
        if is_last or ended.any():
            rewards = np.asarray(step.rewards, np.float32)
            inputs = self._final_inputs(next_obs, env_to_module, columns[Columns.ACTIONS], rewards, timesteps)
        live.report(step, inputs)
        with envs.failures:
            envs.vector.reset_ended(step, envs.recover)
        live.begin(step)
        if host is not None:
            host.update(live.episodes, mode, step.resets)
        return step, inputs

    def _final_inputs(
        self, next_obs: Any, env_to_module: Any, prev_actions: Any, prev_rewards: Any, timesteps: int
    ) -> Any:
        """Computes the module inputs for the observations that follow a step.

        Where an episode ended, the observation is the final one, not the first one after the reset. Connector
        statistics do not change.
        """
        if not self.policy.records_obs:
            return next_obs
        return self.policy.observe_final(env_to_module, next_obs, prev_actions, prev_rewards, timesteps)

    def _note_ended(self, ended: np.ndarray) -> None:
        now = time.perf_counter()
        self.metrics.ended += [
            EndedEpisode(i, float(self._returns[i]), int(self._lengths[i]), now - float(self._started_at[i]))
            for i in np.flatnonzero(ended).tolist()
        ]

    def _begin(self, where: np.ndarray) -> None:
        """Clears returns, lengths, previous actions and previous rewards of environments that begin an episode."""
        self._returns[where] = 0.0
        self._lengths[where] = 0
        self._started_at[where] = time.perf_counter()
        self._prev_actions = jax.tree.map(
            lambda given, none: _where(where, none, given), self._prev_actions, self._no_actions
        )
        self._prev_rewards = np.where(where, np.float32(0.0), self._prev_rewards)


def _infos_of_resets(step: VectorStep, time: int) -> dict[tuple[int, int], dict]:
    if step.reset_infos is None:
        return {}
    return {(time, i): owned(step.reset_infos[i]) for i in np.flatnonzero(step.resets).tolist()}


def _next_obs(step: VectorStep, ended: np.ndarray) -> Any:
    """Returns the observations after a vector step, as new arrays.

    For an environment whose episode ended (mask `ended`), the result contains the final observation, not the first
    observation after the reset.
    """
    if step.final_obs is None:
        return np.array(step.obs) if isinstance(step.obs, np.ndarray) else jax.tree.map(np.array, step.obs)
    return jax.tree.map(lambda final, obs: _where(ended, final, obs), step.final_obs, step.obs)


def _where(mask: np.ndarray, yes: np.ndarray, no: np.ndarray) -> np.ndarray:
    return np.where(expand(mask, no), yes, no)
