"""Sampling loop of an env runner that steps multi-agent environments in Python: the modules and the environments act in
turn.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from gymnasium.vector.utils import create_empty_array

from jaxrl_stack.acting.agent_recording import NO_ACT, AgentRecording, AgentRecordings, HeldRows
from jaxrl_stack.acting.host_policy import HostPolicy, Mode
from jaxrl_stack.acting.live_multi_agent_episodes import LiveMultiAgentEpisodes
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.module_map import ModuleMap
from jaxrl_stack.env.agent_mapping import HostMapping
from jaxrl_stack.env.agent_preprocessing import AgentPreprocessing
from jaxrl_stack.env.connector_states import ConnectorStates
from jaxrl_stack.env.fault_tolerant_envs import FaultTolerantEnvs
from jaxrl_stack.env.observation_watch import ObservationWatch, OutOfRange
from jaxrl_stack.env.sampling_metrics import EndedEpisode, SamplingMetrics
from jaxrl_stack.env.vector.rows import row_splitter, row_writer
from jaxrl_stack.env.vector.sync_host_multi_agent_env import MultiAgentVectorStep
from jaxrl_stack.episodes.multi_agent_episode import MultiAgentEpisode
from jaxrl_stack.utils import spaces as space_tools
from jaxrl_stack.utils.nested import row as row_of


class ModuleRows:
    """Inputs and recorded steps of one module in a multi-agent rollout, as batch arrays. Each row of the batch is one
    agent in one environment.

    Args:
        policy: Computes the actions.
        connectors: States of the policy's pipelines.
        spaces: ``(observation space, action space)`` of one agent in the environment.
        num_rows: ``R``.
        watch: Checks the values of observations; None without checks.

    Attributes:
        obs: The environments' last observations, ``[R, ...]``.
        write: ``write(row, observation)`` into `obs`.
        acting: Rows of the agents that act next.
        actions: Result of `act`: actions of all rows, for the environments.
        packed: Result of `act`: outputs of the policy, packed as `PackedColumns` describes.
        completing: Rows whose agent steps become complete in this env step.
        returns: ``R`` returns of the unfinished episodes so far.
        recording: The current recording.
    """

    def __init__(
        self,
        policy: HostPolicy,
        connectors: ConnectorStates,
        spaces: tuple[Any, Any],
        num_rows: int,
        watch: ObservationWatch | None,
    ):
        self.policy, self._connectors = policy, connectors
        self.num_rows, self.watch = num_rows, watch
        # With the dtypes of the space, which hold numbers that programs do not: these are found in what is recorded.
        self.obs = create_empty_array(spaces[0], num_rows, fn=np.zeros)
        self.write = row_writer(spaces[0], self.obs)
        self._split = row_splitter(spaces[1])
        self._recurrent = policy.initial_recurrent(num_rows)
        self._reset = np.ones(num_rows, bool)
        self._has_reset = True
        self._prev_actions = _zeros(connectors.env_to_module.action_space, (num_rows,))
        self._prev_rewards = np.zeros(num_rows, np.float32)
        self._held: HeldRows | None = None
        self.returns = [0.0] * num_rows
        self.acting: list[int] = []
        self.completing: list[int] = []
        self._ends: dict[int, bool] = {}
        self.actions: Any = ()
        self.packed: Any = None
        self.recording: Any = None

    def start(
        self, num_steps: int, mode: Mode, timesteps: int, *, learns: bool, keeps_times: bool = False
    ) -> AgentRecording:
        """Starts a new `AgentRecording` of a module's steps and returns this recording.

        Agent steps that had no next observation when the previous `AgentRecording` ended continue in the new one.
        """
        self._memory = (*self._connectors.value, self._recurrent)
        if self.watch is not None:
            self.watch.begin()
        policy = self.policy
        if not policy.has_packed_columns(mode):
            # Nobody may act in the first steps: how results lie is found out without anybody.
            random = policy.get_random_state()
            self._call(mode, timesteps, np.zeros(self.num_rows, bool), learns=learns)
            policy.set_random_state(random)
        layout = policy.packed_columns(mode)
        obs = None if policy.records_obs else self.obs
        final_obs = _zeros(self._connectors.pure[0].observation_space, (self.num_rows,))
        self.recording = AgentRecording(num_steps, self.num_rows, layout, obs, final_obs, keeps_times=keeps_times)
        if self._held is not None:
            self.recording.go_on_from(self._held)
        return self.recording

    def _call(self, mode: Mode, timesteps: int, acts: np.ndarray, *, learns: bool) -> Any:
        # Copies: a program may return what it was given.
        prev_actions = _copied(self._prev_actions)
        return self.policy.act(
            mode,
            self._memory,
            {Columns.OBS: self.obs},
            self._reset.copy(),
            prev_actions,
            self._prev_rewards.copy(),
            timesteps,
            update_statistics=learns,
            acts=acts,
        )

    def act(self, step: int, mode: Mode, timesteps: int, *, learns: bool) -> None:
        """Computes the actions of all agents of this module that act now, in one policy call; does nothing if no agent
        acts.
        """
        if not self.acting:
            return
        rows, self.acting = self.acting, []
        acts = np.zeros(self.num_rows, bool)
        acts[rows] = True
        if self.watch is not None:
            self.watch.add(step, self.obs, acts)
        matrix, loose, self._memory = self._call(mode, timesteps, acts, learns=learns)
        loose = [np.asarray(x) for x in loose] if loose else ()
        actions, for_env = self.policy.packed_columns(mode).read_actions(matrix, loose)
        self.actions = self._split(for_env)
        self.recording.begin(step, rows, matrix, loose, self.obs)
        for own, given in zip(_leaves(self._prev_actions), _leaves(actions), strict=True):
            own[rows] = given[rows]
        if self._has_reset:
            self._reset[rows] = False
            self._has_reset = bool(self._reset.any())
        self.packed = (matrix, loose)

    def read(self, mode: Mode) -> dict[str, Any]:
        """Returns all columns of the module's last `act` call, ``{column: [R, ...]}``; {} before the first call.

        Columns are, for example, actions and log-probabilities. ``R`` is the number of the module's batch rows.
        """
        layout = self.policy.packed_columns(mode)
        return {} if self.packed is None else {name: layout.read(name, *self.packed) for name in layout.columns}

    def end(self, row: int, *, terminated: bool) -> None:
        """Marks that the episode of the agent in the batch row `row` ends in this env step. The episode counts as
        truncated if `terminated` is False.
        """
        self._ends[row] = terminated

    def finish_step(self, step: int, timesteps: int, *, is_last: bool, keeps_all: bool) -> None:
        """Records the agent steps that this env step completes: the steps of agents that now have their next
        observation or have ended. Called before any reset.
        """
        recording, rows, ends = self.recording, self.completing, self._ends
        if ends:
            held = recording.held
            rows = [*rows, *(row for row in ends if held[row] != NO_ACT and row not in rows)]
        if rows:
            self._prev_rewards[rows] = recording.complete(step, rows)
            wanted = rows
            if ends:
                ended = {row: ends[row] for row in rows if row in ends}
                for row, terminated in ended.items():
                    recording.end(row, terminated=terminated)
                if self.watch is not None:
                    self.watch.add(step, self.obs, np.isin(np.arange(self.num_rows), list(ended)))
                if not is_last:
                    wanted = [row for row, terminated in ended.items() if keeps_all or not terminated]
            if wanted and (is_last or ends):
                recording.add_final(wanted, self.inputs_now(timesteps))
        self.completing, self._ends = [], {}

    def inputs_now(self, timesteps: int) -> Any:
        """Returns the module's inputs ``[R, ...]`` for its ``R`` batch rows: the observations after an env step and
        before any reset, as changed by the module's connectors.
        """
        if not self.policy.records_obs:
            return self.obs
        actions = _copied(self._prev_actions)
        return self.policy.observe_final(self._memory[0], self.obs, actions, self._prev_rewards.copy(), timesteps)

    def begin_episodes(self, rows: slice) -> None:
        """Marks batch rows as the start of an episode, and sets the returns, previous actions and previous rewards in
        these rows to zero.
        """
        self._reset[rows] = self._has_reset = True
        self._prev_rewards[rows] = 0.0
        for row in range(*rows.indices(self.num_rows)):
            self.returns[row] = 0.0
        for leaf in _leaves(self._prev_actions):
            leaf[rows] = 0

    def finish(self) -> None:
        """Ends the module's part of a rollout, after the last env step.

        Completes the `AgentRecording`, which records the steps of the module's agents. Stores the connector states and
        the agent steps that have no next observation yet; the next `AgentRecording` continues these steps.
        """
        self.recording.finish()
        self._held = self.recording.held_steps()
        *connectors, self._recurrent = self._memory
        self._connectors.value = tuple(connectors)


@dataclasses.dataclass(eq=False)
class MultiAgentRollout:
    """Sampling loop (`Rollout`) for several agents. During an episode, an agent may join later, pause between its
    actions, and leave earlier than others.

    Attributes:
        envs: The environments.
        policies: Policies by module.
        connectors: States of the policies' pipelines, by module.
        spaces: ``(observation space, action space)`` of an agent in the environment, by module.
        mapping: Mapping of agents to modules.
        preprocessing: Joint preprocessing of all agents' observations, before the modules' pipelines.
        metrics: Counts steps, ended episodes and durations.
        make_live: ``() -> LiveMultiAgentEpisodes``.
        needs_live: Whether callbacks, host connectors or `preprocessing` read every step of unfinished episodes.
        live: Unfinished episodes, from the first `reset` on; None if they are not needed.
        num_recordings: Number of the next recording, which leaves one out where `reset` came in between.
    """

    envs: FaultTolerantEnvs
    policies: Mapping[str, HostPolicy]
    connectors: Mapping[str, ConnectorStates]
    spaces: Mapping[str, tuple[Any, Any]]
    mapping: HostMapping
    preprocessing: AgentPreprocessing
    metrics: SamplingMetrics
    make_live: Callable[[], LiveMultiAgentEpisodes]
    needs_live: bool
    live: LiveMultiAgentEpisodes | None = dataclasses.field(default=None, init=False)
    num_recordings: int = dataclasses.field(default=0, init=False)

    @property
    def module_map(self) -> ModuleMap:
        """Map of agents to modules. For each module, the map contains all agents that the module may control."""
        return self.mapping.module_map

    @property
    def has_episodes(self) -> bool:
        """Whether `MultiAgentEpisode` objects of the unfinished episodes exist. If not, `EnvRunner.sample` resets the
        environments before it samples episodes.
        """
        return self.live is not None

    def reset(self, mode: Mode, *, wants_episodes: bool) -> None:
        """Starts new episodes in all environments.

        Args:
            mode: Mode of choosing actions.
            wants_episodes: Whether unfinished episodes are needed as objects.
        """
        obs, infos = self.envs.reset()
        if self.num_recordings:
            # Nothing continues the recording before: the next one's number does not follow either.
            self.num_recordings += 1
        num_envs, agents_of = self.envs.num_envs, self.module_map.agents_of
        for mid, agents in agents_of.items():
            self.connectors[mid].reset(num_envs * len(agents))
        self._rows = {mid: self._rows_of(mid, agents) for mid, agents in agents_of.items()}
        self._first_row = {(mid, a): s * num_envs for mid, own in agents_of.items() for s, a in enumerate(own)}
        self._where: list[dict[Any, tuple[ModuleRows, int]]] = [{} for _ in range(num_envs)]
        self._acting: list[list[tuple[Any, ModuleRows, int]]] = [[] for _ in range(num_envs)]
        self._lengths = [0] * num_envs
        self._started_at = [time.perf_counter()] * num_envs
        self.live = self.make_live() if wants_episodes or self.needs_live else None
        # Each has asked the mapping for the agents that there have been; where chunks are cut, their successors have.
        self._episodes: list[MultiAgentEpisode] = [MultiAgentEpisode()] * num_envs
        if self.live is not None:
            self._episodes = self.live.episodes
        for i in range(num_envs):
            self._begin(i, obs[i], infos[i])

    def _rows_of(self, mid: str, agents: Sequence[Any]) -> ModuleRows:
        """Creates the `ModuleRows` (batch arrays) of a module, with one row for each of the module's agents in each
        environment.
        """
        num_envs = self.envs.num_envs

        def who(row: int) -> str:
            return f"agent {agents[row // num_envs]!r} of copy {row % num_envs}"

        watch = self.envs.watch_of(self.spaces[mid][0], num_envs * len(agents), who)
        return ModuleRows(self.policies[mid], self.connectors[mid], self.spaces[mid], num_envs * len(agents), watch)

    def _out_of_range(self) -> list[OutOfRange]:
        """Returns `OutOfRange` reports of invalid numbers in observations (see `OutOfRange`). In a report, `row` is the
        index of the environment, and `what` names the agent.
        """
        num_envs, found = self.envs.num_envs, []
        for mid, module in self._rows.items():
            for one in () if module.watch is None else module.watch.found():
                agent = self.module_map.agents_of[mid][one.row // num_envs]
                found.append(one._replace(row=one.row % num_envs, what=f"{one.what}, of agent {agent!r}"))
        return found

    def record(
        self,
        num_steps: int,
        mode: Mode,
        *,
        learns: bool,
        weights_seq_no: int,
        wants_episodes: bool = False,
        keeps_times: bool = False,
    ) -> AgentRecordings:
        """Steps all environments `num_steps` times and returns the recorded steps by module.

        Args:
            num_steps, mode, learns, weights_seq_no: See `Rollout.record`.
            wants_episodes: Whether final observations are kept where an agent was terminated, too.
            keeps_times: Whether `AgentRecordings.times` has to be known.
        """
        envs, modules, live = self.envs, list(self._rows.values()), self.live
        timesteps, per_own = self.metrics.timesteps, self.metrics.steps_per_own_step
        how = {"learns": learns, "keeps_times": keeps_times}
        of_modules = {mid: own.start(num_steps, mode, timesteps, **how) for mid, own in self._rows.items()}
        recordings = AgentRecordings(of_modules, self.module_map.agents_of, envs.num_envs)
        acting = 0.0
        for t in range(num_steps):
            began = time.perf_counter()
            for module in modules:
                module.act(t, mode, timesteps, learns=learns)
            if live is not None:
                self._show_acts(mode, weights_seq_no)
            actions = [{agent: module.actions[row] for agent, module, row in own} for own in self._acting]
            acting += time.perf_counter() - began
            with envs.stepping:
                step = envs.vector.step(actions, envs.recover, live is not None)
            self._take_in(step)
            is_last = t == num_steps - 1
            for module in modules:
                module.finish_step(t, timesteps, is_last=is_last, keeps_all=wants_episodes)
            recordings.num_steps = t + 1
            recordings.env_steps += 1
            if live is not None:
                self._show_step(step, timesteps, is_last=is_last)
                with envs.failures:
                    envs.vector.reset_ended(step, envs.recover)
            for index in step.failed:
                recordings.drop_running(index)
            for i in range(envs.num_envs):
                if step.resets[i]:
                    self._restart(i, step, recordings)
            timesteps += per_own * envs.num_envs
        envs.accept(recordings, self._out_of_range())
        self.num_recordings += 1
        for module in modules:
            module.finish()
        times = envs.take_step_times()
        self.metrics.add_recording(recordings.num_env_steps, acting / num_steps, times, sum(self._lengths))
        return recordings

    def take_ended(self, recording: AgentRecordings, weights_seq_no: int) -> list[tuple[int, MultiAgentEpisode]]:
        """Returns ``(environment index, episode)`` for each episode that ended since the last call."""
        return self._episodes_of_sample().take_finished()

    def cut(self) -> list[MultiAgentEpisode]:
        """Returns the steps so far of each unfinished episode as a chunk; later steps go into a new chunk."""
        return self._episodes_of_sample().cut()

    def _episodes_of_sample(self) -> LiveMultiAgentEpisodes:
        assert self.live is not None, "reset(wants_episodes=True) was called"
        return self.live

    def forget_episodes(self) -> None:
        """Discards the `MultiAgentEpisode` objects of unfinished episodes, so that later steps do not continue these
        episodes.

        Keeps the objects if callbacks, Python connectors or preprocessors read every step of unfinished episodes.
        """
        if not self.needs_live:
            self.live = None

    def _show_acts(self, mode: Mode, weights_seq_no: int) -> None:
        """Adds the modules' inputs and outputs of the current env step to the `MultiAgentEpisode` objects of the
        unfinished episodes.
        """
        live: Any = self.live
        columns = {id(module): module.read(mode) for module in self._rows.values()}
        for index, acting in enumerate(self._acting):
            for agent, module, row in acting:
                live.saw(index, agent, columns[id(module)], row, weights_seq_no)

    def _show_step(self, step: MultiAgentVectorStep, timesteps: int, *, is_last: bool) -> None:
        """Adds the results of an environment step (observations, rewards, flags) to the `MultiAgentEpisode` objects of
        the unfinished episodes.

        Calls the user's callbacks ``on_episode_step`` and, for ended episodes, ``on_episode_end``.
        """
        live: Any = self.live
        inputs = {}
        if is_last or any(step.resets) or any(step.ends):
            changed = [module for module in self._rows.values() if module.policy.records_obs]
            inputs = {id(module): module.inputs_now(timesteps) for module in changed}
        for index, where in enumerate(self._where):
            if index in step.failed:
                live.forget(index)
                continue
            final_obs, ends = step.final_obs[index], step.ends[index]
            obs = dict(step.obs[index] if final_obs is None else final_obs)
            for agent in () if ends is None else ends[1] - obs.keys():
                module, row = where[agent]
                obs[agent] = row_of(module.obs, row)
            live.append(index, obs, step)
            # Nobody acts on the last observations: what the module would see takes their place here.
            last = obs if is_last or final_obs is not None else () if ends is None else ends[0] | ends[1]
            for agent in last:
                module, row = where[agent]
                if id(module) in inputs and agent in obs:
                    live.see(index, agent, inputs[id(module)], row)
            live.report(index, has_ended=final_obs is not None)

    def _take_in(self, step: MultiAgentVectorStep) -> None:
        """Writes the results of an environment step (observations, rewards, ended agents), before any reset, into the
        batch rows of the modules that control the agents.
        """
        for i, where in enumerate(self._where):
            acting: list[tuple[Any, ModuleRows, int]] = []
            self._acting[i] = acting
            if i in step.failed:
                continue
            self._lengths[i] += 1
            if not self.preprocessing.is_empty:
                self._preprocess(i, step)
            for agent, reward in step.rewards[i].items():
                if agent in where:
                    module, row = where[agent]
                    # Rewards of agents without a step of their own belong nowhere.
                    if module.recording.held[row] != NO_ACT:
                        module.recording.pending[row] += reward
                        module.returns[row] += reward
            final_obs = step.final_obs[i]
            for agent, value in (step.obs[i] if final_obs is None else final_obs).items():
                place = where.get(agent) or self._assign_row(i, agent)
                module, row = place
                module.write(row, value)
                if module.recording.held[row] != NO_ACT:
                    module.completing.append(row)
                acting.append((agent, module, row))
            ends = step.ends[i]
            if ends is not None:
                terminated, truncated = ends
                for agent in terminated | truncated:
                    module, row = where[agent]
                    module.end(row, terminated=agent in terminated)
                acting = self._acting[i] = [own for own in acting if own[0] not in terminated | truncated]
            if final_obs is None:
                for _, module, row in acting:
                    module.acting.append(row)

    def _preprocess(self, index: int, step: MultiAgentVectorStep) -> None:
        """Preprocesses the observations of one environment, before any reset: replaces them in `step`, the result of an
        env step.
        """
        final_obs, episode = step.final_obs[index], self._episodes[index]
        if final_obs is None:
            step.obs[index] = dict(self.preprocessing(step.obs[index], episode))
        else:
            step.final_obs[index] = dict(self.preprocessing(final_obs, episode))

    def _assign_row(self, index: int, agent: Any) -> tuple[ModuleRows, int]:
        """Selects the module and the batch row of an agent that appears for the first time in its episode.

        Returns both. Raises MultiAgentEnvError if `possible_agents` lacks the agent, or if the policy mapping function
        returns a module that may not control the agent (see `HostMapping.refuse`).
        """
        mid = self._episodes[index].module_for(agent)
        first = self._first_row.get((mid, agent))
        if first is None:
            self.mapping.refuse(agent, mid)
        place = self._where[index][agent] = (self._rows[mid], first + index)
        return place

    def _restart(self, index: int, step: MultiAgentVectorStep, recordings: AgentRecordings) -> None:
        """Begins the next episode of an environment after the end of its episode or after a failure.

        If the environment has not failed, adds the ended episode to the metrics.
        """
        if index not in step.failed:
            returns = {agent: float(module.returns[row]) for agent, (module, row) in self._where[index].items()}
            of_modules: dict[str, float] = {}
            for agent, own in returns.items():
                mid = self._episodes[index].module_for(agent)
                of_modules[mid] = of_modules.get(mid, 0.0) + own
            duration = time.perf_counter() - self._started_at[index]
            ended = EndedEpisode(index, sum(returns.values()), self._lengths[index], duration, returns, of_modules)
            self.metrics.ended.append(ended)
            recordings.end_episode(index)
        recordings.begin_episode(index)
        self._begin(index, step.obs[index], step.reset_infos[index])

    def _begin(self, index: int, obs: Mapping[Any, Any], infos: Mapping[Any, Any]) -> None:
        """Begins an episode in one environment: creates the episode object, and writes the preprocessed first
        observations into the batch rows of the agents.
        """
        rows = slice(index, None, self.envs.num_envs)
        for module in self._rows.values():
            module.begin_episodes(rows)
        self._where[index], self._lengths[index] = {}, 0
        self._started_at[index] = time.perf_counter()
        if self.live is None:
            self._episodes[index] = MultiAgentEpisode(agent_to_module_mapping_fn=self.mapping.module_of)
        else:
            self._episodes[index] = self.live.create(index)
        obs = self.preprocessing(obs, self._episodes[index])
        if self.live is not None:
            self.live.start(index, obs, infos)
        acting = self._acting[index] = []
        for agent, value in obs.items():
            module, row = self._assign_row(index, agent)
            module.write(row, value)
            module.acting.append(row)
            acting.append((agent, module, row))


def _zeros(space: Any, lead: tuple[int, ...]) -> Any:
    """Returns a pytree of writable NumPy arrays that contain zeros.

    The arrays have the structure and shapes of the elements of `space`, with the additional leading axes `lead`, and
    the dtypes that JAX uses for these elements.
    """
    return jax.tree.map(np.array, space_tools.zeros(space, lead))


def _leaves(tree: Any) -> Sequence[Any]:
    return (tree,) if isinstance(tree, np.ndarray) else jax.tree.leaves(tree)


def _copied(tree: Any) -> Any:
    return tree.copy() if isinstance(tree, np.ndarray) else jax.tree.map(np.copy, tree)
