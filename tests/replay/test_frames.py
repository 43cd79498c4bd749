"""One frame kept per step: what is drawn has the bits of what is drawn from whole stacks of frames."""

from __future__ import annotations

import dataclasses
import functools

import gymnasium as gym
import jax
import numpy as np
import pytest

from jaxrl_stack.env.single_agent_episode import SingleAgentEpisode
from jaxrl_stack.replay.device_replay import DeviceReplay
from jaxrl_stack.utils.replay_buffers import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer

NUM_FRAMES = 3
BOX, DISCRETE = gym.spaces.Box(0, 255, (2, 2 * NUM_FRAMES), np.uint8), gym.spaces.Discrete(9)


class Stacks:
    """Environments whose observations are the last frames of their episode, zeros before it, side by side."""

    def __init__(self, num_envs: int, seed: int = 0, p: float = 0.15, longest: int = 10**6):
        self.rng, self.p, self.longest = np.random.default_rng(seed), p, longest
        self.num_envs = num_envs
        self.age = np.zeros(num_envs, int)
        self.obs = self.begin()

    def frame(self):
        return self.rng.integers(1, 256, (self.num_envs, 2, 2), dtype=np.uint8)

    def begin(self):
        return np.concatenate([np.zeros((self.num_envs, 2, 2 * (NUM_FRAMES - 1)), np.uint8), self.frame()], -1)

    def row(self):
        final_obs = np.concatenate([self.obs[..., 2:], self.frame()], -1)
        terminateds, truncateds = self.rng.random((2, self.num_envs)) < self.p
        self.age += 1
        truncateds |= self.age >= self.longest
        ended = terminateds | truncateds
        self.age[ended] = 0
        row = {
            "obs": self.obs,
            "actions": self.rng.integers(9, size=self.num_envs).astype(np.int32),
            "rewards": self.rng.normal(size=self.num_envs).astype(np.float32),
            "terminateds": terminateds,
            "truncateds": truncateds,
            "final_obs": final_obs,
        }
        self.obs = np.where(ended[:, None, None], self.begin(), final_obs)
        return row

    def rollout(self, num_steps: int):
        return jax.tree.map(lambda *x: np.stack(x), *[self.row() for _ in range(num_steps)])


def assert_same(left, right):
    jax.tree.map(np.testing.assert_array_equal, left, right)


@pytest.mark.parametrize("settings", [dict(n_step=(1, 3)), dict(num_final_obs=2)], ids=["n-step", "slots"])
def test_the_device_draws_the_same_from_frames_as_from_stacks(settings):
    whole = DeviceReplay(capacity=23, num_envs=2, batch_size=60, length=4, **settings)
    frames = dataclasses.replace(whole, num_frames=NUM_FRAMES)
    source = Stacks(2, seed=len(settings))
    states, functions = [], []
    for replay in (whole, frames):
        add, sample = jax.jit(replay.add, donate_argnums=0), jax.jit(replay.sample)
        sequences = jax.jit(functools.partial(replay.sample_sequences, burn_in=2))
        functions.append((add, sample, sequences, jax.jit(replay.cut)))
        states.append(replay.init(source.rollout(1)))
    for i in range(16):
        # Shorter and longer than what comes before a row, and all that the ring holds.
        columns = source.rollout(11 if i % 4 == 3 else 1)
        is_cut = i in (0, 9, 14)
        key = jax.random.key(i)
        drawn = []
        for k, (add, sample, sequences, cut) in enumerate(functions):
            states[k] = add(cut(states[k]) if is_cut else states[k], columns)
            drawn.append((states[k].size, sample(states[k], key), sequences(states[k], key)))
        assert_same(*drawn)
    ring = frames.init(columns)
    size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(ring))
    assert ring.frames.pixels.shape == (2, 11 + 4, 2, 2)
    assert frames.memory_estimate(columns).num_bytes == size


def test_after_two_cuts_at_once_a_ring_of_frames_is_shorter_and_right():
    """In front of the rows after a cut there are frames that are no row's; there is room for those of one cut."""
    replay = DeviceReplay(capacity=12, num_envs=1, batch_size=200, num_frames=NUM_FRAMES, alpha=0.5)
    source, state = Stacks(1, p=0.0), None
    add, cut, sample = jax.jit(replay.add), jax.jit(replay.cut), jax.jit(replay.sample)
    rows = []
    for size in (12, 12, 3, 10, 12):
        columns = source.rollout(4 if size != 3 else 3)
        state = add(replay.init(columns) if state is None else cut(cut(state)), columns)
        rows += list(columns["obs"])
        size = min(size, len(rows))
        batch, items = sample(state, jax.random.key(len(rows)))
        assert int(state.size) == len(set(np.asarray(items.rows).tolist()))
        for row, obs in zip(np.asarray(items.rows).tolist(), np.asarray(batch["obs"]), strict=True):
            np.testing.assert_array_equal(obs, rows[row][0])
    assert int(state.size) == 8


def test_what_is_drawn_after_a_cut_that_no_row_follows_has_its_frames():
    replay = DeviceReplay(capacity=12, num_envs=1, batch_size=60, num_frames=NUM_FRAMES)
    columns = Stacks(1, p=0.0).rollout(5)
    state = jax.jit(replay.cut)(jax.jit(replay.add)(replay.init(columns), columns))
    batch, items = jax.jit(replay.sample)(state, jax.random.key(0))
    rows = np.asarray(items.rows)
    np.testing.assert_array_equal(batch["obs"], columns["obs"][rows, 0])
    np.testing.assert_array_equal(batch["new_obs"], columns["final_obs"][rows, 0])


def test_frames_that_do_not_divide_are_refused():
    columns = Stacks(2).rollout(1)
    with pytest.raises(ValueError, match=r"num_frames=4: .* observations have shape \(2, 6\)\. Use num_frames=1"):
        DeviceReplay(capacity=20, num_envs=2, batch_size=3, num_frames=4).init(columns)
    with pytest.raises(ValueError, match="num_frames=0 must be"):
        DeviceReplay(capacity=20, num_envs=2, batch_size=3, num_frames=0)


# ---------------------------------------------------------------------------------------------------------- on the host


def pair(cls, capacity: int, **more):
    return [cls(capacity, seed=0, num_frames=number, **more) for number in (1, NUM_FRAMES)]


def draws(buffer):
    """All ways to look at what a buffer holds; after a terminated step no next observation counts."""
    transitions = buffer.sample_batch(12, n_step=(1, 4))
    transitions["new_obs"][transitions["terminateds"]] = 0
    sequences = buffer.sample_sequences(8, batch_length_T=4, burn_in_len=2)
    sequences["new_obs"][sequences["terminateds"]] = 0
    return transitions, sequences


@pytest.mark.parametrize("cls", [EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer])
@pytest.mark.parametrize(("p", "gap"), [(0.15, None), (0.02, 11)], ids=["evicted", "running-and-restarted"])
def test_the_host_draws_the_same_from_frames_as_from_stacks(cls, p, gap):
    """Episodes begin, end and are evicted; the oldest of one that runs go; a stream goes on with steps left out."""
    buffers, source = pair(cls, 40), Stacks(3, seed=3, p=p)
    for i in range(25):
        columns = source.rollout(1 + i % 5)
        if i == gap:
            continue
        for buffer in buffers:
            buffer.add_block(columns, serial=i, starts=columns["obs"][0, ..., : 2 * (NUM_FRAMES - 1)].max((1, 2)) == 0)
        assert_same(*map(draws, buffers))
    whole, frames = buffers
    assert frames._store.columns["obs"].shape[1:] == (2, 2)
    assert [len(b.episodes) for b in buffers] == [whole.get_num_episodes()] * 2
    for left, right in zip(*(b.episodes for b in buffers), strict=True):
        assert_same(left.get_observations(slice(0, len(left))), right.get_observations(slice(0, len(left))))


def test_episodes_in_chunks_and_a_state_are_the_same_from_frames_as_from_stacks(tmp_path):
    buffers, source = pair(EpisodeReplayBuffer, 30), Stacks(1, p=0.0)
    episode = SingleAgentEpisode(observations=[source.obs[0]], observation_space=BOX, action_space=DISCRETE)
    for i in range(60):
        row = source.row()
        ends = i in (6, 16)
        episode.add_env_step(row["final_obs"][0], int(row["actions"][0]), float(row["rewards"][0]), truncated=ends)
        if ends:
            source.obs = source.begin()
        if ends or i % 5 == 4:
            for buffer in buffers:
                buffer.add(episode)
            episode = SingleAgentEpisode(observations=[source.obs[0]]) if ends else episode.cut()
        if len(buffers[0]):
            assert_same(*map(draws, buffers))
    whole, frames = buffers
    loaded = EpisodeReplayBuffer(30, seed=1, num_frames=NUM_FRAMES)
    loaded.restore_from_path(frames.save_to_path(tmp_path / "frames"))
    assert_same(draws(loaded), draws(whole))
    # Steps of the oldest episode were evicted, which begins with frames that are no row's.
    assert len(loaded._store._earlier) == 1
    # What was saved as whole stacks stays so.
    loaded.set_state(whole.get_state())
    assert loaded._store.columns["obs"].shape[1:] == (2, 6)
    assert_same(draws(loaded), draws(whole))
    assert 3 * frames.memory_estimate().columns["obs"] == whole.memory_estimate().columns["obs"] == 30 * 12


def test_frames_that_do_not_divide_are_refused_by_a_buffer():
    buffer = EpisodeReplayBuffer(30, num_frames=4)
    with pytest.raises(ValueError, match=r"num_frames=4: .* observations have shape \(2, 6\)\. Use num_frames=1"):
        buffer.add_block(Stacks(1).rollout(1))
    with pytest.raises(ValueError, match="num_frames=0"):
        EpisodeReplayBuffer(30, num_frames=0)
