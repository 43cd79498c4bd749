"""EpisodeReplayBuffer: uniform replay of transitions and sequences from episodes, or from recorded blocks (T steps of B
environments).
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_stack.checkpoints.checkpointable import Checkpointable, Parts, selected
from jaxrl_stack.core.columns import NOT_MODEL_OUTPUTS, STEP_COLUMNS, Columns
from jaxrl_stack.episodes.segments import Segments, segments
from jaxrl_stack.episodes.single_agent_episode import IDENTITY, SingleAgentEpisode
from jaxrl_stack.ops.returns import clipped_rewards
from jaxrl_stack.replay import arithmetic, rllib_forms
from jaxrl_stack.replay.arithmetic import N_STEP, WEIGHTS
from jaxrl_stack.replay.episode_records import (
    STREAM_FIELDS,
    BlockStream,
    Counts,
    Record,
    packed_records,
    unpacked_records,
)
from jaxrl_stack.replay.frame_store import LINK_BYTES, REMEDY, FrameStore, StoredFrames, longer, map_arrays
from jaxrl_stack.replay.replay_metrics import ReplayMetrics
from jaxrl_stack.utils.interrupts import deferred_interrupt
from jaxrl_stack.utils.memory import MemoryEstimate, available_host_bytes, require_memory, space_bytes
from jaxrl_stack.utils.nested import batch, take, tree_leaves
from jaxrl_stack.utils.seeds import generator_state, set_generator_state

if TYPE_CHECKING:
    import gymnasium as gym

BATCH_INDEXES = "batch_indexes"
"""Column of `sample_batch` and `sample_sequences`: what `update_priorities` takes, int64; it stays on the host."""


class EpisodeReplayBuffer(Checkpointable):
    """Replay buffer of episodes and chunks of episodes, with uniform sampling of steps.

    * Chunks of an episode are joined by its id. Capacity counts steps. The oldest finished episode is evicted as a
      whole; an unfinished episode loses only as many of its oldest steps as needed.
    * Every observation is stored once, in its own dtype, in preallocated arrays.
    * No item crosses a reset. An n-step window stops at the end of its episode, or at the last known step of a
      running one; its length is then shorter. After a truncation or in an unfinished episode, the window bootstraps
      from the observation after it with ``gamma ** n_step``; after a termination it does not.

    Args:
        capacity: Largest number of steps.
        batch_size_B: Number of items of a sample, if a call of `sample` does not set it.
        batch_length_T: Length of the rows of `sample` without `sample_episodes`.
        metrics_num_episodes_for_smoothing: Number of calls over which `get_metrics` averages.
        observation_space: Space of the stored observations. With it, memory is estimated immediately instead of with
            the first data, and sampled episodes have this space. None: taken from the first episodes.
        action_space: Space of the stored actions, used in the same way.
        extra_columns: Names of the module outputs to store per step, if episodes have them; None for all.
        store_infos: Whether infos are stored.
        num_frames: Number of frames in an added observation, stacked along the last axis, the newest last; the other
            frames belong to the steps before. With more than 1, one frame is stored per step, and samples have the
            whole observations again, bit for bit.
        seed: Seed of the random numbers. Equal seeds make equal samples; None takes one from the system.

    Attributes:
        rng: The NumPy generator.

    Raises:
        ValueError: If an argument is out of range, or memory cannot hold the capacity.
    """

    def __init__(
        self,
        capacity: int = 10000,
        *,
        batch_size_B: int = 16,
        batch_length_T: int = 64,
        metrics_num_episodes_for_smoothing: int = 100,
        observation_space: gym.Space | None = None,
        action_space: gym.Space | None = None,
        extra_columns: Collection[str] | None = None,
        store_infos: bool = True,
        num_frames: int = 1,
        seed: int | None = None,
    ):
        self.capacity = _at_least(1, "capacity", capacity)
        self.batch_size_B = _at_least(1, "batch_size_B", batch_size_B)
        self.batch_length_T = _at_least(1, "batch_length_T", batch_length_T)
        self._window = _at_least(1, "metrics_num_episodes_for_smoothing", metrics_num_episodes_for_smoothing)
        if isinstance(extra_columns, str):
            raise ValueError(f"extra_columns={extra_columns!r} must be a list of column names, or None for all.")
        self.observation_space = observation_space
        self.action_space = action_space
        self._extra_columns = None if extra_columns is None else frozenset(extra_columns)
        self._store_infos = store_infos
        self.num_frames = _at_least(1, "num_frames", num_frames)
        self._seed = seed
        self.rng = np.random.default_rng(seed)
        estimate = self.memory_estimate()
        if estimate is not None:
            require_memory(estimate, available_host_bytes(), where="are free on this machine", remedy=REMEDY)
        self._forget()

    # Whether `sample` gives episodes without being asked for them.
    _only_episodes = False

    def _forget(self) -> None:
        """Empties the replay buffer and resets its counts."""
        self._frames: FrameStore | StoredFrames = FrameStore(self.capacity, self.num_frames)
        self._infos: dict[int, dict] = {}
        self._records: dict[int, Record] = {}
        self._counts = Counts()
        self._by_id: dict[str, Record] = {}
        self._streams: dict[Hashable, BlockStream] = {}
        # The steps in a row without gaps, and where in it every row is: uniform draws take one random number each.
        self._items = np.zeros(0, np.int32)
        self._places = np.zeros(0, np.int32)

        self._num_timesteps = 0
        self._last_sampled: np.ndarray | None = None
        self._num_resamples = 0
        self._metrics = self._new_metrics(self._counts)

    def _new_metrics(self, counts: Counts) -> ReplayMetrics:
        return ReplayMetrics(self._window, counts)

    # ----------------------------------------------------------------------------------------------------------- sizes

    def __len__(self) -> int:
        """Number of steps in the buffer."""
        return self._num_timesteps

    def get_num_episodes(self, module_id: str | None = None) -> int:
        """Number of episodes in the buffer, including running ones. `module_id` has no effect in a single-agent
        buffer.
        """
        return len(self._records)

    def get_num_episodes_evicted(self, module_id: str | None = None) -> int:
        """Total number of evicted episodes."""
        return self._counts.evicted_episodes

    def get_num_timesteps(self, module_id: str | None = None) -> int:
        """Number of steps in the buffer."""
        return self._num_timesteps

    @property
    def sampled_timesteps(self) -> int:
        """Total number of sampled steps."""
        return self._counts.sampled_timesteps

    def get_sampled_timesteps(self, module_id: str | None = None) -> int:
        """Total number of sampled steps."""
        return self._counts.sampled_timesteps

    def get_added_timesteps(self, module_id: str | None = None) -> int:
        """Total number of added steps."""
        return self._counts.added_timesteps

    def get_added_episodes(self, module_id: str | None = None) -> int:
        """Total number of added episodes; an episode in several chunks counts once."""
        return self._counts.added_episodes

    def get_metrics(self) -> dict[str, Any]:
        """Returns the metrics of the replay buffer since the previous call, for `MetricsLogger.aggregate`. The metrics
        have RLlib's names.
        """
        return self._metrics.reduce()

    def memory_estimate(self) -> MemoryEstimate | None:
        """Estimated memory of the full buffer without module outputs; None if the observation or action space is
        unknown.
        """
        if self.observation_space is None or self.action_space is None:
            return None
        per_step = {
            Columns.OBS: space_bytes(self.observation_space) // self.num_frames,
            Columns.ACTIONS: space_bytes(self.action_space),
            Columns.REWARDS: np.dtype(np.float32).itemsize,
            **dict.fromkeys((Columns.TERMINATEDS, Columns.TRUNCATEDS), np.dtype(np.bool_).itemsize),
            "links": LINK_BYTES,
            **self._bookkeeping(),
        }
        return MemoryEstimate.of_rows("replay buffer", {"transitions": self.capacity}, per_step)

    @property
    def episodes(self) -> list[SingleAgentEpisode]:
        """Stored episodes, oldest first, rebuilt with every access; look-back is not stored."""
        chains = [self._store.walk(record.first) for record in self._records.values()]
        return [rllib_forms.episode(self, np.append(steps, np.int32(last)), 0, True) for steps, last in chains]

    # ---------------------------------------------------------------------------------------------------------- adding

    def add(self, episodes: Sequence[SingleAgentEpisode] | SingleAgentEpisode) -> None:
        """Copies episodes, or chunks of episodes, into the buffer, but not the steps in their lookback buffers.

        Args:
            episodes: One, or several in the order in which they were sampled.

        Raises:
            ValueError: If a chunk does not continue the episode of its id, or its data does not match the stored data.
                The episodes before it are then in the buffer.
        """
        for episode in [episodes] if isinstance(episodes, SingleAgentEpisode) else episodes:
            if not isinstance(episode, SingleAgentEpisode):
                raise TypeError(
                    f"add() takes SingleAgentEpisodes, not {type(episode).__name__}. For arrays, call add_block()."
                )
            if len(episode):
                self._add_episode(episode)
        self._note_added()

    def _add_episode(self, episode: SingleAgentEpisode) -> None:
        record = self._by_id.get(episode.id_)
        if record is not None:
            t = int(self._store.t[record.last])
            check_continues(episode.id_, "t=", episode.t_started, t, is_running=record.is_running)
        # Of an episode that is longer than the buffer, the last steps stay.
        skipped = self._excess(len(episode))
        size = len(episode) - skipped
        own = slice(skipped, None)
        observations = _rows(episode.get_observations(own))
        flags = np.zeros((2, size), bool)
        flags[:, -1] = episode.is_terminated, episode.is_truncated
        steps = {
            Columns.OBS: take(observations, slice(0, -1)),
            Columns.ACTIONS: _rows(episode.get_actions(own)),
            Columns.REWARDS: _rows(episode.get_rewards(own)),
            Columns.TERMINATEDS: flags[0],
            Columns.TRUNCATEDS: flags[1],
        }
        extras = {
            name: _rows(episode.get_extra_model_outputs(name, own))
            for name in episode.extra_model_outputs
            if self._keeps(name)
        }
        tails = take(observations, slice(-1, None))
        fitted = self._store.fit(steps, tails, extras, self._bookkeeping())
        if self.observation_space is None:
            self.observation_space = episode.observation_space
        if self.action_space is None:
            self.action_space = episode.action_space

        self._make_room(size)
        # The part that was here may have been evicted just now.
        record = self._by_id.get(episode.id_)
        is_new = record is None
        if is_new:
            whose = {name: getattr(episode, name) for name in IDENTITY}
            record = Record(self._counts.next_number, first=-1, last=-1, is_running=True, **whose)
        step_rows, tail_rows = self._write(
            fitted,
            lengths=np.array([size]),
            heads=np.array([record.last]),
            first_t=np.array([episode.t_started + skipped]),
            owners=np.array([record.number]),
        )
        if is_new:
            record.first = int(step_rows[0])
            self._register(record)
            self._by_id[record.id_] = record
        record.last = int(tail_rows[0])
        record.is_running = not episode.is_done
        record.custom_data |= episode.custom_data
        if self._store_infos:
            frames = itertools.chain(step_rows.tolist(), tail_rows.tolist())
            for row, info in zip(frames, episode.get_infos(own), strict=True):
                if info:
                    self._infos[row] = info

    def add_block(
        self,
        columns: Mapping[str, Any],
        *,
        stream: Hashable = 0,
        serial: int | None = None,
        starts: np.ndarray | None = None,
    ) -> None:
        """Adds a block to the replay buffer: T steps of B environments as arrays, without building episodes.

        Args:
            columns: ``{column: pytree [T, B, ...]}``: obs, actions, rewards, terminateds, truncateds; final_obs, read
                where an episode ends and in the last valid row; loss_mask (optional), False in rows in which an
                environment was only reset, and after its last step. All other columns are module outputs.
            stream: Id of these environments. Blocks with the same id continue each other, in the order in which they
                are added; a block with another number of environments continues nothing.
            serial: Number of the block in its stream. If it does not follow the number of the last block, no episode
                continues.
            starts: bool ``[B]``, whether an environment was reset before row 0. None: an unfinished episode continues
                if the observation in row 0 equals the last observation of the previous block, bit for bit. If a
                connector has changed it since (moving statistics), windows stop between the blocks.

        Raises:
            ValueError: If the block has more steps than the buffer, its data does not match the stored data, or a row
                that is only a reset is in the middle of an episode.
        """
        self._add_block(columns, stream, serial, starts)
        self._note_added()

    def _add_block(
        self, columns: Mapping[str, Any], stream: Hashable, serial: int | None, starts: np.ndarray | None
    ) -> tuple[Segments, np.ndarray]:
        """Adds a block (T steps of B environments) to the replay buffer, without logging metrics; see `add_block`.

        Returns:
            The segments of the block, and the numbers of their episodes in the buffer, int ``[K]``.
        """
        mask = columns.get(Columns.LOSS_MASK)
        valid = None if mask is None else np.asarray(mask, bool)
        found = segments(columns[Columns.TERMINATEDS], columns[Columns.TRUNCATEDS], mask=valid)
        num_steps, num_envs = found.shape
        size = num_steps * num_envs if valid is None else int(np.count_nonzero(valid))
        if self._excess(size):
            raise block_too_large(size, "steps", self.capacity)
        if valid is not None:
            _check_not_torn(found)
        envs, times, lengths = found.env, found.start, found.length
        is_in_order = valid is None and 1 in found.shape

        # From here on environment by environment, time running fastest.
        def in_order(leaf: Any) -> np.ndarray:
            if is_in_order:
                return np.asarray(leaf).reshape(size, *leaf.shape[2:])
            swapped = np.asarray(leaf).swapaxes(0, 1)
            return swapped.reshape(size, *swapped.shape[2:]) if valid is None else swapped[valid.T]

        last = found.last
        fitted = self._store.fit(
            {name: map_arrays(in_order, columns[name]) for name in STEP_COLUMNS},
            map_arrays(lambda leaf: np.asarray(leaf)[last], columns[Columns.FINAL_OBS]),
            {
                name: map_arrays(in_order, value)
                for name, value in columns.items()
                if name not in NOT_MODEL_OUTPUTS and self._keeps(name)
            },
            self._bookkeeping(),
        )

        running = self._streams.get(stream)
        if running is not None and len(running.last) != num_envs:
            # Other environments, as after a restore with another number: none of them goes on.
            self._end(running.number[running.last >= 0])
            running = None
        if running is None:
            numbers, ages = np.zeros((2, num_envs), np.int64)
            running = BlockStream(np.full(num_envs, -1, np.int32), numbers, ages, None)
        if starts is None:
            is_new = (running.last >= 0) & ~self._same_frames(running.last, take(columns[Columns.OBS], 0))
        else:
            is_new = np.asarray(starts, bool)
        if valid is not None:
            is_new = np.where(valid.any(axis=0), is_new | ~valid[0], False)
        if serial is not None and running.serial is not None and serial != running.serial + 1:
            is_new = np.ones(num_envs, bool)
        if np.count_nonzero(is_new):
            self._end(running.number[is_new & (running.last >= 0)])
            running.last[is_new], running.t[is_new] = -1, 0
        running.serial = serial
        self._streams[stream] = running
        self._make_room(size)

        # The steps that were here may have been evicted just now.
        heads, first_t, owners = running.last[envs], running.t[envs], running.number[envs]
        if len(envs):
            if np.count_nonzero(times):
                heads[times > 0], first_t[times > 0] = -1, 0
            (news,) = (heads < 0).nonzero()
            if len(news):
                owners[news] = self._counts.next_number + np.arange(len(news))
            step_rows, tail_rows = self._write(fitted, lengths=lengths, heads=heads, first_t=first_t, owners=owners)
            for chain in news.tolist():
                number, row = int(owners[chain]), int(step_rows[lengths[:chain].sum()])
                where = (stream, int(envs[chain]))
                self._register(Record(number, f"stream-{number}", row, -1, True, where))
            first_t += lengths
            is_over = found.has_ended
            if np.count_nonzero(is_over):
                self._end(owners[is_over])
                tail_rows[is_over], first_t[is_over] = -1, 0
            # Of several episodes of an environment the last one counts: assignments are done in order.
            running.last[envs], running.t[envs], running.number[envs] = tail_rows, first_t, owners
        return found, owners

    def _same_frames(self, rows: np.ndarray, observations: Any) -> np.ndarray:
        """Compares each environment's stored observation with the environment's new observation.

        `rows` contains the rows of the stored observations, -1 for none. Returns bool ``[B]``: True if the two
        observations are equal, False for row -1.
        """
        same = rows >= 0
        stored = self._store.take(Columns.OBS, rows)
        for left, right in zip(tree_leaves(stored), tree_leaves(observations), strict=True):
            same &= (left == np.asarray(right)).reshape(len(rows), -1).all(axis=1)
        return same

    def _end(self, numbers: np.ndarray) -> None:
        """Marks unfinished episodes in the buffer as ended, so that blocks added later do not continue them."""
        for number in numbers.tolist():
            record = self._records[number]
            record.is_running, record.stream = False, None

    def _write(self, fitted: tuple[Any, Any, Any], **chains: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        step_rows, tail_rows = self._store.insert(*fitted, **chains)
        self._add_items(step_rows)
        self._num_timesteps += len(step_rows)
        self._counts.added_timesteps += len(step_rows)
        return step_rows, tail_rows

    def _register(self, record: Record) -> None:
        self._records[record.number] = record
        self._counts.next_number = record.number + 1
        self._counts.added_episodes += 1

    def _keeps(self, name: str) -> bool:
        return self._extra_columns is None or name in self._extra_columns

    def _note_added(self) -> None:
        self._metrics.added(num_episodes_stored=len(self._records), num_steps_stored=self._num_timesteps)

    # -------------------------------------------------------------------------------------------------------- eviction

    def _excess(self, num_steps: int) -> int:
        """Number of steps by which `num_steps` exceeds the capacity of the buffer; at least 0."""
        return max(0, num_steps - self.capacity)

    def _make_room(self, size: int) -> None:
        self._store.own()
        while (excess := self._num_timesteps + size - self.capacity) > 0:
            # An episode that still runs loses as many of its oldest steps as are too many.
            record = self._records[self._counts.first_number]
            self._evict(record, excess if record.is_running else None)

    def _evict(self, record: Record, num_steps: int | None = None) -> None:
        """Evicts the first `num_steps` steps of an episode. If `num_steps` is None or no step would remain, evicts the
        whole episode.
        """
        store = self._store
        steps, last = store.walk(record.first, num_steps)
        self._remove_items(steps)
        if store.next[last] >= 0:
            rows = steps
            record.first = last
            store.begin_at(last)
            self._begins_at(last)
        else:
            rows = np.append(steps, np.int32(last))
            del self._records[record.number]
            self._counts.first_number += 1
            self._counts.evicted_episodes += 1
            if record.stream is not None:
                stream, env = record.stream
                self._streams[stream].last[env] = -1
            if record.last >= 0:
                del self._by_id[record.id_]
        store.free(rows)
        if self._infos:
            for row in rows.tolist():
                self._infos.pop(row, None)
        self._num_timesteps -= len(steps)
        self._counts.evicted_timesteps += len(steps)

    # ----------------------------------------------------------------------------------- which items there are (hooks)

    def _bookkeeping(self) -> dict[str, int]:
        """Memory that this class needs per stored row in addition to the data, for example for the sampling index:
        ``{name: bytes}``. Memory checks use these numbers.
        """
        return {"items": 8}

    def _add_items(self, rows: np.ndarray) -> None:
        """Adds newly stored steps to the sampling index, so that they can be drawn. `rows` are the steps' rows in the
        store.
        """
        if len(self._items) < self._store.num_rows:
            self._items, self._places = longer((self._items, self._places), self._store.num_rows)
        start = self._num_timesteps
        self._items[start : start + len(rows)] = rows
        self._places[rows] = np.arange(start, start + len(rows))

    def _remove_items(self, rows: np.ndarray) -> None:
        """Removes steps, given by their rows in the store, from the sampling index, so that they are no longer drawn.
        Called before the steps are evicted.
        """
        size = self._num_timesteps - len(rows)
        places = self._places[rows]
        is_gone = np.zeros(len(rows), bool)
        is_gone[places[places >= size] - size] = True
        # Those at the end that stay move to where others leave holes.
        movers = self._items[size : self._num_timesteps][~is_gone]
        holes = places[places < size]
        self._items[holes] = movers
        self._places[movers] = holes

    def _get_items(self) -> dict[str, Any]:
        """Returns the sampling index in the form that is saved with the buffer.

        The index contains the rows of all n stored steps, ``{"rows": int32 [n]}``. Subclasses add values, such as the
        priorities of these steps.
        """
        return {"rows": self._items[: self._num_timesteps].copy()}

    def _restored_items(self, items: Mapping[str, Any], store: StoredFrames) -> dict[str, Any]:
        """Rebuilds the sampling index from a result of `_get_items`.

        Returns the index as attributes of the buffer, ``{attribute: value}``. `store` is the saved memory that contains
        the indexed steps.
        """
        rows = items["rows"]
        own, places = np.zeros((2, store.num_rows), np.int32)
        own[: len(rows)] = rows
        places[rows] = np.arange(len(rows))
        return {"_items": own, "_places": places}

    def _begins_at(self, row: int) -> None:
        """Hook that runs after the first steps of an episode were evicted.

        The remaining steps begin at the stored row `row`. The hook does nothing in this class; subclasses override it.
        """

    def _draw(self, number: int) -> np.ndarray:
        """Draws random steps; returns their rows ``[number]`` in the buffer's memory."""
        return self._draw_starts(number, 1)

    def _draw_starts(self, number: int, length: int) -> np.ndarray:
        """Draws the first steps of sequences of at most `length` steps (without burn-in).

        Returns the rows ``[number]`` of these steps in the buffer's memory. The first step of an episode is `length`
        times as likely as another step, because it also stands for sequences that begin before the episode.
        """
        more, num_steps = length - 1, self._num_timesteps
        drawn = self.rng.integers(num_steps + more * len(self._records), size=number)
        is_more = drawn >= num_steps
        rows = self._items[np.where(is_more, 0, drawn)]
        if np.count_nonzero(is_more):
            rows[is_more] = self._first_rows((drawn[is_more] - num_steps) // more)
        return rows

    def _first_rows(self, places: np.ndarray) -> list[int]:
        """Returns the stored rows of the first steps of episodes. `places` selects the episodes by age; 0 is the
        oldest.
        """
        # Episodes are numbered in the order in which they are evicted: there are no gaps.
        return [self._records[number].first for number in (self._counts.first_number + places).tolist()]

    def _importance_weights(self, rows: np.ndarray, beta: float) -> np.ndarray:
        """Importance sampling weights of the drawn steps in `rows`, float32 ``[N]``, at most 1; all 1 here, because
        steps are drawn uniformly.
        """
        return np.ones(len(rows), np.float32)

    # -------------------------------------------------------------------------------------------------------- sampling

    def sample(
        self,
        num_items: int | None = None,
        *,
        batch_size_B: int | None = None,
        batch_length_T: int | None = None,
        n_step: int | tuple[int, int] | None = None,
        beta: float = 0.0,
        gamma: float = 0.99,
        include_infos: bool = False,
        include_extra_model_outputs: bool = False,
        sample_episodes: bool = False,
        to_numpy: bool = False,
        lookback: int = 0,
        min_batch_length_T: int = 0,
    ) -> Any:
        """Samples steps in the formats of RLlib's replay buffers.

        If `sample_episodes` is True, returns a list of episodes (transitions or sequences), otherwise a dict of columns
        ``[B, T, ...]`` whose rows may cross episode boundaries. `sample_batch` and `sample_sequences`, which return
        dicts of columns, are faster.

        Without `sample_episodes`: rows of consecutive steps, ``{"obs", "actions", "rewards", "is_first", "is_last",
        "is_terminated", "is_truncated"}``, each ``[B, T, ...]``. A row starts at a random step. If an episode ends
        within a row, the row continues with the start of another episode. ``rewards[t]`` is the reward that led to
        ``obs[t]`` (0 at the start of an episode), ``actions[t]`` is the action taken at ``obs[t]``; at the last
        observation of an episode, the last action is repeated.

        With `sample_episodes`: a list of episodes.

        * `batch_length_T` None, 0 or 1: n-step transitions, episodes of one step with the first and the last
          observation of the window, its first action, and the discounted sum of its rewards.
        * More: sequences of at most `batch_length_T` steps, until they have `num_items` steps in total. They have their
          module outputs and up to `lookback` earlier steps.

        All have the extra model outputs "n_step" (steps of the window) and "weights".

        Args:
            num_items: Number of transitions, of rows, or of steps in sequences.
            batch_size_B: Another name of `num_items`.
            batch_length_T: Length of rows or sequences, see above.
            n_step: Steps of a window; ``(low, high)`` draws one per item, `high` excluded. 1 if None.
            beta: Exponent of importance weights; no effect on uniform draws.
            gamma: Discount.
            include_infos: Whether the episodes have infos.
            include_extra_model_outputs: Whether transitions have the module outputs of their first step.
            sample_episodes: Whether to return a list of episodes, see above.
            to_numpy: Whether the episodes of transitions hold arrays; episodes of sequences always do.
            lookback: Steps before each sequence, see above.
            min_batch_length_T: Draw only steps that are followed by at least this many further steps of their episode.

        Raises:
            ValueError: If the buffer is empty, an argument is out of range, or nothing is long enough.
        """
        number = self._num_items(num_items, batch_size_B)
        if not (sample_episodes or self._only_episodes):
            return rllib_forms.rows_of_frames(
                self, number, _at_least(1, "batch_length_T", batch_length_T or self.batch_length_T)
            )
        if batch_length_T is None:
            batch_length_T = self.batch_length_T if self._only_episodes else 0
        batch_length_T = _at_least(0, "batch_length_T", batch_length_T)
        lookback = _at_least(0, "lookback", lookback)
        min_batch_length_T = _at_least(0, "min_batch_length_T", min_batch_length_T)
        if batch_length_T <= 1:
            return rllib_forms.transitions(
                self,
                number,
                n_step=1 if n_step is None else n_step,
                gamma=gamma,
                beta=beta,
                min_steps=min_batch_length_T,
                include_infos=include_infos,
                include_extras=include_extra_model_outputs,
                to_numpy=to_numpy,
            )
        if n_step not in (None, 1):
            raise ValueError(
                f"n_step={n_step!r} cannot be combined with sequences (batch_length_T={batch_length_T}): use n_step=1."
            )
        return rllib_forms.sequences(
            self,
            number,
            length=batch_length_T,
            lookback=lookback,
            beta=beta,
            min_steps=min_batch_length_T,
            include_infos=include_infos,
        )

    def sample_batch(
        self,
        num_items: int | None = None,
        *,
        n_step: int | tuple[int, int] = 1,
        gamma: float = 0.99,
        beta: float = 0.0,
        clip_rewards: bool | float | None = None,
        extra_columns: Iterable[str] = (),
    ) -> dict[str, Any]:
        """Samples n-step transitions as a dict of columns: ``{column: pytree [N, ...]}``.

        Args:
            num_items: N; `batch_size_B` if None.
            n_step: Steps of a window; ``(low, high)`` draws one per item, `high` excluded.
            gamma: Discount.
            beta: Exponent of importance weights; no effect on uniform draws.
            clip_rewards: None or False: rewards are summed as they are stored. True: their signs are summed. A number
                c: each reward is first clipped to ``[-c, c]``.
            extra_columns: Stored outputs of the module to add, from the first step of each window.

        Returns:
            ``{column: pytree [N, ...]}``: obs and actions of the first step; rewards, float32, discounted sums over the
            window; new_obs, terminateds and truncateds after its last step; n_step, float32, its actual steps, so that
            a bootstrap value weighs ``gamma ** n_step * (1 - terminateds)``; weights, float32; batch_indexes,
            int64, for `update_priorities`. After a terminated step, new_obs may be zeros.

        Raises:
            ValueError: If the buffer is empty, or an argument is out of range.
        """
        rows = self._draw_items(self._num_items(num_items, None), 0)
        return self._transitions(rows, n_step, gamma, beta, clip_rewards, extra_columns)

    def _transitions(
        self,
        rows: np.ndarray,
        n_step: int | tuple[int, int] = 1,
        gamma: float = 0.99,
        beta: float = 0.0,
        clip_rewards: bool | float | None = None,
        extra_columns: Iterable[str] = (),
    ) -> dict[str, Any]:
        """Builds the columns that `sample_batch` returns for the drawn steps in `rows`."""
        store, number = self._store, len(rows)
        window = store.windows(rows, *self._n_steps(n_step, number), gamma, clip_rewards)
        self._note_sampled(rows, number, int(window.lengths.sum()) / number)
        return {
            Columns.OBS: store.take(Columns.OBS, rows),
            Columns.ACTIONS: store.take(Columns.ACTIONS, rows),
            Columns.REWARDS: window.rewards,
            Columns.NEXT_OBS: store.take(Columns.OBS, window.new),
            Columns.TERMINATEDS: store.take(Columns.TERMINATEDS, window.last),
            Columns.TRUNCATEDS: store.take(Columns.TRUNCATEDS, window.last),
            N_STEP: window.lengths.astype(np.float32),
            WEIGHTS: self._importance_weights(rows, beta),
            BATCH_INDEXES: self._last_sampled,
            **{name: take(store.extra(name), rows) for name in extra_columns},
        }

    def sample_sequences(
        self,
        num_items: int | None = None,
        *,
        batch_length_T: int,
        burn_in_len: int = 0,
        n_step: int | tuple[int, int] = 1,
        gamma: float = 0.99,
        beta: float = 0.0,
        clip_rewards: bool | float | None = None,
        state_column: str | None = None,
        extra_columns: Iterable[str] = (),
    ) -> dict[str, Any]:
        """Samples sequences as a dict of columns. Columns with a value per step are ``[N, L, ...]``, with the fixed
        length ``L = burn_in_len + batch_length_T``.

        A sequence consists of a random step, up to `batch_length_T - 1` steps after it, and up to `burn_in_len` steps
        before it, all of one episode. Zeros pad it on the right. The first step of an episode is drawn
        `batch_length_T` times as often as another step, with 0 to `batch_length_T - 1` steps after it, so that losses
        see every step equally often.

        Args:
            num_items: N; `batch_size_B` if None.
            batch_length_T: Maximum number of steps that losses see.
            burn_in_len: Maximum number of earlier steps, which only update the recurrent state and have no loss.
            n_step: As in `sample_batch`, like `gamma`, `beta` and `clip_rewards`; a range draws one per sequence.
            gamma: Discount.
            beta: Exponent of importance weights.
            clip_rewards: Clipping of rewards, as in `sample_batch`.
            state_column: Stored column with the module's recurrent state: "state_in", the state before each step, or
                a module output with the state after each step ("state_out"). Adds the column state_in, ``[N, ...]``:
                the state before the first step of each sequence; with an output, zeros at the start of an episode.
            extra_columns: Stored outputs of the module to add.

        Returns:
            ``{column: pytree [N, L, ...]}``: obs, actions and new_obs of single steps; rewards, terminateds, truncateds
            and n_step as in `sample_batch`, of windows that begin at each step and stop where the sequence does; the
            extra columns, and loss_mask: True in steps that are neither burn-in nor filled up. ``[N]``: seq_lens,
            int32, steps, burn-in included; weights; batch_indexes; state_in.

        Raises:
            ValueError: If the buffer is empty, or an argument is out of range.
        """
        number = self._num_items(num_items, None)
        length = _at_least(1, "batch_length_T", batch_length_T)
        burn_in_len = _at_least(0, "burn_in_len", burn_in_len)
        store = self._store
        rows = self._draw_starts(number, length)
        self._last_sampled, self._num_resamples = self._indexes(rows), 0
        is_first, start = store.prev[rows] < 0, self.rng.integers(length, size=number)
        before, num_before = store.chain(rows, burn_in_len, backwards=True)
        heads = before[np.arange(number), num_before]
        frames, sizes = store.chain(heads, burn_in_len + length)
        sizes = np.minimum(sizes, num_before + arithmetic.num_learned(np, is_first, start, length))
        is_there = np.arange(burn_in_len + length) < sizes[:, None]
        self._note_sampled(rows, int((sizes - num_before).sum()), 1.0)

        def filled(taken: Any) -> Any:
            map_arrays(lambda leaf: leaf.__setitem__(~is_there, 0), taken)
            return taken

        steps = frames[:, :-1]
        wanted, longest = self._n_steps(n_step, number)
        rewards, lengths, last = arithmetic.windows_in_sequences(
            np,
            clipped_rewards(store.columns[Columns.REWARDS][steps], clip_rewards),
            np.array([gamma**step for step in range(longest)], np.float32),
            is_there,
            wanted,
        )
        out = {name: filled(store.take(name, steps)) for name in (Columns.OBS, Columns.ACTIONS)}
        out |= {Columns.REWARDS: rewards, N_STEP: lengths.astype(np.float32)}
        last = np.take_along_axis(steps, last, axis=1)
        out |= {name: filled(store.take(name, last)) for name in (Columns.TERMINATEDS, Columns.TRUNCATEDS)}
        out[Columns.NEXT_OBS] = filled(store.take(Columns.OBS, frames[:, 1:]))
        out |= {name: filled(take(store.extra(name), steps)) for name in extra_columns}
        if state_column == Columns.STATE_IN:
            out[Columns.STATE_IN] = take(store.extra(state_column), heads)
        elif state_column is not None:
            before = store.prev[heads]
            state = take(store.extra(state_column), before)
            map_arrays(lambda leaf: leaf.__setitem__(before < 0, 0), state)
            out[Columns.STATE_IN] = state
        return {
            **out,
            **arithmetic.sequence(np, is_there, num_before),
            WEIGHTS: self._importance_weights(rows, beta),
            BATCH_INDEXES: self._indexes(rows),
        }

    def _num_items(self, num_items: int | None, batch_size_B: int | None) -> int:
        if num_items is not None and batch_size_B is not None:
            raise ValueError(
                f"num_items={num_items} and batch_size_B={batch_size_B} have the same meaning: give one of them."
            )
        if not self._num_timesteps:
            raise ValueError("The replay buffer is empty: add episodes before you sample.")
        given = num_items if num_items is not None else batch_size_B
        return self.batch_size_B if given is None else _at_least(1, "num_items", given)

    def _draw_items(self, number: int, min_steps: int) -> np.ndarray:
        """Draws random steps that have at least `min_steps` later steps in their episode; returns their rows
        ``[number]`` in the buffer's memory.
        """
        rows = self._draw(number)
        self._num_resamples = 0
        if min_steps:
            is_long = self._store.has_steps(rows, min_steps)
            if not is_long.all() and not self._store.has_steps(self._store.steps(), min_steps).any():
                raise ValueError(
                    f"min_batch_length_T={min_steps}: no episode in the replay buffer has more than {min_steps} "
                    f"steps. Add longer episodes first, or lower min_batch_length_T."
                )
            while not is_long.all():
                short = np.flatnonzero(~is_long)
                self._num_resamples += len(short)
                rows[short] = self._draw(len(short))
                is_long[short] = self._store.has_steps(rows[short], min_steps)
        self._last_sampled = self._indexes(rows)
        return rows

    def _n_steps(self, n_step: Any, size: int) -> tuple[np.ndarray | None, int]:
        """Draws the length of each n-step window if `n_step` is a range. Returns ``(lengths, largest possible
        length)``; the lengths are None if only one length is possible.
        """
        low, high = arithmetic.n_step_range(n_step)
        return (self.rng.integers(low, high + 1, size=size) if low < high else None), high

    def _indexes(self, rows: np.ndarray) -> np.ndarray:
        """Identifiers of drawn steps, int64 ``[N]``: the row, and how often the row was evicted, so that an identifier
        expires when another step takes the row.
        """
        return self._store.generation[rows].astype(np.int64) << 32 | rows

    def _note_sampled(self, rows: np.ndarray, num_steps: int, n_step: float | None) -> None:
        self._counts.sampled_timesteps += num_steps
        self._metrics.sampled(
            num_steps=num_steps,
            num_unique_steps=len(set(rows.tolist())),
            num_unique_episodes=len(set(self._store.owner[rows].tolist())),
            num_resamples=self._num_resamples,
            n_step=n_step,
        )

    # ----------------------------------------------------------------------------------------------------------- state

    def get_ctor_args_and_kwargs(self) -> tuple[tuple, dict[str, Any]]:
        """Constructor arguments of an empty replay buffer with the same settings."""
        return (), {
            "capacity": self.capacity,
            "batch_size_B": self.batch_size_B,
            "batch_length_T": self.batch_length_T,
            "metrics_num_episodes_for_smoothing": self._window,
            "observation_space": self.observation_space,
            "action_space": self.action_space,
            "extra_columns": None if self._extra_columns is None else sorted(self._extra_columns),
            "store_infos": self._store_infos,
            "num_frames": self.num_frames,
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
        parts = {"data": self._get_data, "rng": lambda: generator_state(self.rng)}
        names = selected(list(parts), components, not_components, type(self).__name__)
        return {name: parts[name]() for name in names}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores the replay buffer from a state that `get_state` returned.

        If `state` does not contain the data or the state of the random generator, this part of the buffer does not
        change.

        Raises:
            ValueError: If it does not fit: it has more steps than the capacity, or other random numbers. Nothing has
                changed then.
        """
        restored = self._restored_data(state["data"]) if "data" in state else {}
        if "rng" in state:
            set_generator_state(self.rng, state["rng"])
        vars(self).update(restored)

    def _state_to_go_back_to(self) -> dict[str, Any]:
        # `set_state` takes over all or nothing; one of the user's may do more after it, which may fail.
        return {} if type(self).set_state is EpisodeReplayBuffer.set_state else self.get_state()

    @property
    def _store(self) -> FrameStore:
        """Memory of the stored episodes, a `FrameStore`. The first access after `set_state` allocates the restored
        arrays.
        """
        if isinstance(self._frames, StoredFrames):
            with deferred_interrupt():
                self._frames = self._frames.opened()
        return self._frames

    def _get_data(self) -> dict[str, Any]:
        streams = self._streams.values()
        return {
            "store": self._store.get_state(),
            "items": self._get_items(),
            "records": packed_records(list(self._records.values()), list(self._streams)),
            "streams": {"key": list(self._streams)}
            | {name: [copy.copy(getattr(stream, name)) for stream in streams] for name in STREAM_FIELDS},
            "infos": {"row": list(self._infos), "info": list(self._infos.values())},
            "counts": dataclasses.asdict(self._counts),
            "last_sampled": None if self._last_sampled is None else self._last_sampled.copy(),
        }

    def _restored_data(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Checks saved data of a buffer, a result of `_get_data` (stored episodes, sampling index and counts), and
        converts the data to attributes of this buffer, ``{attribute: value}``.
        """
        store = StoredFrames.from_state(self.capacity, data["store"], self._bookkeeping())
        steps = store.steps()
        num_steps = len(steps)
        if self._excess(num_steps):
            raise ValueError(
                f"The saved replay buffer has {num_steps} steps, but this one has capacity={self.capacity}. Create it "
                f"with capacity={num_steps} or more."
            )
        records = unpacked_records(data["records"], data["streams"]["key"])
        streams = data["streams"]
        fields = zip(*(streams[name] for name in STREAM_FIELDS), strict=True)
        running = {
            key: BlockStream(np.array(last), np.array(number), np.array(t), serial)
            for key, (last, number, t, serial) in zip(streams["key"], fields, strict=True)
        }
        counts = Counts(**{name: int(value) for name, value in data["counts"].items()})
        items = {name: np.asarray(value) for name, value in data["items"].items()}
        if not np.array_equal(np.sort(items["rows"]), steps):
            raise ValueError(
                "The saved replay buffer is damaged: the index for sampling does not match the stored steps. Restore "
                "another checkpoint."
            )

        last_sampled = data["last_sampled"]
        return {
            **self._restored_items(items, store),
            "_frames": store,
            "_streams": running,
            "_records": {record.number: record for record in records},
            "_by_id": {record.id_: record for record in records if record.last >= 0},
            "_infos": dict(zip(data["infos"]["row"], data["infos"]["info"], strict=True)),
            "_num_timesteps": num_steps,
            "_counts": counts,
            "_last_sampled": None if last_sampled is None else np.array(last_sampled),
            "_metrics": self._new_metrics(counts),
        }


def block_too_large(size: int, unit: str, capacity: int) -> ValueError:
    """Creates the ValueError for a block (T steps of B environments) with more steps than a replay buffer can hold;
    `unit` names the kind of steps.
    """
    return ValueError(
        f"A block of {size} {unit} cannot be added to a replay buffer of capacity={capacity}: raise the capacity, or "
        f"sample shorter fragments from fewer environments."
    )


def check_continues(id_: str, clock: str, start: int, end: int, *, is_running: bool) -> None:
    """Checks that a chunk continues its stored episode: the episode has not ended, and the chunk starts where the
    stored part ends.

    Args:
        id_: The episode.
        clock: The words before a time: ``"t="``, or ``"env step "``.
        start: Time at which the chunk starts.
        end: Time at which the stored part ends.
        is_running: Whether more of the episode may come.

    Raises:
        ValueError: If the chunk does not continue the episode.
    """
    if not is_running:
        raise ValueError(
            f"The chunk of episode {id_} that starts at {clock}{start} cannot be added: the stored episode with this "
            "id has already ended. Give every episode a unique id."
        )
    if start != end:
        raise ValueError(
            f"The chunk of episode {id_} starts at {clock}{start}, but in the replay buffer this episode ends at "
            f"{clock}{end}. Add the chunks of an episode in their order, each once."
        )


def _at_least(least: int, name: str, value: Any) -> int:
    if not arithmetic.is_int(value) or value < least:
        raise ValueError(f"{name}={value!r} must be an int >= {least}.")
    return int(value)


def _rows(column: Any) -> Any:
    """Converts a column of an episode to arrays ``[n, ...]``: stacks a list of n entries; returns arrays unchanged."""
    return batch(column) if isinstance(column, list) else column


def _check_not_torn(found: Segments) -> None:
    """Checks that a block (T steps of B environments) resets no environment in the middle of an episode.

    Raises:
        ValueError: If a row that is only a reset comes between two steps of an episode.
    """
    torn = (found.env[1:] == found.env[:-1]) & ~found.has_ended[:-1]
    if torn.any():
        segment = int(np.flatnonzero(torn)[0])
        env, t = int(found.env[segment]), int(found.stop[segment]) - 1
        raise ValueError(
            f"add_block() got a block (T steps of B environments) that resets environment {env} at time step {t + 1} "
            f"(loss_mask is False), but the environment's episode did not end at time step {t}. If the episode was "
            f"cut, set truncateds[{t}, {env}] = True."
        )
