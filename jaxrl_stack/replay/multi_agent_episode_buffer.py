"""MultiAgentEpisodeReplayBuffer: uniform replay of the steps of several agents, by module."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl_stack.checkpoints.checkpointable import Checkpointable, Parts, selected
from jaxrl_stack.episodes.infinite_lookback_buffer import InfiniteLookbackBuffer
from jaxrl_stack.episodes.multi_agent_columns import SKIPPED, TimesByAgent
from jaxrl_stack.episodes.multi_agent_episode import MultiAgentEpisode
from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode
from jaxrl_stack.replay import rllib_forms
from jaxrl_stack.replay.arithmetic import n_step_range
from jaxrl_stack.replay.episode_records import Counts
from jaxrl_stack.replay.episode_replay_buffer import EpisodeReplayBuffer, check_continues
from jaxrl_stack.replay.replay_metrics import ReplayMetrics, Scope
from jaxrl_stack.utils.interrupts import deferred_interrupt
from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger
from jaxrl_stack.utils.seeds import derived_seed, generator_state, set_generator_state

MODES = ("independent", "synchronized")


@dataclasses.dataclass(slots=True)
class AgentSteps:
    """Stored steps of an agent in an episode of several.

    Attributes:
        module_id: The module that acted.
        episode_id: Id of the agent's own episode.
        begins: int64 ``[n]``, env steps at which its steps begin, rising.
        seen: Env step of its last observation.
    """

    module_id: str
    episode_id: str
    begins: np.ndarray
    seen: int


@dataclasses.dataclass(slots=True)
class EpisodeOfAgents:
    """An episode of several agents in the buffer, or the rest of one.

    Attributes:
        first: The oldest env step that is stored.
        last: The env step after the newest one.
        is_terminated: See `MultiAgentEpisode`.
        is_truncated: Likewise.
        agents: ``{agent id: its steps}``.
    """

    first: int
    last: int
    is_terminated: bool = False
    is_truncated: bool = False
    agents: dict[Any, AgentSteps] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        """Stored env steps."""
        return self.last - self.first


class _OfModule:
    """An `EpisodeReplayBuffer` of one module's steps, out of which the buffer of all modules evicts."""

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
    """Steps of one module in a `MultiAgentEpisodeReplayBuffer`."""


class MultiAgentEpisodeReplayBuffer(Checkpointable):
    """Replay memory of episodes of several agents, out of which each module draws its own agents' steps.

    * Steps that are complete are stored, each with the module that acted. Windows and sequences follow the agent's own
      time, and stop where it ends, also if the episode continues for others.
    * Capacity counts env steps. The oldest episode is evicted as a whole, for all modules at once. The last one stays,
      and is larger than the capacity if it came so; it loses its oldest env steps as soon as it is continued.
    * Chunks of an episode are joined by its id. A later chunk of an evicted episode is an episode of its own.
    * Each module has random numbers of its own: another module does not change its draws.

    Args:
        capacity: Env steps.
        batch_size_B: Items of a sample, of each module, if `sample` does not say so.
        batch_length_T: Length of the sequences of `sample`; 1 for n-step transitions.
        metrics_num_episodes_for_smoothing: Calls over which the means in `get_metrics` are taken.
        extra_columns: Outputs of modules to store per step, of those that there are; None for all.
        store_infos: Whether infos are kept.
        seed: Of the random numbers. Equal seeds make equal samples; None takes one from the system.

    Raises:
        ValueError: If an argument is out of range.
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
        seed: int | None = None,
    ):
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
        self._parts: dict[str, Any] = {}
        self._episodes: dict[str, EpisodeOfAgents] = {}
        self._counts = Counts()
        self._num_timesteps = 0
        self._metrics = ReplayMetrics(metrics_num_episodes_for_smoothing, self._counts, Scope(True), self._logger)

    def _new_part(self, module_id: str, **more: Any) -> Any:
        seed = None if self._seed is None else derived_seed(f"module/{module_id}", self._seed)
        return self._of_module(module_id=module_id, logger=self._logger, seed=seed, **self._arguments, **more)

    # ----------------------------------------------------------------------------------------------------------- sizes

    def __len__(self) -> int:
        """Env steps in the buffer."""
        return self._num_timesteps

    def get_module_ids(self) -> list[str]:
        """Modules whose steps were added."""
        return list(self._parts)

    def get_num_episodes(self, module_id: str | None = None) -> int:
        """Episodes in the buffer; of a module its agents' episodes."""
        return len(self._episodes) if module_id is None else self._count(module_id, "get_num_episodes")

    def get_num_episodes_evicted(self, module_id: str | None = None) -> int:
        """Episodes that were evicted, in total; of a module its agents' episodes."""
        if module_id is None:
            return self._counts.evicted_episodes
        return self._count(module_id, "get_num_episodes_evicted")

    def get_num_timesteps(self, module_id: str | None = None) -> int:
        """Env steps in the buffer; of a module its agents' steps."""
        return self._num_timesteps if module_id is None else self._count(module_id, "get_num_timesteps")

    def get_num_agent_timesteps(self) -> int:
        """Agents' steps in the buffer."""
        return sum(map(len, self._parts.values()))

    def get_added_timesteps(self, module_id: str | None = None) -> int:
        """Env steps that were added, in total; of a module its agents' steps."""
        return self._counts.added_timesteps if module_id is None else self._count(module_id, "get_added_timesteps")

    def get_added_agent_timesteps(self) -> int:
        """Agents' steps that were added, in total."""
        return sum(part.get_added_timesteps() for part in self._parts.values())

    def get_sampled_timesteps(self, module_id: str | None = None) -> int:
        """Items that were sampled of each module, in total; of a module its own items."""
        return self._counts.sampled_timesteps if module_id is None else self._count(module_id, "get_sampled_timesteps")

    def _count(self, module_id: str, getter: str) -> int:
        part = self._parts.get(module_id)
        return 0 if part is None else getattr(part, getter)()

    def get_metrics(self) -> dict[str, Any]:
        """Counts since the last call, under RLlib's names, in total and by module, for `MetricsLogger.aggregate`."""
        for metrics in (self._metrics, *(part._metrics for part in self._parts.values())):
            metrics.log()
        return self._logger.reduce()

    @property
    def episodes(self) -> list[MultiAgentEpisode]:
        """The stored episodes, oldest first, built anew with every access; look-back is not stored."""
        return [self._built(id_, episode) for id_, episode in self._episodes.items()]

    def _built(self, id_: str, stored: EpisodeOfAgents) -> MultiAgentEpisode:
        built = MultiAgentEpisode(
            id_,
            env_t_started=stored.first,
            agent_module_ids={agent: steps.module_id for agent, steps in stored.agents.items()},
            agent_episode_ids={agent: steps.episode_id for agent, steps in stored.agents.items()},
        )
        built.env_t, built.is_reset = stored.last, True
        built.is_terminated, built.is_truncated = stored.is_terminated, stored.is_truncated
        times = TimesByAgent()
        for agent, steps in stored.agents.items():
            part = self._parts[steps.module_id]
            rows, last = part._store.walk(part._by_id[steps.episode_id].first)
            own = rllib_forms.episode(part, np.append(rows, np.int32(last)), 0, True)
            moments: list[Any] = [SKIPPED] * (len(stored) + 1)
            for moment, t in zip([*steps.begins.tolist(), steps.seen], itertools.count(own.t_started)):
                moments[moment - stored.first] = t
            times[agent] = InfiniteLookbackBuffer(moments, 0)
            built.agent_episodes[agent], built.agent_t_started[agent] = own, own.t_started
            if own.is_done:
                built._end_t[agent] = steps.seen
        built.env_t_to_agent_t = times
        return built

    # ---------------------------------------------------------------------------------------------------------- adding

    def add(self, episodes: Sequence[MultiAgentEpisode] | MultiAgentEpisode) -> None:
        """Add episodes, or chunks of them. They are copied; their look-back is left out.

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
                    f"add() takes MultiAgentEpisodes, not {type(episode).__name__}; an EpisodeReplayBuffer has the "
                    f"steps of one agent."
                )
            if len(episode):
                with deferred_interrupt():
                    self._add_episode(episode)
        self._metrics.added(num_episodes_stored=len(self._episodes), num_steps_stored=self._num_timesteps)
        for part in self._parts.values():
            part._note_added()

    def _add_episode(self, episode: MultiAgentEpisode) -> None:
        stored = self._episodes.get(episode.id_)
        if stored is not None:
            is_running = not (stored.is_terminated or stored.is_truncated)
            check_continues(episode.id_, "env step ", episode.env_t_started, stored.last, is_running=is_running)
        self._make_room(episode.id_, len(episode))
        stored = self._episodes.get(episode.id_)
        if stored is None:
            stored = EpisodeOfAgents(episode.env_t_started, episode.env_t_started)
            self._episodes[episode.id_] = stored
            self._counts.added_episodes += 1
        for agent, own in episode.agent_episodes.items():
            if not len(own):
                continue
            module_id = episode.module_for(agent)
            if module_id not in self._parts:
                self._parts[module_id] = self._new_part(module_id)
            self._add_steps(self._parts[module_id], own)
            begins, seen = _times(episode, agent)
            before = stored.agents.get(agent)
            if before is not None:
                begins = np.concatenate([before.begins, begins])
            stored.agents[agent] = AgentSteps(module_id, own.id_, begins, seen)
        stored.last = episode.env_t
        stored.is_terminated, stored.is_truncated = episode.is_terminated, episode.is_truncated
        self._num_timesteps += len(episode)
        self._counts.added_timesteps += len(episode)

    def _add_steps(self, part: Any, episode: SingleAgentEpisode) -> None:
        part._add_episode(episode)

    # -------------------------------------------------------------------------------------------------------- eviction

    def _make_room(self, id_: str, size: int) -> None:
        """Evict the oldest episodes; of the one with this id, if it is the last one, its oldest env steps."""
        while self._episodes and (excess := self._num_timesteps + size - self.capacity) > 0:
            oldest = next(iter(self._episodes))
            is_last = oldest == id_ and len(self._episodes) == 1
            self._evict(oldest, excess if is_last else None)

    def _evict(self, id_: str, num_steps: int | None) -> None:
        """Evict an episode, or its oldest env steps; the episode as well if it has no others."""
        stored = self._episodes[id_]
        if num_steps is None or num_steps >= len(stored):
            num_steps = len(stored)
            del self._episodes[id_]
            self._counts.evicted_episodes += 1
        stored.first += num_steps
        for agent, steps in list(stored.agents.items()):
            part = self._parts[steps.module_id]
            num_own = (
                len(steps.begins) if id_ not in self._episodes else int(np.searchsorted(steps.begins, stored.first))
            )
            if num_own:
                part._evict(part._by_id[steps.episode_id], num_own)
                steps.begins = steps.begins[num_own:]
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
        """Draw items of each module in RLlib's forms. `sample_batch` and `sample_sequences` are faster.

        Args:
            num_items: How many items of each module (steps of sequences); in "synchronized" mode env steps.
            batch_size_B: Another name of `num_items`.
            batch_length_T: None, 0 or 1: n-step transitions, episodes of one step. More: sequences of up to that many
                steps. See `EpisodeReplayBuffer.sample`.
            n_step: Steps of a window, of the agent's own; ``(low, high)`` draws one per item, `high` excluded.
            gamma: Discount.
            include_infos: Whether the episodes have infos.
            include_extra_model_outputs: Whether transitions have the module outputs of their first step.
            replay_mode: "independent": each module draws for itself. "synchronized": env steps are drawn in which a
                step of these modules' agents begins, and all of those are taken.
            modules_to_sample: The modules; None for all that have steps.
            beta: Exponent of importance weights; no effect where all are drawn equally often.
            to_numpy: Whether the episodes of transitions hold arrays; episodes of sequences always do.
            lookback: Steps before sequences, as far as there are any.
            min_batch_length_T: Draw only items that more than this many steps of their episode follow, themselves
                included.
            sample_episodes: True; other forms are `sample_batch`'s.

        Returns:
            "independent": `SingleAgentEpisode` objects, module by module, with their `module_id` and `agent_id`, and
            the extra model outputs "n_step" and "weights". "synchronized": what `sample_batch` returns, of as many
            rows as agents of a module began a step.

        Raises:
            ValueError: If the buffer or a module has no steps, or an argument is out of range.
        """
        if replay_mode not in MODES:
            raise ValueError(f"replay_mode={replay_mode!r} must be one of {', '.join(map(repr, MODES))}.")
        if not sample_episodes:
            raise ValueError("sample_episodes=False: call sample_batch(...), which returns columns by module.")
        if replay_mode == "synchronized":
            if (batch_length_T or self.batch_length_T) > 1:
                raise ValueError("replay_mode='synchronized' draws transitions: leave batch_length_T out.")
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
        """Draw n-step transitions of each module as columns.

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
        """Draw sequences of each module as columns of fixed length.

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
        """Draw from each module."""
        before = {module_id: part.get_sampled_timesteps() for module_id, part in self._parts.items()}
        drawn = {module_id: draw(self._parts[module_id]) for module_id in self._sampled_modules(modules)}
        self._note_sampled({m: self._parts[m].get_sampled_timesteps() - before[m] for m in drawn})
        return drawn

    def _note_sampled(self, num_steps: Mapping[str, int]) -> None:
        """Count a call; `num_steps` are the steps that it has drawn of each module."""
        self._counts.sampled_timesteps += max(num_steps.values())
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
        """The modules that are asked for, or all that have steps."""
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
            id_: np.unique(np.concatenate(begins))
            for id_, stored in self._episodes.items()
            if (begins := [steps.begins for steps in stored.agents.values() if steps.module_id in wanted])
        }
        bounds = np.cumsum([0, *map(len, moments.values())])
        drawn = self.rng.integers(bounds[-1], size=number)
        places = np.searchsorted(bounds, drawn, side="right") - 1
        ids = list(moments)

        @functools.cache
        def rows_of(module_id: str, episode_id: str) -> np.ndarray:
            part = self._parts[module_id]
            return part._store.walk(part._by_id[episode_id].first)[0]

        rows: dict[str, list[int]] = {module_id: [] for module_id in wanted}
        for place, item in zip(places.tolist(), (drawn - bounds[places]).tolist(), strict=True):
            moment = moments[ids[place]][item]
            for steps in self._episodes[ids[place]].agents.values():
                own = int(np.searchsorted(steps.begins, moment))
                if steps.module_id in rows and own < len(steps.begins) and steps.begins[own] == moment:
                    rows[steps.module_id].append(int(rows_of(steps.module_id, steps.episode_id)[own]))
        columns = {}
        for module_id, own in rows.items():
            if own:
                part = self._parts[module_id]
                taken = np.array(own, np.int32)
                part._last_sampled, part._num_resamples = part._indexes(taken), 0
                columns[module_id] = part._transitions(taken, n_step, gamma, beta)
        self._note_sampled({module_id: len(rows[module_id]) for module_id in columns})
        return columns

    # ----------------------------------------------------------------------------------------------------------- state

    def get_ctor_args_and_kwargs(self) -> tuple[tuple, dict[str, Any]]:
        """Arguments that build a buffer like this one."""
        columns = self._arguments["extra_columns"]
        return (), {
            **self._arguments,
            "extra_columns": None if columns is None else sorted(columns),
            "seed": self._seed,
        }

    def get_state(self, components: Parts = None, *, not_components: Parts = None, **kwargs: Any) -> dict[str, Any]:
        """All that sampling and adding continue from, bit for bit; metrics that were not asked for are left out.

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
                            "episode_id": steps.episode_id,
                            "begins": steps.begins.copy(),
                            "seen": steps.seen,
                        }
                        for agent, steps in stored.agents.items()
                    ],
                }
                for id_, stored in self._episodes.items()
            ]
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over what `get_state` returned; what is left out stays as it is.

        Raises:
            ValueError: If it does not fit. Nothing has changed then.
        """
        if "episodes" in state:
            parts = {module_id: self._new_part(module_id) for module_id, _ in state["modules"]}
            if "rng" not in state:
                for module_id, part in self._parts.items():
                    if module_id in parts:
                        parts[module_id].rng = part.rng
        else:
            parts = self._parts
        restored = [(parts[module_id], of_part) for module_id, of_part in state["modules"] if module_id in parts]
        if "episodes" in state:
            episodes = {values["id_"]: _restored(values) for values in state["episodes"]}
            num_timesteps = sum(map(len, episodes.values()))
            if num_timesteps > self.capacity and len(episodes) > 1:
                raise ValueError(
                    f"The state holds {num_timesteps} env steps, and this replay buffer has capacity={self.capacity}: "
                    f"make it as large as the one that was saved."
                )
        for part, of_part in restored:
            part.set_state(of_part)
        if "rng" in state:
            set_generator_state(self.rng, state["rng"])
        if "episodes" in state:
            self._parts, self._episodes, self._num_timesteps = parts, episodes, num_timesteps
            self._counts = Counts(**{name: int(value) for name, value in state["counts"].items()})
            window = self._arguments["metrics_num_episodes_for_smoothing"]
            self._metrics = ReplayMetrics(window, self._counts, Scope(True), self._logger)


def _times(episode: MultiAgentEpisode, agent: Any) -> tuple[np.ndarray, int]:
    """``(env steps at which an agent's own steps in a chunk begin, env step of its last observation)``."""
    times, own = episode.env_t_to_agent_t[agent], episode.agent_episodes[agent]
    start = episode.env_t_started - times.lookback
    moments = {t: start + moment for moment, t in enumerate(times.data) if t != SKIPPED}
    return np.array([moments[t] for t in range(own.t_started, own.t)], np.int64), moments[own.t]


def _restored(values: Mapping[str, Any]) -> EpisodeOfAgents:
    """The inverse of what `get_state` says of an episode."""
    agents = {
        of["agent_id"]: AgentSteps(of["module_id"], of["episode_id"], np.array(of["begins"], np.int64), int(of["seen"]))
        for of in values["agents"]
    }
    first, last = int(values["first"]), int(values["last"])
    return EpisodeOfAgents(first, last, bool(values["is_terminated"]), bool(values["is_truncated"]), agents)
