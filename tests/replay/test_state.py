"""A restored buffer goes on bit for bit."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc

import jax
import ml_dtypes
import numpy as np
import pytest
from replay_cases import Blocks, Chunks, contents

from jaxrl_stack.env.single_agent_episode import SingleAgentEpisode
from jaxrl_stack.replay import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer

both = pytest.mark.parametrize("cls", [EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer])


def go_on(buffer, chunks, blocks, rounds):
    """Add, sample and update; everything that came out."""
    out = []
    for _ in range(rounds):
        buffer.add(chunks.next())
        buffer.add_block(blocks.next(), stream=("runner", 1))
        batch = buffer.sample_batch(16, n_step=(1, 4), beta=0.4)
        out.append(batch)
        out.append(buffer.sample_sequences(4, batch_length_T=3, burn_in_len=2, state_column="where"))
        out.append([episode.get_state() for episode in buffer.sample(4, n_step=2, sample_episodes=True, beta=0.4)])
        if isinstance(buffer, PrioritizedEpisodeReplayBuffer):
            buffer.update_priorities(batch["rewards"], indices=batch["batch_indexes"])
    out.append(sorted(contents(buffer)))
    out.append([len(buffer), buffer.get_num_episodes(), buffer.get_added_timesteps(), buffer.get_sampled_timesteps()])
    return out


def copy(state):
    return jax.tree.map(lambda x: x.copy() if isinstance(x, np.ndarray) else x, state)


def assert_same(left, right):
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        np.testing.assert_array_equal(a, b)


@both
@pytest.mark.parametrize("capacity", [30, 1000])
def test_round_trip(cls, capacity, tmp_path):
    """Through a checkpoint on disk, and by hand into a buffer that has held other things."""
    chunks, blocks, buffer = Chunks(0), Blocks(1), cls(capacity, seed=5)
    go_on(buffer, chunks, blocks, 15)
    state = buffer.get_state()
    json.dumps(state["rng"])
    path = buffer.save_to_path(tmp_path / "buffer")
    loaded = cls.from_checkpoint(path)
    other = cls(capacity, seed=77)
    go_on(other, Chunks(8), Blocks(9), 3)
    other.set_state(state)
    assert_same(other.get_state(), state)
    assert_same(loaded.get_state(), state)

    rest = []
    for restored in (buffer, loaded, other):
        sources = Chunks(0), Blocks(1)
        go_on(cls(capacity, seed=5), *sources, 15)  # The sources as they stood then.
        rest.append(go_on(restored, *sources, 10))
    assert_same(rest[1], rest[0])
    assert_same(rest[2], rest[0])


@both
def test_a_state_is_a_copy(cls):
    chunks, blocks, buffer = Chunks(0), Blocks(1), cls(40, seed=5)
    go_on(buffer, chunks, blocks, 5)
    state = buffer.get_state()
    copied = copy(state)
    other = cls(40)
    other.set_state(state)
    go_on(buffer, chunks, blocks, 5)
    go_on(other, Chunks(3), Blocks(3), 2)
    assert_same(jax.tree.map(np.array, state), copied)


@both
def test_an_empty_buffer(cls, tmp_path):
    buffer = cls(40, seed=1)
    loaded = cls.from_checkpoint(buffer.save_to_path(tmp_path / "empty"))
    assert len(loaded) == 0
    assert_same(go_on(loaded, Chunks(0), Blocks(0), 2), go_on(buffer, Chunks(0), Blocks(0), 2))


@both
def test_infos_and_arguments_in_checkpoints(cls, tmp_path):
    buffer = cls(40, seed=1, batch_size_B=3, extra_columns=["where"], metrics_num_episodes_for_smoothing=7)
    chunks = Chunks(0)
    for episode in chunks.next():
        episode.set_observations(new_data=episode.get_observations())
        episode.infos.data[0] = {"lives": 3}
        buffer.add(episode)
    loaded = cls.from_checkpoint(buffer.save_to_path(tmp_path / "buffer"))
    assert [episode.get_infos(0) for episode in loaded.episodes] == [{"lives": 3}] * 3
    assert loaded.get_ctor_args_and_kwargs() == buffer.get_ctor_args_and_kwargs()


@both
def test_states_that_do_not_fit(cls):
    chunks, blocks, buffer = Chunks(0), Blocks(1), cls(100, seed=5)
    go_on(buffer, chunks, blocks, 8)
    state = buffer.get_state()
    small = cls(20)
    with pytest.raises(ValueError, match=r"steps, but this one has capacity=20"):
        small.set_state(state)
    assert len(small) == 0
    before = buffer.get_state()
    for damage in (
        lambda data: data["store"]["free"].__setitem__(0, 10**6),
        lambda data: data["store"]["free"].__setitem__(0, data["store"]["free"][1]),
        lambda data: data["store"]["links"]["owner"].__setitem__(0, 0),
        lambda data: data["store"]["links"]["next"].__setitem__(slice(None), 10**6),
        lambda data: data["store"]["links"].update(prev=data["store"]["links"]["prev"].astype(np.int64)),
        lambda data: data["store"]["links"].update(t=data["store"]["links"]["t"][1:]),
        lambda data: data["items"]["rows"].__setitem__(0, data["items"]["rows"][1]),
    ):
        broken = copy(buffer.get_state())
        damage(broken["data"])
        with pytest.raises(ValueError, match="saved replay buffer is damaged"):
            buffer.set_state(broken)
        assert_same(buffer.get_state(), before)
    with pytest.raises(ValueError, match="bit generator MT19937"):
        buffer.set_state({"rng": {"bit_generator": "MT19937"}})
    # Random numbers that fit do not stay if the data does not.
    broken["rng"] = cls(100, seed=6).get_state()["rng"]
    with pytest.raises(ValueError, match="saved replay buffer is damaged"):
        buffer.set_state(broken)
    assert_same(buffer.get_state(), before)
    buffer.set_state(buffer.get_state("data"))
    assert list(buffer.get_state(not_components="data")) == ["rng"]


@both
def test_many_short_episodes_are_stored_as_arrays(cls, tmp_path):
    """Nothing in the JSON files grows with their number: these have a bound."""
    num_envs = 2000
    ends = np.broadcast_to(np.arange(num_envs) > 1, (2, num_envs))  # Two go on.
    columns = {
        "obs": np.zeros((2, num_envs, 1), np.uint8),
        "final_obs": np.zeros((2, num_envs, 1), np.uint8),
        "actions": np.zeros((2, num_envs), np.int8),
        "rewards": np.zeros((2, num_envs), np.float32),
        "terminateds": ends,
        "truncateds": np.zeros_like(ends),
    }
    buffer = cls(5000, seed=0)
    buffer.add_block(columns, stream=("runner", 1))
    shorts = [
        SingleAgentEpisode(
            f"é{i}",
            observations=[np.zeros(1, np.uint8)] * 2,
            actions=[np.int8(0)],
            rewards=[1.0],
            terminated=i % 2 == 0,
            agent_id=("team", i % 2),
            module_id=None if i % 3 else "p0",
            multi_agent_episode_id=f"m{i}" if i % 5 == 0 else None,
            len_lookback_buffer=0,
        )
        for i in range(500)
    ]
    buffer.add(shorts)
    buffer._by_id["é7"].custom_data["x"] = [1]
    assert buffer.get_num_episodes() == 2 + 3996 + 500
    path = buffer.save_to_path(tmp_path / "buffer")
    assert sum(file.stat().st_size for file in (tmp_path / "buffer").rglob("*.json")) < 50_000

    loaded = cls.from_checkpoint(path)
    assert loaded._records == buffer._records
    for restored in (buffer, loaded):
        with pytest.raises(ValueError, match="this id has already ended"):
            restored.add(shorts[0])
        restored.add_block(columns, stream=("runner", 1))
    assert_same(loaded.get_state(), buffer.get_state())


def steps(number, seed):
    obs = np.random.default_rng(seed).integers(256, size=(number, 1, 1024), dtype=np.uint8)
    ends = np.zeros((number, 1), bool)
    zeros = np.zeros((number, 1), np.float32)
    return {"obs": obs, "final_obs": obs, "actions": zeros, "rewards": zeros, "terminateds": ends, "truncateds": ends}


@both
def test_states_share_memory_until_something_is_written(cls, tmp_path):
    """Neither what is saved is copied, nor what is read, if nothing else holds it when the buffer is written to."""
    saved, buffer = cls(8192, seed=0), cls(8192, seed=1)
    saved.add_block(steps(8000, 0), starts=np.ones(1, bool))
    buffer.add_block(steps(8192, 1), starts=np.ones(1, bool))
    num_bytes = 8000 * 1024

    def most_bytes(function):
        tracemalloc.start()
        try:
            function()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    more = steps(8, 2)
    path = tmp_path / "buffer"
    assert most_bytes(lambda: saved.save_to_path(path)) < 0.2 * num_bytes
    assert most_bytes(lambda: saved.add_block(more, starts=np.zeros(1, bool))) < 0.2 * num_bytes
    saved.save_to_path(path)
    assert most_bytes(lambda: buffer.restore_from_path(path)) < 1.2 * num_bytes  # What is read.
    state = saved.get_state()
    assert_same(buffer.get_state(), state)
    assert most_bytes(lambda: buffer.set_state(state)) < 0.2 * num_bytes
    assert_same(buffer.sample_batch(100), saved.sample_batch(100))
    # Three have the same arrays now, until two of them go on.
    before = copy(state)
    for one in (buffer, saved):
        one.add_block(more, starts=np.zeros(1, bool))
    assert_same(state, before)
    assert_same(buffer.get_state(), saved.get_state())
    assert_same(buffer.sample_batch(100), saved.sample_batch(100))


@both
def test_a_part_of_a_part_of_a_state_stays_as_it_was(cls):
    buffer = cls(100, seed=0)
    block = steps(90, 0) | {"latent": np.ones((90, 1, 4), ml_dtypes.bfloat16)}
    buffer.add_block(block, starts=np.ones(1, bool))
    column = buffer.get_state()["data"]["store"]["parts"][0]["extras"]["latent"]
    held, expected = column[5:80][10:20, 1:], np.array(column[15:25, 1:])
    assert column.dtype == ml_dtypes.bfloat16 and not held.flags.writeable
    del column
    buffer.add_block(block | {"latent": 2 * block["latent"]}, starts=np.ones(1, bool))
    np.testing.assert_array_equal(held, expected)
    assert (buffer._store.extras["latent"] == 2).any()


MEMORY = """
import pathlib, sys
import numpy as np
from jaxrl_stack.replay import EpisodeReplayBuffer

def in_memory(what):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))

def block(value):
    obs = np.full((1024, 1, 8192), value, np.uint8)
    ends, zeros = np.zeros((1024, 1), bool), np.zeros((1024, 1), np.float32)
    return dict(obs=obs, final_obs=obs, actions=zeros, rewards=zeros, terminateds=ends, truncateds=ends)

before = in_memory("VmRSS")
buffer = EpisodeReplayBuffer(2**15, seed=0)
for value in range(32):
    buffer.add_block(block(value))
filled = in_memory("VmHWM") - before
buffer.save_to_path(sys.argv[1])
buffer.add_block(block(32))
del buffer
buffer = EpisodeReplayBuffer.from_checkpoint(sys.argv[1])
buffer.add_block(block(32))
assert buffer.sample_batch(64)["obs"].shape == (64, 8192)
print((in_memory("VmHWM") - before) / filled)
"""


def test_a_large_buffer_is_saved_and_restored_within_its_own_memory(tmp_path):
    """256 MiB of frames, in a process of its own: what the system gives it at most."""
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "buffer")]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert float(output) < 1.2
