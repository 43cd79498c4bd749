"""Replay buffer on one device: pure functions on a state of arrays (`ReplayState`)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_stack.core.columns import STEP_COLUMNS, Columns
from jaxrl_stack.core.squeeze import squeezed
from jaxrl_stack.ops.masks import expand, where_rows
from jaxrl_stack.ops.returns import clipped_rewards
from jaxrl_stack.replay import arithmetic, device_priorities, endings
from jaxrl_stack.replay.arithmetic import N_STEP, WEIGHTS
from jaxrl_stack.replay.device_replay_state import FinalObservations, FrameRing, ReplayState, StepLayout
from jaxrl_stack.utils.memory import MemoryEstimate, available_memory, bytes_of_shapes, require_memory

if TYPE_CHECKING:
    from jaxrl_stack.utils.devices import Device

_NUM_BEFORE = "num_before"
_STORED = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)
_READ = frozenset({*STEP_COLUMNS, Columns.FINAL_OBS})
NAMES_OF_SAMPLES = _READ | {Columns.NEXT_OBS, N_STEP, WEIGHTS, Columns.LOSS_MASK, Columns.SEQ_LENS, Columns.STATE_IN}

_OWN_FINALS_BYTES = 2**27
"""Up to so many bytes, every step keeps the observation that it led to beside its own."""

REMEDY = (
    "Lower the capacity of the replay buffer, keep observations as uint8 until they are inside the module, or use more "
    "devices."
)


@struct.dataclass
class ReplayItems:
    """Positions of drawn steps, for `DeviceReplay.update_priorities`.

    Attributes:
        rows: uint32 ``[N]``, row numbers of the steps; with masks, rows are numbered per environment.
        envs: int32 ``[N]``, environments of the steps.
    """

    rows: jax.Array
    envs: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceReplay:
    """Replay buffer on one device: the fixed settings, and pure functions of a `ReplayState`.

    * `add` takes the columns of rollouts of B environments in lockstep. Every observation is stored once, in its own
      dtype: the next_obs of a step is the obs of the next row.
    * Rollouts with a ``loss_mask`` contain agents that wait, end and return. Each of their B columns, one agent in one
      environment, fills a separate ring buffer: masked steps are not stored, and the row after a step is the agent's
      next step. The columns given to `init` decide which of the two kinds of rollouts a state takes.
    * No item crosses a reset. An n-step window stops at the end of its episode, or at the newest row; its length is
      then shorter. Unless the episode terminated, the window bootstraps from the observation after it with
      ``gamma ** n_step``, where n_step is its actual length.
    * If observations are `num_frames` frames stacked along the last axis, one frame is stored per step; samples
      contain the stacks again, bit for bit.
    * All steps in the buffer can be drawn: uniformly, or in proportion to ``priority ** alpha``.
    * To start a sequence, the first step of an episode is drawn `length` times as often as another step. Each of these
      draws has only the steps that a sequence contains if it starts 0 to ``length - 1`` steps before the episode, so
      that losses see every step equally often. The exceptions are the oldest ``length - 1`` rows, which are
      overwritten next.
    * A buffer of small observations stores a next observation with every step. A large buffer stores the final
      observations of truncated, not terminated, episodes in a separate ring buffer of `num_final_obs` slots. If the
      rows contain more such steps than slots, the oldest rows are no longer drawn, up to and including the last row
      whose final observation was overwritten: the buffer is then shorter, but samples are correct.

    All functions can be jitted, vmapped, mapped over devices, and may donate the state. The distribution of draws
    depends only on the state, and a draw only on state and key.

    Attributes:
        capacity: Maximum number of env steps on this device; every environment has ``L = capacity // num_envs`` rows.
        num_envs: B, environments on this device; for rollouts with a ``loss_mask``, agents times environments.
        batch_size: N, number of items of a sample.
        n_step: Number of steps of a window; ``(low, high)`` draws one per item, `high` excluded.
        alpha: Exponent of priorities, >= 0; None for uniform draws.
        clip_rewards: How `sample` clips the reward of every step of a window; see `ops.returns.clipped_rewards`.
        num_final_obs: S, slots for final observations of truncated episodes, at least B and at most the capacity. None:
            every step stores its next observation if all of them fit in 128 MiB. Otherwise there is one slot per 16
            steps (enough for a time limit of 16 or more), or as many slots as fit in 16 MiB if these are more.
        num_frames: Number of frames that every observation stacks along its last axis, the newest last. The other
            frames are the newest frames of the steps before it in its episode, and zeros before the first step.
        extra_columns: Other columns of rollouts to store per step, e.g. "state_in" for sequences.
        length: Maximum number of steps of a sequence that losses see, for `sample_sequences`; 1 for `sample`.
        keep_terminal_obs: Whether final observations of terminated episodes are also stored; `items.device_windows`
            needs them.

    Raises:
        ValueError: If an argument is out of range.
    """

    capacity: int
    num_envs: int
    batch_size: int
    n_step: int | tuple[int, int] = 1
    alpha: float | None = None
    clip_rewards: bool | float | None = None
    num_final_obs: int | None = None
    num_frames: int = 1
    extra_columns: tuple[str, ...] = ()
    length: int = 1
    keep_terminal_obs: bool = False

    def __post_init__(self):
        for name in ("capacity", "num_envs", "batch_size", "num_frames", "length"):
            if not arithmetic.is_int(getattr(self, name)) or getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)!r} must be an int >= 1.")
        _, high = self._n_steps
        if high > self.num_rows:
            raise ValueError(
                f"capacity={self.capacity} holds {self.num_rows} steps of each of num_envs={self.num_envs} "
                f"environments, but n_step={self.n_step!r} needs {high}. Raise the capacity or use fewer environments."
            )
        if self.capacity > 2**30:
            raise ValueError(
                f"capacity={self.capacity} (env steps per device) is above the maximum of 2**30. Lower the capacity, "
                "or use more devices."
            )
        if self.alpha is not None and not 0 <= self.alpha < math.inf:
            raise ValueError(f"alpha={self.alpha!r} must be a number >= 0, or None for uniform draws.")
        slots = self.num_final_obs
        if slots is not None and not (arithmetic.is_int(slots) and self.num_envs <= slots <= self.capacity):
            raise ValueError(
                f"num_final_obs={slots!r} must be from num_envs={self.num_envs} to capacity={self.capacity}, or None. "
                f"With a lower value, the newest steps could not always be drawn."
            )
        taken = NAMES_OF_SAMPLES.intersection(self.extra_columns) - {Columns.STATE_IN}
        if isinstance(self.extra_columns, str) or taken:
            without = f" without the reserved names {sorted(taken)}" if taken else ""
            raise ValueError(
                f"extra_columns={self.extra_columns!r} must be a tuple of column names{without}. Pass, for example, "
                "extra_columns=('action_logp',)."
            )

    @property
    def num_rows(self) -> int:
        """Number of rows in the ring buffer, one per time step of all environments: ``capacity // num_envs``."""
        return self.capacity // self.num_envs

    @property
    def _n_steps(self) -> tuple[int, int]:
        """Lowest and highest number of steps of an n-step window, both included, from the setting `n_step`."""
        return arithmetic.n_step_range(self.n_step)

    @property
    def _is_uniform(self) -> bool:
        """Whether the replay buffer draws all steps equally often.

        True if draws have no priorities (`alpha` is None) and `length` is 1. Longer sequences begin more often at the
        first step of an episode than at other steps.
        """
        return self.alpha is None and self.length == 1

    # ---------------------------------------------------------------------------------------------------------- memory

    def memory_estimate(self, columns: Mapping[str, Any]) -> MemoryEstimate:
        """Estimates the memory of the replay buffer's state, which does not depend on the number of stored steps.

        Args:
            columns: As in `init`.
        """
        state = jax.eval_shape(self.init, columns)
        stored = jax.eval_shape(state.layout.unpack, state.ring)
        kept: dict[str, Any] = {**stored.pop("columns"), **stored}
        if state.finals is not None:
            kept[Columns.FINAL_OBS] = state.finals
        if state.frames is not None:
            kept[Columns.OBS] = state.frames
        if state.priorities is not None:
            kept["priorities"] = state.priorities
        kept["counters"] = (state.head, state.num_rows, state.size)
        columns_of = "agents" if state.is_masked else "envs"
        return MemoryEstimate.of_shapes("replay buffer", {columns_of: self.num_envs, "steps": self.num_rows}, kept)

    def require_memory(self, columns: Mapping[str, Any], device: Device) -> None:
        """Raises an error if the buffer does not fit the device, before anything is allocated.

        Args:
            columns: As in `init`, for example the result of ``jax.eval_shape`` of a rollout.
            device: Device of the state.

        Raises:
            ValueError: If it does not fit; the message names the sizes and the remedy.
        """
        require_memory(
            self.memory_estimate(columns), available_memory(device), where=f"are free on {device}", remedy=REMEDY
        )

    # ------------------------------------------------------------------------------------------------ filling the state

    def init(self, columns: Mapping[str, Any]) -> ReplayState:
        """Creates the state of an empty replay buffer.

        Args:
            columns: ``{column: pytree [T, B, ...]}`` of a rollout, arrays or ``jax.ShapeDtypeStruct``s; only their
                dtypes, and their shapes after T and B, are used. Columns that are not stored are ignored. The state
                takes masks if ``loss_mask`` is among them.

        Raises:
            ValueError: If a column is missing or has another B.
        """
        is_masked = Columns.LOSS_MASK in columns
        step = self._step_of(columns, is_masked)
        kept = self._kept_of(step[Columns.OBS])
        counters = (self.num_envs,) if is_masked else ()
        stored: dict[str, Any] = {"columns": step, "ends": jax.ShapeDtypeStruct((), jnp.int32)}
        finals = frames = None
        if self.num_frames > 1:
            del step[Columns.OBS]
            stored[_NUM_BEFORE] = stored["ends"]
            frames = FrameRing(
                pixels=jax.tree.map(lambda x: jnp.zeros((self.num_envs, self._num_places, *x.shape), x.dtype), kept),
                head=jnp.zeros(counters, jnp.int32),
                num_before=jnp.zeros((self.num_envs,), jnp.int32),
                since_cut=jnp.zeros(counters, jnp.int32),
                is_masked=is_masked,
            )
        if self._keeps_finals(kept):
            stored[Columns.FINAL_OBS] = kept
        else:
            slots = self._num_slots(kept)
            finals = FinalObservations(
                next_obs=jax.tree.map(lambda x: jnp.zeros((slots + self.num_envs, *x.shape), x.dtype), kept),
                rows=jnp.zeros((slots,), jnp.uint32),
                next=jnp.zeros((), jnp.int32),
                count=jnp.zeros((), jnp.int32),
                envs=jnp.zeros((slots,), jnp.int32) if is_masked else None,
            )
        layout = StepLayout.of(stored)
        packed = jax.eval_shape(layout.pack, stored)
        return ReplayState(
            ring=jax.tree.map(lambda x: jnp.zeros((self.num_envs, self.num_rows, *x.shape), x.dtype), packed),
            head=jnp.zeros(counters, jnp.int32),
            finals=finals,
            num_rows=jnp.zeros(counters, jnp.uint32),
            size=jnp.zeros(counters, jnp.int32),
            priorities=(
                None
                if self._is_uniform
                else device_priorities.init(self.num_rows * self.num_envs, has_starts=self.length > 1)
            ),
            frames=frames,
            layout=layout,
            is_masked=is_masked,
        )

    def add(self, state: ReplayState, columns: Mapping[str, Any]) -> ReplayState:
        """Adds a rollout to the replay buffer.

        If an environment's episode was unfinished at the end of the previous rollout, the new steps continue the
        episode, unless `cut` has truncated it.

        Args:
            state: The state.
            columns: ``{column: pytree [T, B, ...]}``, T from 1 to L: obs, actions, rewards, terminateds, truncateds;
                final_obs, read where an episode is truncated and in the last row; the extra columns. A new priority is
                the largest that was ever set. If the state takes masks, loss_mask, bool ``[T, B]``, is required, in any
                order of True and False: masked steps are not stored, and the last row of each environment is its last
                one that is not masked.

        Raises:
            ValueError: If a column is missing, if masks are given to a state that takes none, or if T or B is out of
                range.
        """
        num_steps = self._num_steps_of(columns, state.is_masked)
        valid, added = None, num_steps
        if state.is_masked:
            columns = self._valid_first(columns)
            valid = columns[Columns.LOSS_MASK]
            added = jnp.sum(valid, axis=0, dtype=jnp.int32)
        terminateds, truncateds = (columns[name].astype(bool) for name in (Columns.TERMINATEDS, Columns.TRUNCATEDS))
        has_final = truncateds | terminateds if self.keep_terminal_obs else truncateds & ~terminateds
        has_final = has_final if valid is None else has_final & valid
        ends = endings.of_steps(terminateds, truncateds)
        head, size = state.head, jnp.minimum(state.size + added, self.num_rows)
        stored: dict[str, Any] = {"columns": {name: columns[name] for name in (*_STORED, *self.extra_columns)}}
        frames, finals = state.frames, state.finals
        if frames is not None:
            obs, ended = stored["columns"].pop(Columns.OBS), terminateds | truncateds
            frames, stored[_NUM_BEFORE] = self._add_frames(frames, obs, ended, valid)
        final_obs = self._kept_of(columns[Columns.FINAL_OBS])
        if finals is None:
            stored[Columns.FINAL_OBS] = final_obs
            if not self.keep_terminal_obs:
                stored[Columns.FINAL_OBS] = jax.tree.map(
                    lambda obs, final: jnp.where(expand(terminateds, obs), obs, final),
                    self._kept_of(columns[Columns.OBS]),
                    final_obs,
                )
        else:
            finals, slot, size = self._add_finals(state, finals, has_final, final_obs, size, added)
            ends = jnp.where(has_final, endings.with_slots(ends, slot), ends)
        packed = state.layout.pack(stored | {"ends": ends.astype(jnp.int32)})
        starts = self._starts(state, terminateds | truncateds)
        places = (jnp.arange(num_steps) + (head if valid is None else head[:, None])) % self.num_rows
        places = _places_after(starts, places if valid is None else jnp.where(valid.T, places, self.num_rows))
        new = dataclasses.replace(
            state,
            ring=jax.tree.map(lambda kept, new: _written(kept, places, jnp.swapaxes(new, 0, 1)), state.ring, packed),
            head=(head + added) % self.num_rows,
            finals=finals,
            num_rows=state.num_rows + jnp.uint32(added),
            size=size,
            frames=frames,
        )
        if state.priorities is None:
            return new
        largest = state.priorities.largest
        levels = self._put_rows(
            state.priorities,
            places,
            largest if self.alpha is None else device_priorities.scaled(largest, self.alpha),
            starts,
        )
        if finals is not None:
            # Rows that were there before and are neither overwritten nor drawable any more, or are new and are not.
            before = jnp.minimum(state.size + added, self.num_rows)
            levels = self._take_out(levels, new.head, before, size)
        return dataclasses.replace(new, priorities=levels)

    def _valid_first(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Selects the columns of a rollout that `add` needs, including ``loss_mask``, and moves each environment's
        valid steps (``loss_mask`` True) to the front.
        """
        own = {name: columns[name] for name in (*_READ, *self.extra_columns)}
        own[Columns.LOSS_MASK] = jnp.asarray(columns[Columns.LOSS_MASK]).astype(bool)
        return own if own[Columns.LOSS_MASK].shape[0] == 1 else squeezed(own)

    def _num_steps_of(self, columns: Mapping[str, Any], is_masked: bool) -> int:
        """Checks a rollout for `add` and returns its number of steps T.

        Raises:
            ValueError: If a column is missing, if it has masks and the state takes none, or if T or B is out of range.
        """
        if Columns.LOSS_MASK in columns and not is_masked:
            raise ValueError(
                f"The rollout has the column {Columns.LOSS_MASK!r}, but the replay buffer's state was created for "
                "rollouts without it. Create the state with DeviceReplay.init() from the columns of this rollout."
            )
        self._step_of(columns, is_masked)
        num_steps = columns[Columns.REWARDS].shape[0]
        if not 1 <= num_steps <= self.num_rows:
            raise ValueError(
                f"A rollout of {num_steps} steps cannot be added to a replay buffer that holds at most {self.num_rows} "
                f"steps of each environment (capacity={self.capacity}, num_envs={self.num_envs}): raise the capacity, "
                "or sample shorter fragments."
            )
        return num_steps

    def _add_finals(
        self,
        state: ReplayState,
        finals: FinalObservations,
        has_final: jax.Array,
        final_obs: Any,
        size: jax.Array,
        added: jax.Array | int,
    ) -> tuple[FinalObservations, jax.Array, jax.Array]:
        """Stores the final observations of a rollout's episodes in a separate ring buffer, and assigns a slot (index in
        that ring buffer) to each.

        Args:
            state: State before the rollout.
            finals: Final observations before the rollout.
            has_final: bool ``[T, B]``, whether a step needs a slot.
            final_obs: ``[T, B, ...]``.
            size: Size of the state after the rollout, if no slot is overwritten.
            added: Steps of the rollout; int32 ``[B]`` with masks.

        Returns:
            ``(finals, slots [T, B], size)``; `size` excludes rows whose final observation was overwritten.
        """
        num_steps, num_envs = has_final.shape
        slots, total = finals.rows.shape[0], num_steps * num_envs
        has_final = has_final.reshape(-1)
        # Slots in the order of time. Of more than there are slots, the last ones stay.
        rank = jnp.cumsum(has_final, dtype=jnp.int32) - 1
        num_finals = rank[-1] + 1
        slot = (finals.next + rank) % slots
        rows = jnp.arange(total, dtype=jnp.int32) // num_envs
        stays = has_final & (rank >= num_finals - slots)
        place = jnp.where(stays, slot, slots + num_envs)
        numbers, envs = state.num_rows, None
        # The newest final observation that is written over makes its row, and all before it, undrawable.
        if finals.envs is not None:
            envs = jnp.arange(total, dtype=jnp.int32) % num_envs
            newest, numbers = numbers + jnp.uint32(added) - jnp.uint32(1), numbers[envs]
            owner = finals.envs[slot]
            age = (newest[owner] - finals.rows[slot]).astype(jnp.int32)
            is_over = stays & (slot < finals.count) & (age >= 0)
            size = size.at[jnp.where(is_over, owner, num_envs)].min(age, mode="drop")
            if total > slots:
                age = jnp.broadcast_to(added, (num_envs,))[envs] - 1 - rows
                size = size.at[jnp.where(has_final & ~stays, envs, num_envs)].min(age, mode="drop")
        else:
            over = (finals.next + num_finals - 1) % slots
            age = (state.num_rows + jnp.uint32(num_steps - 1) - finals.rows[over]).astype(jnp.int32)
            is_over = (num_finals > 0) & (finals.count + num_finals > slots) & (over < finals.count)
            size = jnp.where(is_over & (age >= 0), jnp.minimum(size, age), size)
            if total > slots:
                last_gone = jnp.max(jnp.where(has_final & ~stays, rows, -1))
                size = jnp.where(last_gone >= 0, jnp.minimum(size, num_steps - 1 - last_gone), size)

        def of_leaf(stored: jax.Array, final: jax.Array) -> jax.Array:
            stored = stored.at[place].set(final.reshape(total, *final.shape[2:]), mode="drop")
            return stored.at[slots:].set(_last(added, final, stored[slots:]))

        finals = FinalObservations(
            next_obs=jax.tree.map(of_leaf, finals.next_obs, final_obs),
            rows=finals.rows.at[place].set(numbers + rows.astype(jnp.uint32), mode="drop"),
            next=(finals.next + num_finals) % slots,
            count=jnp.minimum(finals.count + num_finals, slots),
            envs=None if finals.envs is None else finals.envs.at[place].set(envs, mode="drop"),
        )
        return finals, slot.reshape(num_steps, num_envs), size

    def _add_frames(
        self, frames: FrameRing, obs: Any, ended: jax.Array, valid: jax.Array | None
    ) -> tuple[FrameRing, jax.Array]:
        """Writes the newest frame of every stacked observation ``[T, B, ...]`` of a rollout to the ring buffer of
        frames.

        If the buffer is empty, or `cut` was called after the last rollout to truncate its unfinished episodes, also
        writes the older frames of the first observation.

        Args:
            frames: Frames before the rollout.
            obs: Whole observations.
            ended: bool ``[T, B]``, whether a step ended an episode.
            valid: bool ``[T, B]``, whether a step is valid; valid steps of an environment come first. None: all are
                valid.

        Returns:
            ``(frames, number of known earlier frames of each step in its episode, at most num_frames - 1, int32 [T,
            B])``.
        """
        num_steps, most = ended.shape[0], self.num_frames - 1
        added = num_steps if valid is None else jnp.sum(valid, axis=0, dtype=jnp.int32)
        is_cut = frames.since_cut == 0
        begins_here = is_cut if valid is None else is_cut & valid[0]
        head = jnp.where(begins_here, frames.head + most, frames.head)
        # Without a cut, what comes before the first one is there already, and written nowhere.
        if valid is None:
            before = jnp.where(is_cut, (frames.head + jnp.arange(most)) % self._num_places, self._num_places)
            places = jnp.concatenate([before, (head + jnp.arange(num_steps)) % self._num_places])
        else:
            before = (frames.head[:, None] + jnp.arange(most)) % self._num_places
            places = (head[:, None] + jnp.arange(num_steps)) % self._num_places
            is_written = jnp.concatenate([jnp.repeat(begins_here[:, None], most, axis=1), valid.T], axis=1)
            places = jnp.where(is_written, jnp.concatenate([before, places], axis=1), self._num_places)

        def of_leaf(pixels: jax.Array, obs: jax.Array, newest: jax.Array) -> jax.Array:
            first = jnp.moveaxis(obs[0].reshape(*obs.shape[1:-1], self.num_frames, -1), -2, 1)[:, :most]
            new = jnp.concatenate([first, jnp.swapaxes(newest, 0, 1)], axis=1)
            return _written(pixels, places, new, mode="drop")

        # In time, the row in which the episode of each began, as far as it is known.
        times = jnp.arange(num_steps, dtype=jnp.int32)[:, None]
        begins = -jnp.where(is_cut, most, frames.num_before)[None]
        later = jnp.where(ended[:-1], times[1:], -self.num_frames)
        num_before = jnp.minimum(times - jax.lax.cummax(jnp.concatenate([begins, later])), most)
        # Of the step after the newest one.
        has_ended = _last(added, ended, jnp.zeros_like(ended[-1]))
        following = jnp.minimum(_last(added, num_before, frames.num_before - 1) + 1, most)
        following = jnp.where(has_ended, 0, following)
        frames = dataclasses.replace(
            frames,
            pixels=jax.tree.map(of_leaf, frames.pixels, obs, self._kept_of(obs)),
            head=(head + added) % self._num_places,
            num_before=following,
            since_cut=jnp.minimum(frames.since_cut + added, self.num_rows),
        )
        return frames, num_before

    def not_finite(self, state: ReplayState) -> dict[str, jax.Array]:
        """Returns masks of the rows in the ring buffer, True for rows that contain NaN or infinity.

        Returns:
            ``{column: bool [B, L]}``, the newest row last (with masks, the newest row of each environment). Checks the
            rewards, and obs and final_obs if the ring buffer stores them for every row.
        """
        steps = state.layout.unpack(state.ring)
        columns = {Columns.REWARDS: steps["columns"][Columns.REWARDS], Columns.OBS: steps["columns"].get(Columns.OBS)}
        columns[Columns.FINAL_OBS] = steps.get(Columns.FINAL_OBS)
        shape = (self.num_envs, self.num_rows)
        age = self.num_rows - jnp.arange(self.num_rows, dtype=jnp.int32)
        is_taken = jnp.uint32(age) <= (state.num_rows[:, None] if state.is_masked else state.num_rows)
        out = {}
        for name, column in columns.items():
            found = jnp.zeros(shape, bool)
            for leaf in jax.tree.leaves(column):
                if jnp.issubdtype(leaf.dtype, jnp.inexact):
                    found |= ~jnp.isfinite(leaf).reshape(*shape, -1).all(axis=-1)
            if state.is_masked:
                found = jnp.take_along_axis(found, self._places(state.head[:, None], age - 1), axis=1)
            else:
                found = jnp.roll(found, -state.head, axis=1)
            out[name] = found & is_taken
        return out

    def cut(self, state: ReplayState) -> ReplayState:
        """Truncates the unfinished episodes in the replay buffer at its newest row, so that steps added later do not
        continue them.
        """
        envs = jnp.arange(self.num_envs, dtype=jnp.int32)
        place = self._places(state.head, jnp.int32(0))
        steps = self._take(state, envs, jnp.int32(0))
        ends, finals, size = steps["ends"], state.finals, state.size
        goes_on = (ends == endings.GOES_ON) & (size > 0)
        if finals is None:
            ends = jnp.where(goes_on, endings.TRUNCATED, ends)
        else:
            slots = finals.rows.shape[0]
            before = dataclasses.replace(state, num_rows=state.num_rows - jnp.uint32(1))
            last = jax.tree.map(lambda x: x[None, slots:], finals.next_obs)
            finals, slot, size = self._add_finals(before, finals, goes_on[None], last, size, 1)
            ends = jnp.where(goes_on, endings.with_slots(jnp.int32(endings.TRUNCATED), slot[0]), ends)
        packed = state.layout.pack({**steps, "ends": ends})
        if state.is_masked:
            ring = jax.tree.map(lambda kept, row: kept.at[envs, place].set(row), state.ring, packed)
        else:
            ring = jax.tree.map(lambda kept, row: kept.at[:, place].set(row), state.ring, packed)
        frames = state.frames
        if frames is not None:
            # There is room for what comes before the rows after one cut.
            size = jnp.where(frames.since_cut > 0, jnp.minimum(size, frames.since_cut), size)
            frames = dataclasses.replace(frames, since_cut=jnp.zeros_like(frames.since_cut))
        levels = state.priorities
        if levels is not None and (finals is not None or frames is not None):
            levels = self._take_out(levels, state.head, state.size, size)
        return dataclasses.replace(state, ring=ring, finals=finals, size=size, priorities=levels, frames=frames)

    def _put_rows(
        self, levels: Any, places: jax.Array, count: jax.Array | float, starts: jax.Array | None = None
    ) -> Any:
        """Sets one scaled priority (``priority ** alpha``) for all steps in the given rows of the ring buffer.

        With `starts`, also sets the sampling weights of these steps as first steps of sequences.

        Args:
            levels: Priorities before.
            places: int32 ``[T]``, rows for all environments, or ``[B, T]``, rows of each environment, L for no row.
            count: Scaled priority of the steps; 0: they can no longer be drawn.
            starts: Sampling weights, float32 ``[B * T]``; None: unchanged.
        """
        items = jnp.arange(self.num_envs)[:, None] * self.num_rows + places
        if places.ndim > 1:
            items = jnp.where(places < self.num_rows, items, device_priorities.NO_ITEM)
        return device_priorities.put(levels, items.reshape(-1), jnp.full((items.size,), count, jnp.float32), starts)

    def _starts(self, state: ReplayState, ended: jax.Array) -> jax.Array | None:
        """Sampling weights of a rollout's steps as first steps of drawn sequences, float32 ``[B * T]``.

        None if sequences have one step. `ended` ``[T, B]`` marks the steps that end an episode.
        """
        if self.length == 1:
            return None
        before = self._take(state, jnp.arange(self.num_envs, dtype=jnp.int32), jnp.int32(0))["ends"]
        begins = (before != endings.GOES_ON) | (state.size == 0)
        is_first = jnp.concatenate([begins[None], ended[:-1]])
        return arithmetic.num_starts(jnp, is_first, self.length).astype(jnp.float32).T.reshape(-1)

    def _take_out(self, levels: Any, head: jax.Array, before: jax.Array, after: jax.Array) -> Any:
        """Sets the priorities of old ring buffer rows to 0, so that their steps can no longer be drawn.

        These are the rows with ``after <= age < before``; the newest row has age 0.
        """

        def is_left(carry: tuple[Any, jax.Array]) -> jax.Array:
            return carry[1] > after if head.ndim == 0 else jnp.any(carry[1] > after)

        def body(carry: tuple[Any, jax.Array]) -> tuple[Any, jax.Array]:
            levels, left = carry
            places = self._places(head, left - 1)
            places = jnp.where(left > after, places, self.num_rows)[:, None] if head.ndim else places[None]
            return self._put_rows(levels, places, 0.0), left - 1

        return jax.lax.while_loop(is_left, body, (levels, before))[0]

    # --------------------------------------------------------------------------------------------------------- sampling

    def num_steps(self, state: ReplayState) -> jax.Array:
        """Number of steps that can be drawn from the replay buffer, int32."""
        return jnp.sum(state.size) if state.is_masked else state.size * self.num_envs

    def can_draw(self, state: ReplayState) -> jax.Array:
        """Whether the buffer contains a step to draw, bool array."""
        return self.num_steps(state) > 0

    def sample(
        self,
        state: ReplayState,
        key: jax.Array | RandomNumbers,
        *,
        beta: jax.Array | float = 0.0,
        gamma: jax.Array | float = 0.99,
        axis_name: str | None = None,
    ) -> tuple[dict[str, Any], ReplayItems]:
        """Draws n-step transitions, with replacement.

        Args:
            state: The state. Draws from an empty one (see `can_draw`) have no meaning; if it takes masks, they are
                finite and their weights are 0.
            key: PRNG key, or a result of `random_numbers`.
            beta: Exponent of importance weights; no effect on uniform draws.
            gamma: Discount.
            axis_name: Axis of the devices that each draw a part of the batch from a separate buffer, or None.

        Returns:
            ``({column: pytree [N, ...]}, items)``: obs, actions and extra columns of the first step; rewards, float32,
            discounted sums over the window; new_obs, terminateds and truncateds after its last step; n_step, float32,
            its actual steps, so that a bootstrap value weighs ``gamma ** n_step * (1 - terminateds)``; weights,
            float32, ``(N P(i)) ** -beta`` over the largest in the buffers of all devices (Schaul et al., 2016,
            section 3.4); every device draws the same number, so P(i) is relative to the buffer of its device.
            After a terminated step, new_obs repeats that step's obs. If discount is an extra column, rewards are
            discounted by it, too, and n_step_discount, float32, is its product over the window.
        """
        low, high = self._n_steps
        random = key if isinstance(key, RandomNumbers) else self.random_numbers(key)
        ages, envs, weights = self._draw(state, random.items, beta, axis_name)
        step = self._take(state, envs, ages)
        rewards = clipped_rewards(step["columns"][Columns.REWARDS].astype(jnp.float32), self.clip_rewards)
        if high == 1:
            lengths, last, last_age = jnp.ones_like(ages), step, ages
            factors = step["columns"].get(Columns.DISCOUNT)
        else:
            times = jnp.arange(high, dtype=jnp.int32)
            ages_of_window = ages[:, None] - times
            window = self._take(state, envs[:, None], jnp.maximum(ages_of_window, 0))
            wanted = low + _below(random.lengths, high + 1 - low)[:, None]
            is_in = (
                arithmetic.until_end(jnp, window["ends"] != endings.GOES_ON) & (ages_of_window >= 0) & (times < wanted)
            )
            discounts, factors = self._discounts(gamma, high), window["columns"].get(Columns.DISCOUNT)
            if factors is not None:
                products = jnp.cumprod(jnp.where(is_in, factors.astype(jnp.float32), 1.0), axis=1)
                discounts = discounts * jnp.concatenate([jnp.ones_like(products[:, :1]), products[:, :-1]], axis=1)
                factors = products[:, -1]
            rewards = clipped_rewards(window["columns"][Columns.REWARDS].astype(jnp.float32), self.clip_rewards)
            rewards, lengths = arithmetic.window(jnp, rewards, discounts, is_in)
            last_age = ages - lengths + 1
            last = self._take(state, envs, last_age)
        batch = {
            **step["columns"],
            Columns.OBS: self._obs(state, step, ages, envs),
            Columns.REWARDS: rewards,
            Columns.NEXT_OBS: self._next_obs(state, last, last_age, envs),
            **endings.flags(last["ends"]),
            N_STEP: lengths.astype(jnp.float32),
            WEIGHTS: weights,
        }
        if factors is not None:
            batch[Columns.N_STEP_DISCOUNT] = factors.astype(jnp.float32)
        return batch, self._items(state, ages, envs)

    def random_numbers(self, key: jax.Array) -> RandomNumbers:
        """Draws the random numbers of one call of `sample`.

        Drawing them for many calls at once (vmapped over keys) is faster than drawing them in each call.
        """
        levels, is_range, has_starts = self._num_levels, self._is_range, self.length > 1
        bits = jax.random.bits(key, (levels + is_range + has_starts, self.batch_size))
        return RandomNumbers(
            items=bits[:levels],
            lengths=bits[levels] if is_range else None,
            starts=bits[levels + is_range] if has_starts else None,
        )

    @property
    def num_random_numbers(self) -> int:
        """Number of 32-bit random numbers that one call of `sample` uses."""
        return (self._num_levels + self._is_range + (self.length > 1)) * self.batch_size

    @property
    def _num_levels(self) -> int:
        return 1 if self._is_uniform else device_priorities.num_levels(self.num_rows * self.num_envs)

    @property
    def _is_range(self) -> bool:
        """Whether `n_step` is a range: the length of each n-step window is then drawn at random."""
        return self._n_steps[0] < self._n_steps[1]

    def sample_sequences(
        self,
        state: ReplayState,
        key: jax.Array | RandomNumbers,
        *,
        burn_in: int = 0,
        beta: jax.Array | float = 0.0,
        gamma: jax.Array | float = 0.99,
        axis_name: str | None = None,
    ) -> tuple[dict[str, Any], ReplayItems]:
        """Draws sequences of steps for stateful modules, padded to the fixed length ``J = burn_in + length``.

        A sequence consists of a random step, up to ``length - 1`` steps after it, and up to `burn_in` steps before it,
        within its episode and the rows that can be drawn. Zeros pad it on the right.

        Args:
            state: As in `sample`.
            key: As in `sample`.
            burn_in: Maximum number of earlier steps, which only update the recurrent state and have no loss.
            beta: As in `sample`, like `gamma` and `axis_name`.

        Returns:
            ``({column: pytree [N, J, ...]}, items)``: obs, actions and new_obs of single steps; rewards, terminateds,
            truncateds and n_step as in `sample`, of windows that begin at each step and stop at the sequence's end;
            extra columns; and loss_mask: True in steps that are neither burn-in nor padding. ``[N]``: seq_lens,
            int32, number of steps including burn-in; weights; and "state_in" of the first step, if it is one of the
            extra columns. Sequences from an empty state that takes masks have no steps.

        Raises:
            ValueError: If `burn_in` is out of range.
        """
        if not (arithmetic.is_int(burn_in) and burn_in >= 0):
            raise ValueError(f"burn_in={burn_in!r} must be an int >= 0.")
        random = key if isinstance(key, RandomNumbers) else self.random_numbers(key)
        ages, envs, weights = self._draw(state, random.items, beta, axis_name)
        earlier = ages[:, None] + jnp.arange(1, burn_in + 1, dtype=jnp.int32)
        size = _of(state.size, envs[:, None])
        oldest = jnp.maximum(size - 1, 0)
        ends = self._take(state, envs[:, None], jnp.minimum(earlier, oldest))["ends"]
        is_before = (earlier <= oldest) & (ends == endings.GOES_ON)
        num_before = arithmetic.first(jnp, ~is_before)

        times = jnp.arange(burn_in + self.length, dtype=jnp.int32)
        step_ages = (ages + num_before)[:, None] - times
        steps = self._take(state, envs[:, None], jnp.maximum(step_ages, 0))
        ends, columns = steps["ends"], steps["columns"]
        columns[Columns.OBS] = self._obs(state, steps, jnp.maximum(step_ages, 0), envs[:, None])
        is_there = arithmetic.until_end(jnp, ends != endings.GOES_ON) & (step_ages >= 0)
        is_there &= times < (num_before + self._num_learned(state, ages, envs, random))[:, None]
        if state.is_masked:
            is_there &= self.can_draw(state)

        low, high = self._n_steps
        rewards, lengths, last = arithmetic.windows_in_sequences(
            jnp,
            clipped_rewards(columns[Columns.REWARDS].astype(jnp.float32), self.clip_rewards),
            self._discounts(gamma, high),
            is_there,
            low + _below(random.lengths, high + 1 - low),
        )
        out = {name: columns[name] for name in columns if name != Columns.STATE_IN}
        out |= {
            Columns.NEXT_OBS: self._next_obs(state, steps, jnp.maximum(step_ages, 0), envs[:, None]),
            **endings.flags(jnp.take_along_axis(ends, last, axis=1)),
            Columns.REWARDS: rewards,
            N_STEP: lengths.astype(jnp.float32),
        }
        out = jax.tree.map(lambda x: jnp.where(expand(is_there, x), x, jnp.zeros_like(x)), out)
        if Columns.STATE_IN in self.extra_columns:
            out[Columns.STATE_IN] = jax.tree.map(lambda x: x[:, 0], columns[Columns.STATE_IN])
        out |= arithmetic.sequence(jnp, is_there, num_before) | {WEIGHTS: weights}
        return out, self._items(state, ages, envs)

    def update_priorities(self, state: ReplayState, items: ReplayItems, priorities: jax.Array) -> ReplayState:
        """Sets new priorities of the random steps that `sample` or `sample_sequences` drew: one step for each
        transition or sequence.

        Args:
            state: State from which the items were drawn, or a later one; items that can no longer be drawn are skipped.
            items: Items from `sample` or `sample_sequences`.
            priorities: ``[N]``, such as TD errors; their absolute values are used, at least 1e-12. If an item was drawn
                twice, it gets the larger priority. A priority that is not finite does not change its item.

        Raises:
            ValueError: If draws are uniform.
        """
        if state.priorities is None or self.alpha is None:
            raise ValueError(
                "update_priorities() needs a buffer with priorities: set alpha, for example DeviceReplay(..., "
                "alpha=0.6)."
            )
        ages = _of(state.num_rows, items.envs) - items.rows - jnp.uint32(1)
        finite = jnp.isfinite(priorities)
        is_set = finite & (ages < _of(state.size, items.envs).astype(jnp.uint32))
        given = jnp.where(finite, arithmetic.magnitudes(jnp, priorities.astype(jnp.float32)), 0.0)
        places = self._places(_of(state.head, items.envs), jnp.where(is_set, ages.astype(jnp.int32), 0))
        levels = device_priorities.put(
            state.priorities,
            jnp.where(is_set, self._flat(items.envs, places), device_priorities.NO_ITEM),
            device_priorities.scaled(given, self.alpha),
        )
        largest = jnp.maximum(levels.largest, jnp.max(jnp.where(is_set, given, 0.0)))
        return dataclasses.replace(state, priorities=dataclasses.replace(levels, largest=largest))

    # ------------------------------------------------------------------------------------------------------------ parts

    def _draw(
        self, state: ReplayState, bits: jax.Array, beta: jax.Array | float, axis_name: str | None
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Draws random steps of the replay buffer. Returns ``(ages of their rows, environments, importance weights)``,
        each ``[N]``; the newest row has age 0.
        """
        if state.priorities is None:
            items = _below(bits[0], jnp.maximum(self.num_steps(state), 1))
            if state.is_masked:
                return self._draw_uniformly(state, items)
            return items // self.num_envs, items % self.num_envs, jnp.ones(items.shape, jnp.float32)
        items = device_priorities.draw(state.priorities, bits)
        can_draw = self.can_draw(state) if state.is_masked else None
        if can_draw is not None:
            items = jnp.where(can_draw, items, 0)
        if self.alpha is None:
            envs, places = items // self.num_rows, items % self.num_rows
            ages, weights = self._places(_of(state.head, envs), places), jnp.ones(items.shape, jnp.float32)
            return ages, envs, weights if can_draw is None else jnp.where(can_draw, weights, 0.0)
        # XLA would read what items count once more where weights are used, after the new priorities of these items,
        # and copy all of them to do so. After a barrier it reads once; and what is done with items waits for it.
        levels = state.priorities
        counts, least, *total = jax.lax.optimization_barrier(
            (
                device_priorities.values(levels, items),
                device_priorities.minimum(levels),
                *([] if axis_name is None else [device_priorities.total(levels)]),
            )
        )
        items = jnp.where((counts >= 0) & (least >= 0), items, 0)
        envs, places = items // self.num_rows, items % self.num_rows
        # The number of items cancels, and so does their sum on a single device.
        if axis_name is not None:
            counts, least = counts / total[0], jax.lax.pmin(least / total[0], axis_name)
        weights = arithmetic.importance_weights(jnp, counts, least, jnp.asarray(beta, jnp.float32))
        if can_draw is not None:
            weights = jnp.where(can_draw, weights, 0.0)
        return self._places(_of(state.head, envs), places), envs, weights

    def _draw_uniformly(self, state: ReplayState, items: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Draws steps uniformly from environments that may have different numbers of steps.

        The random indices `items` ``[N]`` select steps from the concatenated steps of all environments. Returns ``(ages
        of the steps' rows, environments, importance weights)``, each ``[N]``; the newest row has age 0. All weights are
        1; if the buffer contains no step, all are 0.
        """
        until = jnp.cumsum(state.size)
        envs = jnp.searchsorted(until, items, side="right", method="scan_unrolled")
        envs = jnp.minimum(envs, self.num_envs - 1).astype(jnp.int32)
        ages = items - (until - state.size)[envs]
        return ages, envs, jnp.broadcast_to(self.can_draw(state), items.shape).astype(jnp.float32)

    def _num_learned(
        self, state: ReplayState, ages: jax.Array, envs: jax.Array, random: RandomNumbers
    ) -> jax.Array | int:
        """Returns, for each drawn sequence, the maximum number of steps that the loss uses, int32 ``[N]``.

        If the drawn step is the first step of its episode, the number is random, from 1 to `length`; otherwise, the
        number is `length`. For the reason, see `arithmetic.num_learned`. If `length` is 1, returns the int `length` for
        all sequences.
        """
        if state.priorities is None or state.priorities.starts is None:
            return self.length
        items = self._flat(envs, self._places(_of(state.head, envs), ages))
        is_first = state.priorities.starts.reshape(-1).at[items].get(mode="promise_in_bounds") > 1
        return arithmetic.num_learned(jnp, is_first, _below(random.starts, self.length), self.length)

    def _discounts(self, gamma: jax.Array | float, number: int) -> jax.Array:
        times = jnp.arange(number, dtype=jnp.int32)
        return jnp.asarray(gamma, jnp.float32) ** times

    def _items(self, state: ReplayState, ages: jax.Array, envs: jax.Array) -> ReplayItems:
        newest = _of(state.num_rows, envs) - jnp.uint32(1)
        return ReplayItems(rows=newest - ages.astype(jnp.uint32), envs=envs)

    def _places(self, head: jax.Array, ages: jax.Array) -> jax.Array:
        """Converts ages of rows (0 is the newest row) to positions in the ring buffer, or positions to ages: the map is
        its own inverse.
        """
        return jax.lax.rem((head - 1 - ages + self.num_rows).astype(jnp.int32), jnp.int32(self.num_rows))

    def _flat(self, envs: jax.Array, places: jax.Array) -> jax.Array:
        return envs * self.num_rows + places

    def _take(self, state: ReplayState, envs: jax.Array, ages: jax.Array) -> Any:
        """Reads stored steps from the ring buffer.

        The index arrays `envs` and `ages` select the steps; the newest row has age 0. Both arrays may have any shapes
        that broadcast.
        """
        flat = self._flat(envs, self._places(_of(state.head, envs), ages))
        packed = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]).at[flat].get(mode="promise_in_bounds"), state.ring)
        return state.layout.unpack(packed)

    def _obs(self, state: ReplayState, steps: Any, ages: jax.Array, envs: jax.Array) -> Any:
        """Returns the observations of stored steps. If the buffer stores single frames, rebuilds the stacked frames."""
        if state.frames is None:
            return steps["columns"][Columns.OBS]
        back = jnp.arange(self.num_frames - 1, -1, -1, dtype=jnp.int32)
        pixels = self._frames(state.frames, ages[..., None], envs[..., None], back)
        known = back <= steps[_NUM_BEFORE][..., None]

        def of_leaf(leaf: jax.Array) -> jax.Array:
            leaf = jnp.moveaxis(jnp.where(expand(known, leaf), leaf, jnp.zeros_like(leaf)), ages.ndim, -2)
            return leaf.reshape(*leaf.shape[:-2], -1)

        return jax.tree.map(of_leaf, pixels)

    def _frames(self, frames: FrameRing, ages: jax.Array, envs: jax.Array, back: jax.Array | int = 0) -> Any:
        """Reads single frames from the ring buffer.

        `envs` and `ages` select rows; the newest row has age 0. Each result is the frame `back` steps before the
        selected row, or the row's own frame if `back` is 0.
        """
        head, since_cut = _of(frames.head, envs), _of(frames.since_cut, envs)
        # Of a cut that no row follows yet, nothing is written down.
        before_cut = jnp.where((ages >= since_cut) & (since_cut > 0), self.num_frames - 1, 0)
        places = (head - 1 - ages - before_cut - back + self._num_places) % self._num_places
        flat = envs * self._num_places + places
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]).at[flat].get(mode="promise_in_bounds"), frames.pixels)

    @property
    def _num_places(self) -> int:
        return self.num_rows + 2 * (self.num_frames - 1)

    def _kept_of(self, obs: Any) -> Any:
        """Selects the part of an observation that the buffer stores: the newest frame if observations are stacked
        frames, else the whole observation. Accepts arrays or shapes.
        """
        if self.num_frames == 1:
            return obs

        def of_leaf(leaf: Any) -> Any:
            width = leaf.shape[-1] // self.num_frames
            if isinstance(leaf, jax.ShapeDtypeStruct):
                return jax.ShapeDtypeStruct((*leaf.shape[:-1], width), leaf.dtype)
            return leaf[..., -width:]

        return jax.tree.map(of_leaf, obs)

    def _next_obs(self, state: ReplayState, steps: Any, ages: jax.Array, envs: jax.Array) -> Any:
        """Returns the next observations of stored steps. If the buffer stores single frames, rebuilds the stacked
        frames.
        """
        newest = self._kept_next_obs(state, steps, ages, envs)
        if state.frames is None:
            return newest
        repeats = endings.flags(steps["ends"])[Columns.TERMINATEDS] & (not self.keep_terminal_obs)

        def of_leaf(obs: jax.Array, newest: jax.Array) -> jax.Array:
            following = jnp.concatenate([obs[..., newest.shape[-1] :], newest], axis=-1)
            return jnp.where(expand(repeats, obs), obs, following)

        return jax.tree.map(of_leaf, self._obs(state, steps, ages, envs), newest)

    def _kept_next_obs(self, state: ReplayState, steps: Any, ages: jax.Array, envs: jax.Array) -> Any:
        """Returns the next observations of drawn steps, as the buffer stores them: the newest frame if observations are
        stacked frames, else the whole observation.
        """
        if state.finals is None:
            return steps[Columns.FINAL_OBS]
        ends, slots = steps["ends"], state.finals.rows.shape[0]
        is_final, slot = endings.slots(ends)
        is_newest = (ends == endings.GOES_ON) & (ages == 0)
        beside = jnp.where(is_final, slot, jnp.where(is_newest, slots + envs, 0))
        # After a terminated step nothing counts; its own observation is not one of another episode.
        next_ages = jnp.where((ends == endings.GOES_ON) & (ages > 0), ages - 1, ages)
        if state.frames is None:
            inside = self._take(state, envs, next_ages)["columns"][Columns.OBS]
        else:
            inside = self._frames(state.frames, next_ages, envs)
        is_beside = is_final | is_newest

        def of_leaf(here: jax.Array, kept: jax.Array) -> jax.Array:
            there = kept.at[beside].get(mode="promise_in_bounds")
            return jnp.where(expand(is_beside, there), there, here)

        return jax.tree.map(of_leaf, inside, state.finals.next_obs)

    def _keeps_finals(self, obs: Any) -> bool:
        """Whether the ring buffer stores a next observation with every step.

        True if the setting `num_final_obs` is None and the next observations of a full buffer take at most 128 MiB
        (`_OWN_FINALS_BYTES`).
        """
        return self.num_final_obs is None and self.num_rows * self.num_envs * bytes_of_shapes(obs) <= _OWN_FINALS_BYTES

    def _num_slots(self, obs: Any) -> int:
        if self.num_final_obs is not None:
            return self.num_final_obs
        steps = self.num_rows * self.num_envs
        wanted = max(steps // 16, 2**24 // max(1, bytes_of_shapes(obs)), self.num_envs)
        return min(wanted, steps)

    def _step_of(self, columns: Mapping[str, Any], is_masked: bool) -> dict[str, Any]:
        """Checks the columns of a rollout, and returns the shapes and dtypes of one stored step."""
        read = (*_READ, *self.extra_columns, *([Columns.LOSS_MASK] if is_masked else []))
        missing = sorted(set(read) - columns.keys())
        if missing:
            raise ValueError(
                f"The rollout lacks the columns {missing}; it has {sorted(columns)}. Add the missing columns."
            )
        for name in read:
            for leaf in jax.tree.leaves(columns[name]):
                if len(leaf.shape) < 2 or leaf.shape[1] != self.num_envs:
                    raise ValueError(
                        f"Column {name!r} has shape {tuple(leaf.shape)}, but a replay buffer of "
                        f"num_envs={self.num_envs} takes [T, {self.num_envs}, ...]. Correct the shape, or create "
                        "DeviceReplay(num_envs=...) with the rollout's number of environments."
                    )
        for leaf in jax.tree.leaves(columns[Columns.OBS]):
            if self.num_frames > 1 and (len(leaf.shape) < 3 or leaf.shape[-1] % self.num_frames):
                raise ValueError(
                    f"num_frames={self.num_frames}: the last axis of observations must divide into {self.num_frames} "
                    f"frames of equal size, but observations have shape {tuple(leaf.shape[2:])}. Use num_frames=1."
                )
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype),
            {name: columns[name] for name in (*_STORED, *self.extra_columns)},
        )


@struct.dataclass
class RandomNumbers:
    """Random bits that one `DeviceReplay.sample` call uses.

    Attributes:
        items: uint32 ``[levels, N]``, bits that select items.
        lengths: uint32 ``[N]``, bits that select the lengths of windows; None if all windows have the same length.
        starts: uint32 ``[N]``, bits that select one of the sequences that the first step of an episode represents; None
            without sequences.
    """

    items: jax.Array
    lengths: jax.Array | None
    starts: jax.Array | None


def _below(bits: jax.Array | None, number: jax.Array | int) -> jax.Array:
    """Converts random uint32 `bits` to random int32 numbers from 0 to ``number - 1``.

    A random number is the upper 32 bits of the 64-bit product ``bits * number``. The bias of these random numbers is
    below ``number / 2^32``. If `bits` is None, returns an array ``[1]`` with the value 0.
    """
    if bits is None:
        return jnp.zeros((1,), jnp.int32)
    number = jnp.asarray(number).astype(jnp.uint32)
    low, high = bits & 0xFFFF, bits >> 16
    number_low, number_high = number & 0xFFFF, number >> 16
    carry = (low * number_low) >> 16
    middle = high * number_low + carry
    rest = low * number_high + (middle & 0xFFFF)
    return (high * number_high + (middle >> 16) + (rest >> 16)).astype(jnp.int32)


def _places_after(starts: jax.Array | None, places: jax.Array) -> jax.Array:
    """Forces XLA to compute `starts` before it writes the ring buffer rows `places`; returns `places` unchanged.

    `starts`, the sampling weights of the new steps, depends on the row that is the newest before the write.

    Otherwise, XLA would read that row after the write, and copy the whole ring buffer for this.
    """
    if starts is None:
        return places
    return jnp.where(jnp.all(jax.lax.optimization_barrier(starts) > 0), places, 0)


def _of(counter: jax.Array, envs: jax.Array) -> jax.Array:
    """Returns the values of a ring buffer counter, such as `head`, for the given environments.

    This is ``counter[envs]`` if `counter` is an array ``[B]``; `counter` unchanged if it is a scalar, which all
    environments share.
    """
    return counter if counter.ndim == 0 else counter.at[envs].get(mode="promise_in_bounds")


def _written(kept: jax.Array, places: jax.Array, new: jax.Array, **options: Any) -> jax.Array:
    """Writes the values of T steps into an array of the ring buffer.

    The values `new` are ``[B, T, ...]``, the array is ``[B, L, ...]``, and the row indices `places` are ``[T]`` or
    ``[B, T]``. A step with the index L, one after the last row, is not written.
    """
    if places.ndim == 1:
        return kept.at[:, places].set(new, **options)
    envs = jnp.arange(kept.shape[0], dtype=jnp.int32)[:, None]
    return kept.at[envs, places].set(new, mode="drop")


def _last(added: jax.Array | int, column: jax.Array, before: jax.Array) -> jax.Array:
    """Returns the last valid entry of each environment in a rollout's column ``[T, B, ...]``.

    The valid entries come first. The number of valid entries, `added`, is T or int32 ``[B]``. For an environment
    without valid entries, returns its entry of `before` ``[B, ...]``.
    """
    if isinstance(added, int):
        return column[-1]
    envs = jnp.arange(column.shape[1], dtype=jnp.int32)
    return where_rows(added > 0, column[jnp.maximum(added - 1, 0), envs], before)
