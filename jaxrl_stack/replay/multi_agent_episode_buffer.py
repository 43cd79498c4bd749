"""MultiAgentEpisodeReplayBuffer: multi-agent replay in which each module samples the steps of its agents uniformly."""

from __future__ import annotations

import array
import bisect
import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jaxrl_stack.checkpoints.checkpointable import Checkpointable, Parts, selected
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.episodes.infinite_lookback_buffer import InfiniteLookbackBuffer
from jaxrl_stack.episodes.multi_agent_episode import MultiAgentEpisode
from jaxrl_stack.episodes.multi_agent_times import SKIPPED, TimesByAgent
from jaxrl_stack.episodes.segments import segments
from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode
from jaxrl_stack.replay import rllib_forms
from jaxrl_stack.replay.arithmetic import n_step_range
from jaxrl_stack.replay.episode_records import Counts, Record
from jaxrl_stack.replay.episode_replay_buffer import EpisodeReplayBuffer, block_too_large, check_continues
from jaxrl_stack.replay.frame_store import REMEDY
from jaxrl_stack.replay.replay_metrics import ReplayMetrics, Scope
from jaxrl_stack.utils.interrupts import deferred_interrupt
from jaxrl_stack.utils.memory import MemoryEstimate, available_host_bytes, require_memory
from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger
from jaxrl_stack.utils.seeds import derived_seed, generator_state, set_generator_state

if TYPE_CHECKING:
    import gymnasium as gym

    from jaxrl_stack.core.experience import AgentTimes

MODES = ("independent", "synchronized")


@dataclasses.dataclass(slots=True)
class AgentSteps:
    """Stored steps of one agent in a multi-agent episode.

    Attributes:
        module_id: The module that acted.
        number: Number of the agent's own episode in the buffer of that module.
        begins: int64, env steps at which its steps begin, rising.
        seen: Env step of its last observation.
    """

    module_id: str
    number: int
    begins: array.array[int]
    seen: int


@dataclasses.dataclass(slots=True)
class EpisodeOfAgents:
    """Metadata of one multi-agent episode in the replay buffer.

    The metadata contain the range of env steps, how the episode ended, and the steps of each agent. If the episode's
    first steps were evicted, the record describes the remaining part.

    Attributes:
        first: The oldest env step that is stored.
        last: The env step after the newest one.
        is_terminated: See `MultiAgentEpisode`.
        is_truncated: Likewise.
        stream: ``(stream, environment)`` if `add_block` added the episode and it is unfinished, else None.
        agents: ``{agent id: its steps}``.
    """

    first: int
    last: int
    is_terminated: bool = False
    is_truncated: bool = False
    stream: tuple[Hashable, int] | None = None
    agents: dict[Any, AgentSteps] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        """Number of stored env steps."""
        return self.last - self.first


@dataclasses.dataclass(slots=True)
class EnvStream:
    """Running multi-agent episodes of the environments of one runner, in a replay buffer. Each block (T steps of these
    environments) continues them.

    Attributes:
        episodes: Id of the episode that runs in each; None: none.
        t: Env steps of the episode that runs in each, so far.
        serial: Number of the last block; None if they have none.
    """

    episodes: list[str | None]
    t: list[int]
    serial: int | None


class _Span(NamedTuple):
    """Consecutive env steps of a block (T steps of B environments) that belong to one episode.

    Attributes:
        begins: The first vector step of them.
        id_: The episode.
        offset: Env step of the episode at vector step 0.
        has_ended: Whether the episode ended with the last of them.
    """

    begins: int
    id_: str
    offset: int
    has_ended: bool


class _OfModule:
    """Mixin for the `EpisodeReplayBuffer` that stores one module's steps in a multi-agent buffer. It evicts nothing by
    itself, because the multi-agent buffer decides on evictions.
    """

    def __init__(self, *args: Any, module_id: str, logger: MetricsLogger, **kwargs: Any):
        self._module_id, self._logger = module_id, logger
        super().__init__(*args, **kwargs)

    def _new_metrics(self: Any, counts: Counts) -> ReplayMetrics:
        return ReplayMetrics(self._window, counts, Scope(module_id=self._module_id), self._logger)

    def _make_room(self: Any, size: int) -> None:
        self._store.own()

    def _excess(self, num_steps: int) -> int:
        return 0

    def _first_rows(self: Any, places: np.ndarray) -> list[int]:
        # Agents that come later in an old episode have higher numbers than agents of a new one: there are gaps.
        records = list(self._records.values())
        return [records[place].first for place in places.tolist()]


class ModuleReplayBuffer(_OfModule, EpisodeReplayBuffer):
    """Replay buffer for the steps of one module in a `MultiAgentEpisodeReplayBuffer`."""


class MultiAgentEpisodeReplayBuffer(Checkpointable):
    """Replay buffer of multi-agent episodes. Each module samples the steps of the agents mapped to it.

    * Complete steps are stored, each with the module that acted. Windows and sequences follow the agent's own time
      steps, and stop at the agent's end, also if the episode continues for other agents.
    * Capacity counts env steps. The oldest episode is evicted as a whole, for all modules at once. The newest episode
      stays, even if it is larger than the capacity; it loses its oldest env steps when it continues. So does an
      unfinished episode that is added in blocks.
    * Chunks of an episode are joined by its id. A later chunk of an evicted episode is a new episode.
    * Each module has a separate random generator: other modules do not change its draws.

    Args:
        capacity: Maximum number of env steps.
        batch_size_B: Number of items of each module in a sample, if a call of `sample` does not set it.
        batch_length_T: Length of the sequences of `sample`; 1 for n-step transitions.
        metrics_num_episodes_for_smoothing: Number of calls over which `get_metrics` averages.
        extra_columns: Names of the module outputs to store per step, if episodes have them; None for all.
        store_infos: Whether infos are stored.
        spaces: ``{module id: (observation space, action space)}`` of the stored steps. With them, memory is known
            before the first data, and sampled episodes have these spaces. For other modules, they are taken from the
            first episodes.
        num_agents: ``{module id: number of agents that it acts for}``, for estimates of memory; 1 for other modules.
        num_frames: ``{module id: frames}``; see `EpisodeReplayBuffer`. 1 if left out.
        seed: Seed of the random numbers. Equal seeds make equal samples; None takes one from the system.

    Attributes:
        module_ids: Modules whose steps are stored; None for all.
        num_agents: See above.

    Raises:
        ValueError: If an argument is out of range, or memory cannot hold the capacity.
    """

    _of_module: type[Any] = ModuleReplayBuffer
    """The buffer of each module."""

    def __init__(
        self,
        capacity: int = 10000,
        *,
        batch_size_B: int = 16,
        batch_length_T: int = 1,
        metrics_num_episodes_for_smoothing: int = 100,
        extra_columns: Collection[str] | None = None,
        store_infos: bool = True,
        spaces: Mapping[str, tuple[gym.Space, gym.Space]] | None = None,
        num_agents: Mapping[str, int] | None = None,
        num_frames: Mapping[str, int] | None = None,
        seed: int | None = None,
    ):
        self.num_agents = dict(num_agents or {})
        self._spaces, self._num_frames = dict(spaces or {}), dict(num_frames or {})
        self.module_ids: Collection[str] | None = None
        self._arguments: dict[str, Any] = {
            "capacity": capacity,
            "batch_size_B": batch_size_B,
            "batch_length_T": batch_length_T,
            "metrics_num_episodes_for_smoothing": metrics_num_episodes_for_smoothing,
            "extra_columns": extra_columns,
            "store_infos": store_infos,
        }
        self._seed, self._logger = seed, MetricsLogger()
        # A module's buffer checks the arguments.
        self._new_part("")
        self.capacity, self.batch_size_B, self.batch_length_T = capacity, batch_size_B, batch_length_T
        self.rng = np.random.default_rng(seed)
        estimate = self.memory_estimate()
        if estimate is not None:
            require_memory(estimate, available_host_bytes(), where="are free on this machine", remedy=REMEDY)
        self._forget()

    def _forget(self) -> None:
        """Empties the replay buffer and resets its counts."""
        self._parts: dict[str, Any] = {}
        self._episodes: dict[str, EpisodeOfAgents] = {}
        self._streams: dict[Hashable, EnvStream] = {}
        self._counts = Counts()
        self._num_timesteps = 0
        self._metrics = self._new_metrics()

    def _new_metrics(self) -> ReplayMetrics:
        window = self._arguments["metrics_num_episodes_for_smoothing"]
        return ReplayMetrics(window, self._counts, Scope(True), self._logger)

    def _new_part(self, module_id: str, **more: Any) -> Any:
        """Creates an empty replay buffer for the steps of one module."""
        observation_space, action_space = self._spaces.get(module_id, (None, None))
        own = {
            **self._arguments,
            # Every agent may have a step in every env step.
            "capacity": self._arguments["capacity"] * self.num_agents.get(module_id, 1),
            "observation_space": observation_space,
            "action_space": action_space,
            "num_frames": self._num_frames.get(module_id, 1),
            "seed": None if self._seed is None else derived_seed(f"module/{module_id}", self._seed),
        }
        return self._of_module(module_id=module_id, logger=self._logger, **own, **more)

    def _part(self, module_id: str) -> Any:
        """Returns the replay buffer of one module; creates it when the module's first steps are added."""
        if module_id not in self._parts:
            self._parts[module_id] = self._new_part(module_id)
        return self._parts[module_id]

    def _stores(self, module_id: str) -> bool:
        return self.module_ids is None or module_id in self.module_ids

    # ----------------------------------------------------------------------------------------------------------- sizes

    def __len__(self) -> int:
        """Number of env steps in the buffer."""
        return self._num_timesteps

    def get_module_ids(self) -> list[str]:
        """Ids of the modules whose steps were added."""
        return list(self._parts)

    def get_num_episodes(self, module_id: str | None = None) -> int:
        """Number of episodes in the buffer; with `module_id`, number of episodes of that module's agents."""
        return len(self._episodes) if module_id is None else self._count(module_id, "get_num_episodes")

    def get_num_episodes_evicted(self, module_id: str | None = None) -> int:
        """Total number of evicted episodes; with `module_id`, number of evicted episodes of that module's agents."""
        if module_id is None:
            return self._counts.evicted_episodes
        return self._count(module_id, "get_num_episodes_evicted")

    def get_num_timesteps(self, module_id: str | None = None) -> int:
        """Number of env steps in the buffer; with `module_id`, number of that module's agent steps."""
        return self._num_timesteps if module_id is None else self._count(module_id, "get_num_timesteps")

    def get_num_agent_timesteps(self) -> int:
        """Number of agent steps in the buffer."""
        return sum(map(len, self._parts.values()))

    def get_added_timesteps(self, module_id: str | None = None) -> int:
        """Total number of added env steps; with `module_id`, total number of that module's added agent steps."""
        return self._counts.added_timesteps if module_id is None else self._count(module_id, "get_added_timesteps")

    def get_added_agent_timesteps(self) -> int:
        """Total number of added agent steps."""
        return sum(part.get_added_timesteps() for part in self._parts.values())

    def get_sampled_timesteps(self, module_id: str | None = None) -> int:
        """Total number of sampled steps; with `module_id`, total number of sampled steps of that module.

        Without `module_id`, each call of a sampling method adds the largest number of steps that the call drew for one
        module, and `sample` with ``replay_mode="synchronized"`` adds the number of drawn env steps.
        """
        return self._counts.sampled_timesteps if module_id is None else self._count(module_id, "get_sampled_timesteps")

    def _count(self, module_id: str, getter: str) -> int:
        part = self._parts.get(module_id)
        return 0 if part is None else getattr(part, getter)()

    def get_metrics(self) -> dict[str, Any]:
        """Returns the metrics of the replay buffer since the previous call, in total and by module, for
        `MetricsLogger.aggregate`. The metrics have RLlib's names.
        """
        for metrics in (self._metrics, *(part._metrics for part in self._parts.values())):
            metrics.log()
        return self._logger.reduce()

    def memory_estimate(self) -> MemoryEstimate | None:
        """Estimated memory of the full buffer without module outputs; None if the spaces are unknown.

        The estimate assumes that every agent has a step in every env step.
        """
        parts = [self._new_part(module_id).memory_estimate() for module_id in self._spaces]
        return MemoryEstimate.joined(parts) if parts else None

    @property
    def episodes(self) -> list[MultiAgentEpisode]:
        """Stored episodes, oldest first, rebuilt with every access; look-back is not stored."""
        return [self._built(id_, episode) for id_, episode in self._episodes.items()]

    def _built(self, id_: str, stored: EpisodeOfAgents) -> MultiAgentEpisode:
        built = MultiAgentEpisode(
            id_,
            env_t_started=stored.first,
            agent_module_ids={agent: steps.module_id for agent, steps in stored.agents.items()},
            agent_episode_ids={agent: self._record(steps).id_ for agent, steps in stored.agents.items()},
        )
        built.env_t, built.is_reset = stored.last, True
        built.is_terminated, built.is_truncated = stored.is_terminated, stored.is_truncated
        times = TimesByAgent()
        for agent, steps in stored.agents.items():
            part = self._parts[steps.module_id]
            rows, last = part._store.walk(self._record(steps).first)
            own = rllib_forms.episode(part, np.append(rows, np.int32(last)), 0, True)
            moments: list[Any] = [SKIPPED] * (len(stored) + 1)
            for moment, t in zip([*steps.begins, steps.seen], itertools.count(own.t_started)):
                moments[moment - stored.first] = t
            times[agent] = InfiniteLookbackBuffer(moments, 0)
            built.agent_episodes[agent], built.agent_t_started[agent] = own, own.t_started
            if own.is_done:
                built._end_t[agent] = steps.seen
        built.env_t_to_agent_t = times
        return built

    def _record(self, steps: AgentSteps) -> Record:
        """Returns the metadata (`Record`) of one agent's episode from the replay buffer of the agent's module."""
        return self._parts[steps.module_id]._records[steps.number]

    # ---------------------------------------------------------------------------------------------------------- adding

    def add(self, episodes: Sequence[MultiAgentEpisode] | MultiAgentEpisode) -> None:
        """Copies episodes, or chunks of episodes, into the buffer, but not the steps in their lookback buffers.

        Args:
            episodes: One, or several in the order in which they were sampled.

        Raises:
            ValueError: If a chunk does not continue the episode of its id, or its data does not fit to what is stored;
                the episodes before it are in the buffer then.
        """
        is_one = isinstance(episodes, MultiAgentEpisode | SingleAgentEpisode)
        for episode in [episodes] if is_one else episodes:
            if not isinstance(episode, MultiAgentEpisode):
                raise TypeError(
                    f"add() takes MultiAgentEpisodes, not {type(episode).__name__}. Use an EpisodeReplayBuffer for "
                    "episodes of one agent."
                )
            if len(episode):
                with deferred_interrupt():
                    self._add_episode(episode)
        self._note_added()

    def _note_added(self) -> None:
        self._metrics.added(num_episodes_stored=len(self._episodes), num_steps_stored=self._num_timesteps)
        for part in self._parts.values():
            part._note_added()

    def _add_episode(self, episode: MultiAgentEpisode) -> None:
        stored = self._episodes.get(episode.id_)
        if stored is not None:
            is_running = not (stored.is_terminated or stored.is_truncated)
            check_continues(episode.id_, "env step ", episode.env_t_started, stored.last, is_running=is_running)
        self._make_room(len(episode), episode.id_)
        stored = self._episodes.get(episode.id_)
        if stored is None:
            stored = EpisodeOfAgents(episode.env_t_started, episode.env_t_started)
            self._episodes[episode.id_] = stored
            self._counts.added_episodes += 1
        for agent, own in episode.agent_episodes.items():
            module_id = episode.module_for(agent)
            if not (len(own) and self._stores(module_id)):
                continue
            part = self._part(module_id)
            self._prepare(part)
            part._add_episode(own)
            self._append(stored, agent, module_id, part._by_id[own.id_].number, *_times(episode, agent))
        stored.last = episode.env_t
        stored.is_terminated, stored.is_truncated = episode.is_terminated, episode.is_truncated
        self._count_added(len(episode))

    def add_block(
        self,
        modules: Mapping[str, Mapping[str, Any]],
        times: AgentTimes,
        *,
        starts: Mapping[str, np.ndarray],
        stream: Hashable = 0,
        serial: int | None = None,
    ) -> None:
        """Adds a block to the replay buffer: T steps of the agents of B environments as arrays, without building
        episodes.

        Args:
            modules: ``{module id: {column: pytree [T, R, ...]}}`` with the columns of `EpisodeReplayBuffer.add_block`.
                Of ``R = S B`` rows, row ``s B + i`` is agent s of the module in environment i. Complete steps come
                first in each row.
            times: Env steps at which agents' steps begin and end.
            starts: ``{module id: bool [R]}``, whether the first complete step of a row is the first one of its agent's
                episode, and does not continue the last block.
            stream: As in `EpisodeReplayBuffer.add_block`, like `serial`.
            serial: See there.

        Raises:
            ValueError: If the block has more env steps than the buffer, or `starts` lacks a module; nothing has changed
                then. Or if data of a module does not fit to what is stored: other modules may have the block then.
        """
        lacking = [module_id for module_id in modules if module_id not in starts]
        if lacking:
            raise ValueError(
                f"add_block(starts=...) lacks the modules {lacking}. Add for each of these modules a bool array [R], "
                "one entry per row of the module's columns [T, R, ...]: True if the row's first valid step "
                "begins an episode."
            )
        counts = np.asarray(times.counts, bool)
        num_envs, size = counts.shape[1], int(np.count_nonzero(counts))
        if size > self.capacity:
            raise block_too_large(size, "env steps", self.capacity)
        running = self._stream(stream, num_envs, serial)
        if running is None:
            running = self._streams[stream] = EnvStream([None] * num_envs, [0] * num_envs, None)
            starts = {module_id: np.ones_like(own, bool) for module_id, own in starts.items()}
        running.serial = serial
        for env in np.flatnonzero(~counts[0]).tolist():
            # The episode that ran there was dropped.
            self._end(running, env)
        self._make_room(size)
        spans = self._continued(stream, running, counts, np.asarray(times.ends, bool))
        truncated = set()
        for module_id, columns in modules.items():
            mask = columns.get(Columns.LOSS_MASK)
            if not self._stores(module_id) or (mask is not None and not np.any(mask)):
                continue
            part = self._part(module_id)
            self._prepare(part)
            found, numbers = part._add_block(columns, stream, None, starts[module_id])
            begins, seen, agents = times.begins[module_id], times.seen[module_id], times.agents[module_id]
            for segment, number in zip(found.each(), numbers.tolist(), strict=True):
                row, t, stop = segment.env, segment.start, segment.stop
                slot, env = divmod(row, num_envs)
                first = int(begins[t, row])
                place = bisect.bisect_right(spans[env], max(first, 0), key=lambda span: span.begins) - 1
                _, id_, offset, _ = spans[env][place]
                stored, record = self._episodes[id_], part._records[number]
                record.agent_id, record.module_id, record.multi_agent_episode_id = agents[slot], module_id, id_
                moments = (begins[t:stop, row] + offset).tolist()
                self._append(stored, agents[slot], module_id, number, moments, int(seen[stop - 1, row]) + offset)
                if segment.truncated:
                    truncated.add(id_)
        for span in itertools.chain.from_iterable(spans):
            if span.has_ended:
                self._close(span.id_, is_truncated=span.id_ in truncated)
        self._count_added(size)
        self._note_added()

    def end_streams(self) -> None:
        """Marks all unfinished episodes that `add_block` added as truncated. Called when the environments are reset, so
        that later blocks begin new episodes.
        """
        for stream in list(self._streams):
            self._end_stream(stream)

    def _end_stream(self, stream: Hashable) -> None:
        running = self._streams.pop(stream)
        for env in range(len(running.episodes)):
            self._end(running, env)
        for part in self._parts.values():
            own = part._streams.pop(stream, None)
            if own is not None:
                part._end(own.number[own.last >= 0])

    def _stream(self, stream: Hashable, num_envs: int, serial: int | None) -> EnvStream | None:
        """Returns the unfinished episodes of a runner (`stream`) if the runner's new block continues these episodes.

        A block has T steps of B environments. If the block does not continue the episodes, ends these episodes, if any,
        and returns None.
        """
        running = self._streams.get(stream)
        if running is None:
            return None
        is_next = serial is None or running.serial is None or serial == running.serial + 1
        if is_next and len(running.episodes) == num_envs:
            return running
        self._end_stream(stream)
        return None

    def _continued(
        self, stream: Hashable, running: EnvStream, counts: np.ndarray, ends: np.ndarray
    ) -> list[list[_Span]]:
        """Assigns the env steps of a block (T steps of B environments) to running and new episodes.

        Returns, for each environment, a list of spans; each span is a range of consecutive env steps of one episode.

        Args:
            stream: Id of the block's source.
            running: Unfinished episodes of this source.
            counts: bool ``[T, B]``, vector steps that are env steps.
            ends: bool ``[T, B]``, whether an episode ended with them.
        """
        spans: list[list[_Span]] = [[] for _ in running.episodes]
        found = segments(ends, np.zeros_like(ends), mask=None if counts.all() else counts)
        for env, begin, stop, _, has_ended, _ in found.each():
            id_ = running.episodes[env]
            if id_ is None:
                self._counts.added_episodes += 1
                id_ = running.episodes[env] = f"stream-{self._counts.added_episodes}"
                t = running.t[env]
                self._episodes[id_] = EpisodeOfAgents(t, t, stream=(stream, env))
            stored = self._episodes[id_]
            spans[env].append(_Span(begin, id_, stored.last - begin, has_ended))
            stored.last += stop - begin
            running.t[env], running.episodes[env] = (0, None) if has_ended else (stored.last, id_)
        return spans

    def _end(self, running: EnvStream, env: int) -> None:
        """Truncates the unfinished episode of an environment, if any."""
        id_, running.episodes[env], running.t[env] = running.episodes[env], None, 0
        if id_ is not None:
            self._close(id_, is_truncated=True)

    def _close(self, id_: str, *, is_truncated: bool) -> None:
        stored = self._episodes[id_]
        stored.is_terminated, stored.is_truncated, stored.stream = not is_truncated, is_truncated, None

    def _append(
        self, stored: EpisodeOfAgents, agent: Any, module_id: str, number: int, begins: list[int], seen: int
    ) -> None:
        """Adds new steps of an agent to the metadata of a multi-agent episode.

        `begins` contains, for each new step, the env step at which it begins; `seen` is the env step of the agent's
        last observation.
        """
        # A step that was held over may have begun before the oldest env step that is stored.
        begins[0] = max(begins[0], stored.first)
        steps = stored.agents.get(agent)
        if steps is None:
            steps = stored.agents[agent] = AgentSteps(module_id, number, array.array("q"), seen)
        steps.begins.extend(begins)
        steps.seen = seen

    def _prepare(self, part: Any) -> None:
        """Hook that runs before steps are added to `part`, the replay buffer of one module. The hook does nothing in
        this class; subclasses override it.
        """

    def _count_added(self, num_steps: int) -> None:
        self._num_timesteps += num_steps
        self._counts.added_timesteps += num_steps

    # -------------------------------------------------------------------------------------------------------- eviction

    def _make_room(self, size: int, id_: str | None = None) -> None:
        """Evicts the oldest episodes until the buffer has room for `size` new env steps.

        If the oldest episode is an unfinished one that `add_block` added, evicts only as many of its oldest env steps
        as necessary.

        Args:
            size: Number of env steps to add.
            id_: Id of the episode to which all these env steps belong; None if they belong to several episodes. If only
                this episode is left in the buffer, it also loses only its oldest env steps.
        """
        while self._episodes and (excess := self._num_timesteps + size - self.capacity) > 0:
            oldest = next(iter(self._episodes))
            goes_on = self._episodes[oldest].stream is not None or (oldest == id_ and len(self._episodes) == 1)
            self._evict(oldest, excess if goes_on else None)

    def _evict(self, id_: str, num_steps: int | None) -> None:
        """Evicts the first `num_steps` env steps of an episode. If `num_steps` is None or no step would remain, evicts
        the whole episode.
        """
        stored = self._episodes[id_]
        is_gone = num_steps is None or num_steps >= len(stored)
        if is_gone:
            num_steps = len(stored)
            del self._episodes[id_]
            self._counts.evicted_episodes += 1
            if stored.stream is not None:
                stream, env = stored.stream
                self._streams[stream].episodes[env] = None
        assert num_steps is not None
        stored.first += num_steps
        for agent, steps in list(stored.agents.items()):
            num_own = len(steps.begins) if is_gone else bisect.bisect_left(steps.begins, stored.first)
            if num_own:
                self._parts[steps.module_id]._evict(self._record(steps), num_own)
                del steps.begins[:num_own]
            if not len(steps.begins):
                del stored.agents[agent]
        self._num_timesteps -= num_steps
        self._counts.evicted_timesteps += num_steps

    # -------------------------------------------------------------------------------------------------------- sampling

    def sample(
        self,
        num_items: int | None = None,
        *,
        batch_size_B: int | None = None,
        batch_length_T: int | None = None,
        n_step: int | tuple[int, int] | None = 1,
        gamma: float = 0.99,
        include_infos: bool = False,
        include_extra_model_outputs: bool = False,
        replay_mode: str = "independent",
        modules_to_sample: Collection[str] | None = None,
        beta: float = 0.0,
        to_numpy: bool = False,
        lookback: int = 0,
        min_batch_length_T: int = 0,
        sample_episodes: bool = True,
    ) -> Any:
        """Samples transitions or sequences of each module as a list of episodes, the format of RLlib's replay buffers.

        If `replay_mode` is "synchronized", samples transitions as columns. `sample_batch` and `sample_sequences`, which
        always return columns, are faster.

        Args:
            num_items: Number of items of each module (steps of sequences); in "synchronized" mode env steps.
            batch_size_B: Another name of `num_items`.
            batch_length_T: None, 0 or 1: n-step transitions, episodes of one step. More: sequences of up to that many
                steps. See `EpisodeReplayBuffer.sample`.
            n_step: Steps of a window, counted in steps of the agent; ``(low, high)`` draws one per item, `high`
                excluded.
            gamma: Discount.
            include_infos: Whether the episodes have infos.
            include_extra_model_outputs: Whether transitions have the module outputs of their first step.
            replay_mode: "independent": each module draws independently. "synchronized": draws env steps, and takes all
                agent steps of these modules that begin in them.
            modules_to_sample: The modules; None for all that have steps.
            beta: Exponent of importance weights; no effect on uniform draws.
            to_numpy: Whether the episodes of transitions hold arrays; episodes of sequences always do.
            lookback: Maximum number of earlier steps before each sequence.
            min_batch_length_T: Draw only steps that are followed by at least this many further steps of their episode.
            sample_episodes: True; other forms are `sample_batch`'s.

        Returns:
            "independent": `SingleAgentEpisode` objects, module by module, with their `module_id` and `agent_id`, and
            the extra model outputs "n_step" and "weights". "synchronized": the columns of `sample_batch`, with one row
            for each agent step that begins in a drawn env step.

        Raises:
            ValueError: If the buffer or a module has no steps, or an argument is out of range.
        """
        if replay_mode not in MODES:
            raise ValueError(f"replay_mode={replay_mode!r} must be one of {', '.join(map(repr, MODES))}.")
        if not sample_episodes:
            raise ValueError(
                "sample_episodes=False is not supported. Call sample_batch(...), which returns columns by module."
            )
        if replay_mode == "synchronized":
            if (batch_length_T or self.batch_length_T) > 1:
                raise ValueError("replay_mode='synchronized' draws transitions, not sequences: pass batch_length_T=1.")
            return self._synchronized(num_items, batch_size_B, modules_to_sample, n_step or 1, gamma, beta)
        length = self.batch_length_T if batch_length_T is None else batch_length_T
        drawn = self._drawn(
            lambda part: part.sample(
                num_items,
                batch_size_B=batch_size_B,
                batch_length_T=length,
                n_step=n_step,
                beta=beta,
                gamma=gamma,
                include_infos=include_infos,
                include_extra_model_outputs=include_extra_model_outputs,
                sample_episodes=True,
                to_numpy=to_numpy,
                lookback=lookback,
                min_batch_length_T=min_batch_length_T,
            ),
            modules_to_sample,
        )
        return [episode for episodes in drawn.values() for episode in episodes]

    def sample_batch(
        self, num_items: int | None = None, *, modules_to_sample: Collection[str] | None = None, **arguments: Any
    ) -> dict[str, dict[str, Any]]:
        """Samples n-step transitions of each module: ``{module id: {column: pytree [N, ...]}}``.

        Args:
            num_items: N, of each module; `batch_size_B` if None.
            modules_to_sample: The modules; None for all that have steps.
            **arguments: `n_step`, `gamma`, `beta`, `clip_rewards` and `extra_columns` of
                `EpisodeReplayBuffer.sample_batch`.

        Returns:
            ``{module id: {column: pytree [N, ...]}}``; see there.

        Raises:
            ValueError: If the buffer or a module has no steps, or an argument is out of range.
        """
        return self._drawn(lambda part: part.sample_batch(num_items, **arguments), modules_to_sample)

    def sample_sequences(
        self, num_items: int | None = None, *, modules_to_sample: Collection[str] | None = None, **arguments: Any
    ) -> dict[str, dict[str, Any]]:
        """Samples sequences of fixed length for each module; returns ``{module id: dict of columns}``.

        Args:
            num_items: N, of each module; `batch_size_B` if None.
            modules_to_sample: The modules; None for all that have steps.
            **arguments: All others of `EpisodeReplayBuffer.sample_sequences`.

        Returns:
            ``{module id: {column: pytree [N, L, ...]}}``; see there.

        Raises:
            ValueError: If the buffer or a module has no steps, or an argument is out of range.
        """
        return self._drawn(lambda part: part.sample_sequences(num_items, **arguments), modules_to_sample)

    def _drawn(self, draw: Callable[[Any], Any], modules: Collection[str] | None) -> dict[str, Any]:
        """Draws samples of each module: calls `draw` with the module's buffer, and counts the samples. Returns
        ``{module_id: result of draw}``.
        """
        before = {module_id: part.get_sampled_timesteps() for module_id, part in self._parts.items()}
        drawn = {module_id: draw(self._parts[module_id]) for module_id in self._sampled_modules(modules)}
        num_steps = {m: self._parts[m].get_sampled_timesteps() - before[m] for m in drawn}
        self._note_sampled(num_steps, max(num_steps.values()))
        return drawn

    def _note_sampled(self, num_steps: Mapping[str, int], number: int) -> None:
        """Adds the counts of one call of a sampling method to the metrics of the replay buffer, and `number` to the
        buffer's total number of sampled steps.

        Args:
            num_steps: Number of steps that the call has drawn, by module.
            number: Number to add to the total number of sampled steps.
        """
        self._counts.sampled_timesteps += number
        rows = {module_id: self._parts[module_id]._last_sampled for module_id in num_steps}
        owners = {m: self._parts[m]._store.owner[drawn & 0xFFFFFFFF] for m, drawn in rows.items()}
        ids = {self._parts[m]._records[n].multi_agent_episode_id for m, of in owners.items() for n in set(of.tolist())}
        self._metrics.sampled(
            num_steps=sum(num_steps.values()),
            num_unique_steps=sum(len(set(drawn.tolist())) for drawn in rows.values()),
            num_unique_episodes=len(ids),
            num_resamples=sum(self._parts[module_id]._num_resamples for module_id in num_steps),
            n_step=None,
        )

    def _sampled_modules(self, modules: Collection[str] | None) -> list[str]:
        """Returns the ids of the modules to sample: all modules with stored steps if `modules` is None, otherwise
        `modules`.
        """
        have = [module_id for module_id, part in self._parts.items() if len(part)]
        if not have:
            raise ValueError("The replay buffer is empty: add episodes before you sample.")
        if modules is None:
            return have
        missing = [module_id for module_id in modules if module_id not in have]
        if isinstance(modules, str) or missing or not modules:
            raise ValueError(
                f"modules_to_sample={modules!r} must be a list of modules that have steps in the replay buffer: {have}."
            )
        return list(modules)

    def _synchronized(
        self,
        num_items: int | None,
        batch_size_B: int | None,
        modules: Collection[str] | None,
        n_step: int | tuple[int, int],
        gamma: float,
        beta: float,
    ) -> dict[str, dict[str, Any]]:
        wanted = self._sampled_modules(modules)
        number = self._parts[wanted[0]]._num_items(num_items, batch_size_B)
        n_step_range(n_step)
        # Env steps in which a step of these modules begins, episode by episode.
        moments = {
            id_: np.unique(np.concatenate([np.frombuffer(own, np.int64) for own in begins]))
            for id_, stored in self._episodes.items()
            if (begins := [steps.begins for steps in stored.agents.values() if steps.module_id in wanted])
        }
        bounds = np.cumsum([0, *map(len, moments.values())])
        drawn = self.rng.integers(bounds[-1], size=number)
        places = np.searchsorted(bounds, drawn, side="right") - 1
        ids = list(moments)

        @functools.cache
        def rows_of(module_id: str, number: int) -> np.ndarray:
            part = self._parts[module_id]
            return part._store.walk(part._records[number].first)[0]

        rows: dict[str, list[int]] = {module_id: [] for module_id in wanted}
        for place, item in zip(places.tolist(), (drawn - bounds[places]).tolist(), strict=True):
            moment = moments[ids[place]][item]
            for steps in self._episodes[ids[place]].agents.values():
                own = bisect.bisect_left(steps.begins, moment)
                if steps.module_id in rows and own < len(steps.begins) and steps.begins[own] == moment:
                    rows[steps.module_id].append(int(rows_of(steps.module_id, steps.number)[own]))
        columns = {}
        for module_id, own in rows.items():
            if own:
                part = self._parts[module_id]
                taken = np.array(own, np.int32)
                part._last_sampled, part._num_resamples = part._indexes(taken), 0
                columns[module_id] = part._transitions(taken, n_step, gamma, beta)
        self._note_sampled({module_id: len(rows[module_id]) for module_id in columns}, number)
        return columns

    # ----------------------------------------------------------------------------------------------------------- state

    def get_ctor_args_and_kwargs(self) -> tuple[tuple, dict[str, Any]]:
        """Constructor arguments of an empty replay buffer with the same settings."""
        columns = self._arguments["extra_columns"]
        about = {"spaces": self._spaces, "num_agents": self.num_agents, "num_frames": self._num_frames}
        return (), {
            **self._arguments,
            **{name: dict(value) for name, value in about.items() if value},
            "extra_columns": None if columns is None else sorted(columns),
            "seed": self._seed,
        }

    def get_state(self, components: Parts = None, *, not_components: Parts = None, **kwargs: Any) -> dict[str, Any]:
        """Returns the complete state of the replay buffer. After `set_state`, adding and sampling continue bit for bit.
        Metrics that `get_metrics` has not returned yet are not included.

        Args:
            components: "data" or "rng"; None for both.
            not_components: Leave these out.
            **kwargs: See `Checkpointable`.
        """
        names = selected(["data", "rng"], components, not_components, type(self).__name__)
        state: dict[str, Any] = {"modules": [[m, part.get_state(names)] for m, part in self._parts.items()]}
        if "rng" in names:
            state["rng"] = generator_state(self.rng)
        if "data" in names:
            state["counts"] = dataclasses.asdict(self._counts)
            state["episodes"] = [
                {
                    "id_": id_,
                    "first": stored.first,
                    "last": stored.last,
                    "is_terminated": stored.is_terminated,
                    "is_truncated": stored.is_truncated,
                    "agents": [
                        {
                            "agent_id": agent,
                            "module_id": steps.module_id,
                            "number": steps.number,
                            "begins": np.array(steps.begins, np.int64),
                            "seen": steps.seen,
                        }
                        for agent, steps in stored.agents.items()
                    ],
                }
                for id_, stored in self._episodes.items()
            ]
            state["streams"] = [
                {"key": key, "serial": own.serial, "t": list(own.t), "episodes": list(own.episodes)}
                for key, own in self._streams.items()
            ]
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores the replay buffer from a state that `get_state` returned.

        If `state` does not contain the data or the states of the random generators, this part of the buffer does not
        change. Modules that are not in this buffer's `module_ids` are ignored.

        Raises:
            ValueError: If it does not fit. Nothing has changed then.
        """
        if "episodes" in state:
            parts = {m: self._new_part(m) for m, _ in state["modules"] if self._stores(m)}
            if "rng" not in state:
                for module_id, part in self._parts.items():
                    if module_id in parts:
                        parts[module_id].rng = part.rng
        else:
            parts = self._parts
        restored = [(parts[module_id], of_part) for module_id, of_part in state["modules"] if module_id in parts]
        if "episodes" in state:
            episodes = {values["id_"]: _restored(values, parts) for values in state["episodes"]}
            num_timesteps = sum(map(len, episodes.values()))
            if num_timesteps > self.capacity and len(episodes) > 1:
                raise ValueError(
                    f"The saved replay buffer has {num_timesteps} env steps, but this one has "
                    f"capacity={self.capacity}. Create it with capacity={num_timesteps} or more."
                )
        for part, of_part in restored:
            part.set_state(of_part)
        if "rng" in state:
            set_generator_state(self.rng, state["rng"])
        if "episodes" in state:
            self._parts, self._episodes, self._num_timesteps = parts, episodes, num_timesteps
            self._streams = {
                own["key"]: EnvStream(list(own["episodes"]), list(own["t"]), own["serial"]) for own in state["streams"]
            }
            for key, own in self._streams.items():
                for env, id_ in enumerate(own.episodes):
                    if id_ is not None:
                        episodes[id_].stream = (key, env)
            self._counts = Counts(**{name: int(value) for name, value in state["counts"].items()})
            self._metrics = self._new_metrics()


def _times(episode: MultiAgentEpisode, agent: Any) -> tuple[list[int], int]:
    """Returns the env steps at which an agent's steps begin, and the env step of the agent's last observation.

    The steps and the observation are in an episode chunk. The first value is a list with one env step for each of the
    agent's steps.
    """
    times, own = episode.env_t_to_agent_t[agent], episode.agent_episodes[agent]
    start = episode.env_t_started - times.lookback
    moments = {t: start + moment for moment, t in enumerate(times.data) if t != SKIPPED}
    return [moments[t] for t in range(own.t_started, own.t)], moments[own.t]


def _restored(values: Mapping[str, Any], modules: Collection[str]) -> EpisodeOfAgents:
    """Rebuilds a stored episode from its entry in a saved state, without agents whose module is not in `modules`."""
    agents = {
        of["agent_id"]: AgentSteps(
            of["module_id"], int(of["number"]), array.array("q", of["begins"].tolist()), int(of["seen"])
        )
        for of in values["agents"]
        if of["module_id"] in modules
    }
    first, last = int(values["first"]), int(values["last"])
    return EpisodeOfAgents(first, last, bool(values["is_terminated"]), bool(values["is_truncated"]), agents=agents)
