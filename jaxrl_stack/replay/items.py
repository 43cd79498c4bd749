"""Sampling of fixed-length windows of consecutive items (observations with action and reward) that may cross episode
boundaries, for world models.

An item is an observation with the action taken at it and the reward that led to it. The last observation of an episode
is a separate item; it repeats the action of the last step, which has no effect. So n steps of an episode are n + 1
items, of which the first has reward 0. No column of next observations is needed.

At the end of an episode, or after its newest stored step, a window continues with the beginning of another episode: on
the host with any episode, on the device with the next one in the same environment (after the newest episode, with the
oldest one). If the first steps of an episode were evicted, its oldest stored step counts as its first step.

A learner can write values back to items (`put_on_host`, `put_on_device`), for example the recurrent states with which
windows start. Such a state is older the longer ago its item was drawn.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.ops.masks import expand
from jaxrl_stack.ops.returns import clipped_rewards
from jaxrl_stack.replay import arithmetic, endings
from jaxrl_stack.replay.device_replay import DeviceReplay, RandomNumbers, ReplayItems
from jaxrl_stack.replay.device_replay_state import ReplayState
from jaxrl_stack.replay.replay_metrics import ReplayMetrics
from jaxrl_stack.utils.nested import take

if TYPE_CHECKING:
    from jaxrl_stack.replay.episode_replay_buffer import EpisodeReplayBuffer


def host_windows(
    buffer: EpisodeReplayBuffer,
    number: int,
    length: int,
    *,
    clip_rewards: bool | float | None = None,
    extra_columns: Iterable[str] = (),
) -> tuple[dict[str, Any], np.ndarray]:
    """Draws `number` windows of `length` consecutive items from a host buffer, as columns ``[N, T, ...]``.

    Items are observations with action and reward. Each window begins at a random step.

    Args:
        buffer: Buffer with at least one step.
        number: N, number of windows.
        length: T, number of items of each window, >= 1.
        clip_rewards: As in `EpisodeReplayBuffer.sample_batch`.
        extra_columns: Stored module outputs to add; "state_in", ``[N, ...]``, only of the first item.

    Returns:
        ``({column: pytree [N, T, ...]}, items)``: obs, actions and rewards as described in this module. bool: is_first,
        whether the item is the first of its episode; is_last, whether it is the last observation of an episode, or the
        newest one of an unfinished episode; is_terminated and is_truncated, whether the episode ended there in this
        way. The extra columns; the last item of an episode repeats the previous step's values. Items, int64 ``[N, T]``,
        identify the drawn items; equal numbers are equal items.

    Raises:
        ValueError: If the buffer is empty.
    """
    store = buffer._store
    frames = np.empty((number, length), np.int32)
    drawn = buffer._draw_items(number, 0)
    rows = drawn
    # Of episodes that windows go on in: drawn many at a time, as a call takes longer than its numbers do.
    spare = np.empty(0, drawn.dtype)
    for t in range(length):
        frames[:, t] = rows
        following = store.next[rows]
        ends = np.flatnonzero(following < 0)
        rows = following
        if len(ends) and t + 1 < length:
            if len(spare) < len(ends):
                spare = np.concatenate([spare, buffer._draw(number)])
            other, spare = spare[: len(ends)], spare[len(ends) :]
            drawn = np.concatenate([drawn, other])
            rows[ends] = [buffer._records[owner].first for owner in store.owner[other].tolist()]
    is_final = store.next[frames] < 0
    acted = np.where(is_final, store.prev[frames], frames)
    before = store.prev[frames[:, 0]]
    flags = {name: store.take(name, acted) for name in (Columns.TERMINATEDS, Columns.TRUNCATEDS)}
    rewards, reward_before = (
        clipped_rewards(store.take(Columns.REWARDS, rows), clip_rewards) for rows in (acted, before)
    )
    buffer._note_sampled(drawn, number * length, None)
    columns = {
        Columns.OBS: store.take(Columns.OBS, frames),
        Columns.ACTIONS: store.take(Columns.ACTIONS, acted),
        **arithmetic.items(np, rewards, reward_before, is_final, before < 0, flags),
        **{name: take(store.extra(name), acted[:, 0] if name == Columns.STATE_IN else acted) for name in extra_columns},
    }
    return columns, buffer._indexes(frames)


def unnoticed(buffer: EpisodeReplayBuffer, seed: int) -> EpisodeReplayBuffer:
    """Returns a copy of a replay buffer, for draws that do not change the random generator and metrics of `buffer`.

    The copy shares the stored data, but has a new random generator, seeded with `seed`, and separate metrics.
    """
    view = copy.copy(buffer)
    view.rng = np.random.default_rng(seed)
    view._counts = copy.copy(buffer._counts)
    view._metrics = ReplayMetrics(1, view._counts)
    return view


def device_windows(
    replay: DeviceReplay, state: ReplayState, key: jax.Array | RandomNumbers, length: int
) -> tuple[dict[str, Any], ReplayItems]:
    """Draws ``N = replay.batch_size`` windows of consecutive items (observations with action and reward) from a device
    buffer. Each window begins at a random step.

    Args:
        replay: Fixed settings of the buffer, with `keep_terminal_obs` and uniform draws.
        state: State of a buffer with at least one step.
        key: PRNG key, or a result of `DeviceReplay.random_numbers`.
        length: T, number of items of each window, >= 1.

    Returns:
        ``({column: pytree [N, T, ...]}, items)`` as in `host_windows`, with the buffer's extra columns; `items`
        contains the rows and environments of the drawn items, each ``[N, T]``.

    Raises:
        ValueError: If the buffer stores no final observations of terminated episodes, does not draw uniformly or has
            masks, or `length` is out of range.
    """
    _require_windows(replay, length)
    if state.is_masked:
        raise ValueError(
            "Windows of consecutive steps need rollouts without loss_mask, but this buffer stores masks, so steps can "
            "be missing. Draw minibatches with DeviceReplay.sample() or sample_sequences()."
        )
    random = key if isinstance(key, RandomNumbers) else replay.random_numbers(key)
    start, env, _ = replay._draw(state, random.items, 0.0, None)
    size, env = jnp.maximum(state.size, 1), env[:, None]

    # Of T rows from the first one on: where in the window their items are. A row where the episode ends has two.
    ahead = (start[:, None] - jnp.arange(length, dtype=jnp.int32)) % size
    is_end = (replay._take(state, env, ahead)["ends"] != endings.GOES_ON) | (ahead == 0)
    place = jnp.cumsum(1 + is_end.astype(jnp.int32), axis=1) - is_end - 1
    times = jnp.arange(length, dtype=jnp.int32)
    row = jnp.sum(place[:, None, :] <= times[:, None], axis=2, dtype=jnp.int32) - 1
    is_final = jnp.take_along_axis(place, row, axis=1) < times
    ages = jnp.take_along_axis(ahead, row, axis=1)

    steps = replay._take(state, env, ages)
    before = replay._take(state, env[:, 0], jnp.minimum(start + 1, size - 1))
    begins = (start + 1 >= size) | (before["ends"] != endings.GOES_ON)
    rewards, reward_before = (
        clipped_rewards(taken["columns"][Columns.REWARDS].astype(jnp.float32), replay.clip_rewards)
        for taken in (steps, before)
    )
    here, led_to = replay._obs(state, steps, ages, env), replay._next_obs(state, steps, ages, env)
    columns = {
        **steps["columns"],
        Columns.OBS: jax.tree.map(lambda x, new: jnp.where(expand(is_final, x), new, x), here, led_to),
        **arithmetic.items(jnp, rewards, reward_before, is_final, begins, endings.flags(steps["ends"])),
    }
    if Columns.STATE_IN in columns:
        columns[Columns.STATE_IN] = jax.tree.map(lambda x: x[:, 0], columns[Columns.STATE_IN])
    return columns, replay._items(state, ages, jnp.broadcast_to(env, ages.shape))


def put_on_host(
    buffer: EpisodeReplayBuffer, items: np.ndarray, name: str, values: Mapping[str, Any], where: np.ndarray
) -> None:
    """Overwrites stored values of a module output, such as recurrent states, at the drawn items of a host buffer.
    Evicted items are skipped.

    Args:
        buffer: Buffer from which the items were drawn.
        items: int64, any shape, as `host_windows` returned them.
        name: Name of the module output, a dict.
        values: ``{key: [*items.shape, ...]}`` for some entries of the output. If an item occurs twice, its last value
            is stored.
        where: bool, with the shape of `items`: whether an item is written. Last observations are never written.
    """
    store = buffer._store
    store.own()
    rows = items & 0xFFFFFFFF
    is_there = where & (store.generation[rows] == items >> 32) & (store.next[rows] >= 0)
    for key, value in values.items():
        store.extra(name)[key][rows[is_there]] = np.asarray(value)[is_there]


def put_on_device(
    replay: DeviceReplay,
    state: ReplayState,
    items: ReplayItems,
    name: str,
    values: Mapping[str, jax.Array],
    where: jax.Array,
) -> ReplayState:
    """Overwrites stored values of a column, such as recurrent states, at the drawn items of a device buffer.

    Items that can no longer be drawn are skipped, for example if newer steps have replaced them.

    Args:
        replay: Fixed settings of the buffer.
        state: State from which the items were drawn, or a later one.
        items: Result of `device_windows`, any shape.
        name: Name of the column, a dict.
        values: As in `put_on_host`.
        where: bool, with the shape of `items`: whether an item is written.
    """
    ages = (state.num_rows - jnp.uint32(1) - items.rows).reshape(-1)
    is_there = where.reshape(-1) & (ages < state.size.astype(jnp.uint32))
    places = replay._places(state.head, jnp.where(is_there, ages, 0).astype(jnp.int32))
    rows = jnp.where(is_there, replay._flat(items.envs.reshape(-1), places), replay.num_envs * replay.num_rows)
    # In whatever order a device writes: of equal rows the last one alone.
    order = jnp.argsort(rows, stable=True)
    is_last = jnp.concatenate([rows[order][1:] != rows[order][:-1], jnp.ones((1,), bool)])
    rows = rows.at[order].set(jnp.where(is_last, rows[order], replay.num_envs * replay.num_rows))
    flat = {key: value.reshape(rows.shape[0], *value.shape[items.rows.ndim :]) for key, value in values.items()}
    return dataclasses.replace(state, ring=state.layout.put(state.ring, rows, ("columns", name), flat))


def _require_windows(replay: DeviceReplay, length: int) -> None:
    if not (arithmetic.is_int(length) and length >= 1):
        raise ValueError(f"length={length!r} must be an int >= 1.")
    if not (replay.keep_terminal_obs and replay._is_uniform):
        raise ValueError(
            "Windows of consecutive steps cannot be drawn from this replay buffer, which has "
            f"keep_terminal_obs={replay.keep_terminal_obs}, alpha={replay.alpha}, length={replay.length}. Create it "
            "with DeviceReplay(keep_terminal_obs=True, alpha=None, length=1)."
        )
