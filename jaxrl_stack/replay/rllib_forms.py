"""Construction of the results of `EpisodeReplayBuffer.sample`, in the formats of RLlib's replay buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.episodes.single_agent_episode import IDENTITY, SingleAgentEpisode
from jaxrl_stack.replay import items
from jaxrl_stack.replay.arithmetic import IS_FIRST, IS_LAST, N_STEP, WEIGHTS
from jaxrl_stack.utils.nested import take, unbatch

if TYPE_CHECKING:
    from jaxrl_stack.replay.episode_records import Record
    from jaxrl_stack.replay.episode_replay_buffer import EpisodeReplayBuffer


def rows_of_frames(buffer: EpisodeReplayBuffer, number: int, length: int) -> dict[str, Any]:
    """Draws `number` rows, each with the data of `length` steps, from a replay buffer.

    Each row contains `length` consecutive observations, actions and rewards. If an episode ends within a row, the row
    continues with the start of another episode.
    """
    columns, _ = items.host_windows(buffer, number, length)
    # RLlib's rows are taken for pieces of episodes that begin and end with them.
    columns[IS_FIRST][:, 0] = True
    columns[IS_LAST][:, -1] = True
    return columns


def transitions(
    buffer: EpisodeReplayBuffer,
    number: int,
    *,
    n_step: int | tuple[int, int],
    gamma: float,
    beta: float,
    min_steps: int,
    include_infos: bool,
    include_extras: bool,
    to_numpy: bool,
) -> list[SingleAgentEpisode]:
    """Draws `number` n-step transitions, each as an episode of one step."""
    store, infos = buffer._store, buffer._infos
    rows = buffer._draw_items(number, min_steps)
    window = store.windows(rows, *buffer._n_steps(n_step, number), gamma)
    buffer._note_sampled(rows, number, int(window.lengths.sum()) / number)
    obs, new_obs = (unbatch(store.take(Columns.OBS, at)) for at in (rows, window.new))
    actions = unbatch(store.take(Columns.ACTIONS, rows))
    terminateds = store.take(Columns.TERMINATEDS, window.last).tolist()
    truncateds = store.take(Columns.TRUNCATEDS, window.last).tolist()
    outputs = {name: unbatch(take(store.extras[name], rows)) for name in sorted(store.extras) if include_extras}
    outputs[N_STEP] = window.lengths.tolist()
    outputs[WEIGHTS] = buffer._importance_weights(rows, beta).tolist()
    rewards, times, owners = (x.tolist() for x in (window.rewards, store.t[rows], store.owner[rows]))
    episodes = []
    for i, (row, new) in enumerate(zip(rows.tolist(), window.new.tolist(), strict=True)):
        record = buffer._records[owners[i]]
        episode = SingleAgentEpisode(
            **_identity(buffer, record),
            observations=[obs[i], new_obs[i]],
            infos=[infos.get(row, {}), infos.get(new, {})] if include_infos else None,
            actions=[actions[i]],
            rewards=[rewards[i]],
            terminated=terminateds[i],
            truncated=truncateds[i],
            extra_model_outputs={name: [values[i]] for name, values in outputs.items()},
            t_started=times[i],
            len_lookback_buffer=0,
        )
        episodes.append(episode.to_numpy() if to_numpy else episode)
    return episodes


def sequences(
    buffer: EpisodeReplayBuffer,
    number: int,
    *,
    length: int,
    lookback: int,
    beta: float,
    min_steps: int,
    include_infos: bool,
) -> list[SingleAgentEpisode]:
    """Draws pieces of episodes until they have at least `number` steps in total.

    Returns each piece as an episode of at most `length` steps. The total is at most ``number + length - 1``.
    """
    store = buffer._store
    starts, chains, total, resamples = [], [], 0, 0
    while total < number:
        # None is longer than `length`: all of them are needed.
        rows = buffer._draw_items(-(-(number - total) // length), min_steps)
        resamples += buffer._num_resamples
        frames, sizes = store.chain(rows, length)
        before, num_before = store.chain(rows, lookback, backwards=True)
        starts.append(rows)
        for back, earlier, ahead, later in zip(num_before.tolist(), before, sizes.tolist(), frames, strict=True):
            chains.append((np.concatenate([earlier[back:0:-1], later[: ahead + 1]]), back))
        total += int(sizes.sum())
    drawn = np.concatenate(starts)
    buffer._last_sampled, buffer._num_resamples = buffer._indexes(drawn), resamples
    buffer._note_sampled(drawn, total, 1.0)
    weights = buffer._importance_weights(drawn, beta)
    return [
        episode(buffer, frames, back, include_infos, weight=weight)
        for (frames, back), weight in zip(chains, weights, strict=True)
    ]


def episode(
    buffer: EpisodeReplayBuffer,
    frames: np.ndarray,
    lookback: int,
    include_infos: bool,
    *,
    weight: np.float32 | None = None,
) -> SingleAgentEpisode:
    """Builds a `SingleAgentEpisode` from stored rows of a replay buffer.

    `frames` contains the rows' indices in the order of time. If `weight` is given, adds the extra model outputs
    "n_step" (all 1) and "weights" (all `weight`), as in RLlib.
    """
    store = buffer._store
    steps = frames[:-1]
    record = buffer._records[int(store.owner[frames[0]])]
    is_end = store.next[frames[-1]] < 0
    extras = {name: take(tree, steps) for name, tree in store.extras.items()}
    if weight is not None:
        extras[N_STEP] = np.ones(len(steps), np.int64)
        extras[WEIGHTS] = np.full(len(steps), weight)
    episode = SingleAgentEpisode.from_arrays(
        observations=store.take(Columns.OBS, frames),
        actions=store.take(Columns.ACTIONS, steps),
        rewards=store.take(Columns.REWARDS, steps),
        terminated=bool(is_end and store.columns[Columns.TERMINATEDS][steps[-1]]),
        truncated=bool(is_end and store.columns[Columns.TRUNCATEDS][steps[-1]]),
        infos=[buffer._infos.get(row, {}) for row in frames.tolist()] if include_infos else None,
        extra_model_outputs=extras,
        t_started=int(store.t[frames[lookback]]),
        len_lookback_buffer=lookback,
        **_identity(buffer, record),
    )
    episode.custom_data.update(record.custom_data)
    return episode


def _identity(buffer: EpisodeReplayBuffer, record: Record) -> dict[str, Any]:
    """Constructor arguments that identify a stored episode: ids of episode, agent and module, and the spaces."""
    spaces = {"observation_space": buffer.observation_space, "action_space": buffer.action_space}
    return {name: getattr(record, name) for name in IDENTITY} | spaces
