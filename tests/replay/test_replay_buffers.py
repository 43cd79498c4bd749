"""Both replay buffers: what they hold, and that every item is what happened."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from replay_cases import Blocks, Chunks, Truth, action_of, chunk, contents, reward_of

from jaxrl_stack.acting.episode_builder import EpisodeBuilder
from jaxrl_stack.env.single_agent_episode import SingleAgentEpisode
from jaxrl_stack.replay import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer
from jaxrl_stack.replay import episode_replay_buffer as module
from jaxrl_stack.utils import memory

CLASSES = (EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer)
both = pytest.mark.parametrize("cls", CLASSES)


def full(cls, *, lengths=(5, 1, 9, 12), capacity=1000, running=(), **kwargs):
    """A buffer with episodes of these lengths, the ends of which differ, and their truth."""
    truth, buffer = Truth(), cls(capacity, seed=0, **kwargs)
    for e, length in enumerate(lengths):
        truth.lengths.append(length + (e in running))
        truth.terminateds.append(e % 2 == 0)
        truth.truncateds.append(e % 2 == 1)
        truth.given.append(0)
        buffer.add(chunk(truth, e, 0, length))
    return buffer, truth


class Reference:
    """What a buffer holds, by the rules, as lists: ``[(episode, step), ...]`` per episode, oldest first."""

    def __init__(self, capacity: int):
        self.capacity, self.records, self.num_evicted = capacity, [], 0

    def add(self, e: int, first: int, last: int, ends: bool) -> None:
        steps = [(e, t) for t in range(first, last)][-self.capacity :]
        while (excess := sum(len(r["steps"]) for r in self.records) + len(steps) - self.capacity) > 0:
            oldest = self.records[0]
            oldest["steps"] = [] if oldest["ended"] else oldest["steps"][excess:]
            if not oldest["steps"]:
                del self.records[0]
                self.num_evicted += 1
        if not (self.records and any(r["e"] == e for r in self.records)):
            self.records.append({"e": e, "steps": [], "ended": False})
        record = next(r for r in self.records if r["e"] == e)
        record["steps"] += steps
        record["ended"] = ends


# --------------------------------------------------------------------------------------------------- items and eviction


@both
@pytest.mark.parametrize(("capacity", "seed"), [(20, 0), (37, 1), (64, 2), (500, 3)])
def test_items_of_episodes_in_chunks(cls, capacity, seed):
    source, buffer, reference = Chunks(seed), cls(capacity, seed=seed), Reference(capacity)
    for round_ in range(40):
        chunks = source.next()
        buffer.add(chunks)
        for part in chunks:
            e = int(part.id_[1:])
            reference.add(e, part.t_started, part.t, part.is_done)
        assert [len(episode) for episode in buffer.episodes] == [len(r["steps"]) for r in reference.records]
        assert contents(buffer) == {step for r in reference.records for step in r["steps"]}
        assert buffer.get_num_episodes_evicted() == reference.num_evicted
        if round_ % 8 == 7:
            for wanted in (1, 3, (2, 5)):
                source.truth.check(buffer.sample_batch(64, n_step=wanted, gamma=0.5), wanted, 0.5)
    assert buffer.get_added_timesteps() == sum(source.truth.given)
    assert len(buffer) == buffer.get_num_timesteps() == min(len(contents(buffer)), capacity)


@both
@pytest.mark.parametrize("resets_take_a_row", [False, True])
@pytest.mark.parametrize(
    ("capacity", "seed", "num_envs"), [(30, 0, 3), (64, 1, 3), (1000, 2, 3), (30, 3, 1), (1000, 4, 1)]
)
def test_items_of_blocks(cls, capacity, seed, num_envs, resets_take_a_row):
    source, buffer = Blocks(seed, num_envs, resets_take_a_row=resets_take_a_row), cls(capacity, seed=seed)
    for serial in range(40):
        buffer.add_block(source.next(), serial=serial)
        if serial % 8 == 7:
            for wanted in (1, 3, (2, 5)):
                batch = buffer.sample_batch(64, n_step=wanted, gamma=0.5, extra_columns=["where"])
                source.truth.check(batch, wanted, 0.5)
                np.testing.assert_array_equal(batch["where"], batch["obs"])
    assert buffer.get_added_timesteps() == sum(source.truth.given)
    steps = contents(buffer)
    assert len(buffer) == len(steps) <= capacity
    if capacity == 1000:
        assert steps == {(e, t) for e, given in enumerate(source.truth.given) for t in range(given)}
        assert buffer.get_num_episodes() == sum(given > 0 for given in source.truth.given)
    else:
        assert len(buffer) > capacity - 12  # Whole episodes at most are missing.
        assert steps <= {(e, t) for e, given in enumerate(source.truth.given) for t in range(given)}


def test_blocks_and_their_episodes_make_the_same_items():
    source = Blocks(5, resets_take_a_row=True)
    builder = EpisodeBuilder(None, None, 0)
    of_blocks, of_episodes = EpisodeReplayBuffer(1000), EpisodeReplayBuffer(1000)
    for _ in range(12):
        block = source.next()
        of_blocks.add_block(block)
        of_episodes.add([episode for _, episode in builder.add(block)])
        of_episodes.add(builder.cut())
    assert contents(of_blocks) == contents(of_episodes)

    def items(buffer):
        batch = buffer.sample_batch(2000, n_step=3)
        keys = ("obs", "actions", "rewards", "terminateds", "truncateds", "n_step", "where")
        batch["where"] = batch["new_obs"] * ~batch["terminateds"][:, None]
        return {tuple(np.concatenate([np.ravel(batch[key][i]) for key in keys]).tolist()) for i in range(2000)}

    assert items(of_blocks) == items(of_episodes)


def test_streams_are_apart():
    sources = [Blocks(seed, num_envs=2) for seed in (0, 1)]
    buffer = EpisodeReplayBuffer(1000)
    for source in sources:
        for e in range(500):  # Their episodes are told apart by their numbers.
            source.truth.lengths.insert(0, e) if source is sources[1] else None
    sources[1].truth.terminateds[:0] = sources[1].truth.truncateds[:0] = [False] * 500
    sources[1].truth.given[:0] = [0] * 500
    sources[1].now = [e + 500 for e in sources[1].now]
    for serial in range(20):
        for worker, source in enumerate(sources):
            buffer.add_block(source.next(), stream=(worker, 0), serial=serial)
    for _ in range(4):
        batch = buffer.sample_batch(64, n_step=3)
        e = batch["obs"][:, 0]
        for source, rows in ((sources[0], e < 500), (sources[1], e >= 500)):
            source.truth.check({name: column[rows] for name, column in batch.items()}, 3, 0.99)


@both
def test_nothing_reaches_over_a_reset_that_no_flag_tells(cls):
    """An environment that was made anew, a block that was lost, a runner that was restarted."""
    for how in ("starts", "serial", "observation", "stream"):
        source, buffer = Blocks(3, num_envs=2, longest=50), cls(1000, seed=0)
        source.truth.lengths[:] = [50, 50]
        buffer.add_block(source.next(4), serial=0)
        old = list(source.now)
        source.now[0] = source.truth.new(source.rng)
        source.truth.lengths[-1] = 50
        if how == "serial":
            source.now[1] = source.truth.new(source.rng)
            source.truth.lengths[-1] = 50
        kwargs = {
            "starts": {"starts": np.array([True, False]), "serial": 1},
            "serial": {"serial": 2},
            "observation": {"serial": 1},
            "stream": {"stream": "another"},
        }[how]
        buffer.add_block(source.next(4), **kwargs)
        batch = buffer.sample_batch(200, n_step=6)
        known = {0: 4, 1: 8 if how in ("starts", "observation") else 4}
        for (e, t), k, new in zip(batch["obs"], batch["n_step"], batch["new_obs"], strict=True):
            if e in old and not (how == "stream" and e == 1):
                assert k == min(6, known[int(e)] - t)
            assert new.tolist() == [e, t + k], how
        # Episodes that go nowhere are evicted as a whole.
        assert [record.is_running for record in buffer._records.values()].count(False) == (
            {"starts": 1, "serial": 2, "observation": 1, "stream": 0}[how]
        )


def test_moving_statistics_of_a_filter():
    """The module's inputs before and after a cut differ; the later ones are what it acted on."""
    source, buffer = Blocks(3, num_envs=1, longest=50), EpisodeReplayBuffer(1000, seed=0)
    source.truth.lengths[:] = [50]
    first, second = source.next(3), source.next(3)
    first["final_obs"][-1] += 0.25
    first["final_obs"][-1, :, 0] = 0
    for starts, longest in ((None, 3), (np.array([False]), 5)):
        buffer = EpisodeReplayBuffer(1000, seed=0)
        buffer.add_block(first)
        buffer.add_block(second, starts=starts)
        batch = buffer.sample_batch(100, n_step=5)
        assert batch["n_step"].max() == longest
        next_obs = batch["new_obs"][batch["obs"][:, 1] + batch["n_step"] == 3]
        assert (next_obs == ([0, 3.25] if starts is None else [0, 3])).all()


@both
def test_a_truncated_step_bootstraps_from_the_final_observation(cls):
    buffer = cls(100, seed=0)
    one = np.ones((1, 1), bool)
    buffer.add_block(
        {
            "obs": np.array([[[1.0]], [[50.0]]]),
            "final_obs": np.array([[[2.0]], [[51.0]]]),
            "actions": np.zeros((2, 1, 3)),
            "rewards": np.ones((2, 1)),
            "terminateds": np.zeros((2, 1), bool),
            "truncateds": np.concatenate([one, ~one]),
        }
    )
    batch = buffer.sample_batch(50, n_step=4)
    is_old = batch["obs"][:, 0] == 1
    assert is_old.any()
    assert not is_old.all()
    assert (batch["new_obs"][is_old] == 2).all()
    assert (batch["new_obs"][~is_old] == 51).all()
    np.testing.assert_array_equal(batch["truncateds"], is_old)
    assert not batch["terminateds"].any()
    assert batch["n_step"].dtype == batch["rewards"].dtype == batch["weights"].dtype == np.float32


@both
def test_an_episode_longer_than_the_buffer_keeps_its_last_steps(cls):
    buffer, truth = full(cls, lengths=(30,), capacity=20)
    assert contents(buffer) == {(0, t) for t in range(10, 30)}
    assert buffer.episodes[0].t_started == 10
    truth.check(buffer.sample_batch(50, n_step=3), 3, 0.99)
    running, truth = full(cls, lengths=(15,), running=(0,), capacity=20)
    truth.lengths[0] = 40
    running.add(chunk(truth, 0, 15, 27))
    assert contents(running) == {(0, t) for t in range(7, 27)}
    assert running.get_num_episodes() == 1
    running.add(chunk(truth, 0, 27, 40))
    assert [(e.t_started, e.t, e.is_done) for e in running.episodes] == [(20, 40, True)]


@both
def test_nothing_comes_before_what_is_left_of_an_episode(cls):
    """Its first steps were evicted, and others stand in their rows."""
    buffer, truth = full(cls, lengths=(15,), running=(0,), capacity=20)
    truth.lengths[0] = 40
    buffer.add(chunk(truth, 0, 15, 30))
    batch = buffer.sample_sequences(200, batch_length_T=2, burn_in_len=4, state_column="where")
    t = batch["obs"][..., 1]
    assert t[:, 0].min() == 10
    in_time = np.diff(t, axis=1)[np.arange(5) < batch["seq_lens"][:, None] - 1]
    assert (in_time == 1).all()
    assert (batch["state_in"][t[:, 0] == 10] == 0).all()
    assert (batch["state_in"][t[:, 0] > 10, 1] == t[t[:, 0] > 10, 0] - 1).all()
    for episode in buffer.sample(60, batch_length_T=2, lookback=3, sample_episodes=True):
        assert episode.observations.lookback == min(3, episode.t_started - 10)


@both
def test_many_short_episodes_make_more_rows(cls):
    buffer, truth = full(cls, lengths=(1,) * 900, capacity=800)
    assert len(buffer) == buffer.get_num_episodes() == 800
    truth.check(buffer.sample_batch(100, n_step=2), 2, 0.99)
    assert contents(buffer) == {(e, 0) for e in range(100, 900)}


@both
def test_rows_are_used_again(cls):
    """Memory stays what it was: observations are stored once, and evicted ones make room."""
    source, buffer = Blocks(0, num_envs=4), cls(200, seed=0)
    for _ in range(300):
        buffer.add_block(source.next(5))
    assert len(buffer) <= 200
    assert buffer._store.num_rows == 264
    assert len(buffer._infos) == 0
    taken = np.flatnonzero(buffer._store.owner)
    assert len(taken) == len(buffer) + buffer.get_num_episodes()


# ------------------------------------------------------------------------------------------------------------ sampling


@both
def test_uniform_draws_of_all_steps_after_evictions(cls):
    source, buffer = Chunks(0, num_envs=2), cls(50, seed=11)
    for _ in range(60):
        buffer.add(source.next())
    number = 200 * len(buffer)
    batch = buffer.sample_batch(number)
    _, counts = np.unique(batch["obs"], axis=0, return_counts=True)
    assert len(counts) == len(buffer)
    chi_square = ((counts - 200) ** 2 / 200).sum()
    assert chi_square < len(buffer) + 5 * np.sqrt(2 * len(buffer))


@both
def test_the_same_seed_makes_the_same_samples(cls):
    def batches(seed):
        source, buffer = Chunks(0), cls(40, seed=seed)
        for _ in range(20):
            buffer.add(source.next())
        return [buffer.sample_batch(16, n_step=(1, 4)) for _ in range(3)]

    first, second, other = batches(3), batches(3), batches(4)
    for name in first[0]:
        for a, b in zip(first, second, strict=True):
            np.testing.assert_array_equal(a[name], b[name])
    assert any((a["obs"] != b["obs"]).any() for a, b in zip(first, other, strict=True))


@both
@pytest.mark.parametrize("to_numpy", [False, True])
def test_episodes_of_transitions(cls, to_numpy):
    buffer, truth = full(cls, running=(3,))
    sample = buffer.sample(
        40, n_step=3, gamma=0.5, sample_episodes=True, to_numpy=to_numpy, include_extra_model_outputs=True, beta=1.0
    )
    assert [len(episode) for episode in sample] == [1] * 40
    assert {episode.is_numpy for episode in sample} == {to_numpy}
    batch = {
        "obs": [e.get_observations(0) for e in sample],
        "new_obs": [e.get_observations(1) for e in sample],
        "actions": [e.get_actions(0) for e in sample],
        "rewards": [e.get_rewards(0) for e in sample],
        "terminateds": [e.is_terminated for e in sample],
        "truncateds": [e.is_truncated for e in sample],
        "n_step": [e.get_extra_model_outputs("n_step", 0) for e in sample],
    }
    truth.check(batch, 3, 0.5)
    for episode, obs in zip(sample, batch["obs"], strict=True):
        assert (episode.id_, episode.t_started) == (f"e{int(obs[0])}", obs[1])
        np.testing.assert_array_equal(episode.get_extra_model_outputs("where", 0), obs)
        assert episode.get_extra_model_outputs("weights", 0) == 1.0
    assert not buffer.sample(3, n_step=3, sample_episodes=True)[0].extra_model_outputs.keys() - {"n_step", "weights"}


@both
@pytest.mark.parametrize(("length", "lookback", "least"), [(4, 0, 0), (4, 2, 0), (6, 3, 3)])
def test_episodes_of_sequences(cls, length, lookback, least):
    buffer, truth = full(cls, running=(3,))
    sample = buffer.sample(90, batch_length_T=length, sample_episodes=True, lookback=lookback, min_batch_length_T=least)
    sizes = [len(episode) for episode in sample]
    assert 90 <= sum(sizes) < 90 + length
    assert max(sizes) == length
    for episode in sample:
        e, t = episode.get_observations(0).astype(int)
        assert t == episode.t_started
        assert len(episode) == min(length, truth.given[e] - t)
        assert truth.given[e] - t > least
        before = min(lookback, t)
        times = np.arange(t - before, t + len(episode) + 1)
        assert episode.observations.lookback == before
        np.testing.assert_array_equal(episode.observations.data, np.stack([np.full_like(times, e), times], axis=1))
        np.testing.assert_array_equal(episode.actions.data, action_of(e, times[:-1]))
        np.testing.assert_array_equal(episode.rewards.data, reward_of(e, times[:-1]))
        np.testing.assert_array_equal(episode.extra_model_outputs["where"].data[:, 1], times[:-1])
        is_end = t + len(episode) == truth.lengths[e]
        assert (episode.is_terminated, episode.is_truncated) == (
            is_end and truth.terminateds[e],
            is_end and truth.truncateds[e],
        )
        assert len(episode.get_extra_model_outputs("weights")) == len(episode)


@both
@pytest.mark.parametrize(("length", "burn_in", "n_step"), [(1, 0, 1), (5, 0, 1), (4, 3, 1), (4, 1, 3), (3, 20, 2)])
def test_sequences_as_columns(cls, length, burn_in, n_step):
    buffer, truth = full(cls, running=(3,))
    batch = buffer.sample_sequences(
        40,
        batch_length_T=length,
        burn_in_len=burn_in,
        n_step=n_step,
        gamma=0.5,
        state_column="where",
        extra_columns=["where"],
    )
    starts = set()
    for i in range(40):
        size = int(batch["seq_lens"][i])
        e, first = batch["obs"][i, 0].astype(int)
        mask = batch["loss_mask"][i]
        num_before = int(np.argmax(mask))
        t = first + num_before
        starts.add((e, t))
        assert num_before == min(burn_in, t)
        # The first step of an episode stands for the sequences that start before it, too.
        most = min(length, truth.given[e] - t)
        assert mask.sum() == size - num_before and (mask.sum() == most if t else 1 <= mask.sum() <= most)
        assert mask[num_before:size].all()
        times = np.arange(first, first + size)
        steps = np.minimum(n_step, size - np.arange(size))
        after = times + steps
        for name, expected in {
            "obs": np.stack([np.full(size, e), times], axis=1),
            "new_obs": np.stack([np.full(size, e), times + 1], axis=1),
            "where": np.stack([np.full(size, e), times], axis=1),
            "actions": action_of(e, times),
            "rewards": [sum(0.5**k * reward_of(e, t + k) for k in range(n)) for t, n in zip(times, steps, strict=True)],
            "n_step": steps,
            "terminateds": (after == truth.lengths[e]) & truth.terminateds[e],
            "truncateds": (after == truth.lengths[e]) & truth.truncateds[e],
        }.items():
            assert batch[name].shape[1] == length + burn_in
            np.testing.assert_allclose(batch[name][i, :size], expected, rtol=1e-6)
            assert not batch[name][i, size:].any()
        np.testing.assert_array_equal(batch["state_in"][i], [e, first - 1] if first else [0, 0])
    assert len(starts) > 10


@both
@pytest.mark.parametrize(("burn_in", "n_step"), [(0, 1), (2, 3)])
def test_every_step_is_learned_from_equally_often(cls, burn_in, n_step):
    """In episodes that are shorter than a sequence, in one that goes on, and in what is left of one."""
    buffer, truth = full(cls, lengths=(12, 5, 1, 9, 3), running=(0, 4), capacity=31)
    truth.lengths[0] += 4
    buffer.add(chunk(truth, 0, 12, 16))
    parts = ((0, 3, 16), (1, 0, 5), (2, 0, 1), (3, 0, 9), (4, 0, 3))
    steps = [(e, t) for e, first, last in parts for t in range(first, last)]

    def shares(length, number=20_000):
        batch = buffer.sample_sequences(number, batch_length_T=length, burn_in_len=burn_in, n_step=n_step, beta=0.4)
        np.testing.assert_array_equal(batch["weights"], np.ones(number, np.float32))
        learned = batch["obs"][batch["loss_mask"]].astype(int)
        keys, found = np.unique(learned, axis=0, return_counts=True)
        assert [tuple(key) for key in keys.tolist()] == steps
        return found / found.mean()

    for length in (4, 1, 8):
        np.testing.assert_allclose(shares(length), 1.0, rtol=0.15)
    # Transitions are drawn as ever.
    found = np.unique(buffer.sample_batch(20_000)["obs"], axis=0, return_counts=True)[1]
    np.testing.assert_allclose(found / found.mean(), 1.0, rtol=0.15)


def test_the_state_before_a_step_as_it_is_stored():
    buffer = EpisodeReplayBuffer(100, batch_size_B=300, seed=0)
    times = np.arange(6.0, dtype=np.float32)
    buffer.add(
        SingleAgentEpisode(
            observations=[*times, 6.0],
            actions=list(times),
            rewards=list(times),
            extra_model_outputs={"state_in": list(times + 50)},
            terminated=True,
            len_lookback_buffer=0,
        )
    )
    batch = buffer.sample_sequences(batch_length_T=2, burn_in_len=1, state_column="state_in", clip_rewards=2.0)
    np.testing.assert_array_equal(batch["state_in"], batch["obs"][:, 0] + 50)
    assert set(batch["state_in"]) == set(range(50, 55)) and batch["rewards"].max() == 2.0


def test_rows_of_frames():
    """RLlib's form for recurrent world models: rewards beside the observations that they led to."""
    buffer, truth = full(EpisodeReplayBuffer, running=(3,), batch_length_T=7)
    batch = buffer.sample(30)
    assert batch["obs"].shape == (30, 7, 2)
    seen_ends = 0
    for i, t in np.ndindex(30, 7):
        e, step = batch["obs"][i, t].astype(int)
        is_end = step == truth.given[e]
        seen_ends += is_end
        is_first = t == 0 or batch["obs"][i, t - 1, 1] == truth.given[int(batch["obs"][i, t - 1, 0])]
        assert batch["is_first"][i, t] == is_first
        assert batch["is_last"][i, t] == (is_end or t == 6)
        assert t == 0 or not is_first or step == 0
        assert is_first or batch["obs"][i, t - 1].tolist() == [e, step - 1]
        assert batch["rewards"][i, t] == (reward_of(e, step - 1) if step else 0)
        assert batch["actions"][i, t] == action_of(e, step - is_end)
        assert batch["is_terminated"][i, t] == (is_end and step == truth.lengths[e] and truth.terminateds[e])
        assert batch["is_truncated"][i, t] == (is_end and step == truth.lengths[e] and truth.truncateds[e])
    assert seen_ends > 10


def test_infos_and_ids_come_along():
    infos = [{"n": t} if t != 2 else {} for t in range(5)]
    episode = SingleAgentEpisode(
        "mine",
        observations=[np.array(t) for t in range(5)],
        actions=[0, 1, 2, 3],
        rewards=[0.0] * 4,
        infos=infos,
        agent_id="a",
        module_id="m",
        len_lookback_buffer=0,
    )
    episode.custom_data["why"] = "test"
    buffer = EpisodeReplayBuffer(100, seed=0)
    buffer.add(episode)
    stored = buffer.episodes[0]
    assert (stored.id_, stored.agent_id, stored.module_id, stored.custom_data) == ("mine", "a", "m", {"why": "test"})
    assert stored.get_infos() == infos
    for item in buffer.sample(10, n_step=2, sample_episodes=True, include_infos=True):
        assert item.get_infos() == [infos[item.t_started], infos[min(item.t_started + 2, 4)]]
    for item in buffer.sample(10, batch_length_T=3, sample_episodes=True, include_infos=True):
        assert item.get_infos() == infos[item.t_started : item.t + 1]
    for item in buffer.sample(3, sample_episodes=True):
        assert item.get_infos() == [{}, {}]
    episode.custom_data.clear()
    assert buffer.episodes[0].custom_data == {"why": "test"}
    small = EpisodeReplayBuffer(4)
    for number in range(5):
        episode.id_ = f"mine{number}"
        small.add(episode)
    assert [stored.get_infos() for stored in small.episodes] == [infos]
    episode.infos.data[:] = [{} for _ in infos]
    episode.id_ = "without"
    small.add(episode)
    assert small.episodes[0].get_infos() == [{}] * 5
    episode.infos.data[:] = infos
    without = EpisodeReplayBuffer(100, store_infos=False)
    without.add(episode)
    assert without.episodes[0].get_infos() == [{}] * 5


@both
def test_structures_and_dtypes_are_kept(cls):
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 255, (9, 4, 4, 1), np.uint8)
    observations = {"image": frames, "more": (np.arange(9), np.ones((9, 2), np.float16))}
    actions = (np.arange(8), {"force": rng.random((8, 2), np.float32)})
    buffer = cls(100, seed=0)
    buffer.add(
        SingleAgentEpisode.from_arrays(
            observations=observations,
            actions=actions,
            rewards=np.arange(8.0),
            terminated=True,
            truncated=False,
            extra_model_outputs={"state_out": {"h": rng.random((8, 3), np.float32)}},
        )
    )
    batch = buffer.sample_batch(20, n_step=2, extra_columns=["state_out"])
    t = batch["rewards"].shape and batch["obs"]["more"][0]
    assert batch["obs"]["image"].dtype == np.uint8
    assert batch["obs"]["more"][1].dtype == np.float16
    np.testing.assert_array_equal(batch["obs"]["image"], frames[t])
    np.testing.assert_array_equal(batch["new_obs"]["image"], frames[np.minimum(t + 2, 8)])
    np.testing.assert_array_equal(batch["actions"][1]["force"], actions[1]["force"][t])
    assert batch["state_out"]["h"].shape == (20, 3)
    sequences = buffer.sample_sequences(20, batch_length_T=3, state_column="state_out")
    assert sequences["state_in"]["h"].shape == (20, 3)
    assert buffer._store.columns["obs"]["image"].nbytes == buffer._store.num_rows * 16  # One frame a row.
    item = buffer.sample(1, sample_episodes=True)[0]
    assert item.get_observations(0)["image"].dtype == np.uint8


def test_which_module_outputs_are_stored():
    truth = Truth([5], [True], [False], [0])
    part = chunk(truth, 0, 0, 3)
    bare = EpisodeReplayBuffer(100, extra_columns=())
    bare.add(part)
    with pytest.raises(ValueError, match="'where'"):
        bare.sample_batch(2, extra_columns=["where"])
    # Outputs that only some steps have are zero in the others, also where rows are used again.
    buffer = EpisodeReplayBuffer(6)
    part.extra_model_outputs.clear()
    buffer.add(part)
    buffer.add(chunk(truth, 0, 3, 5))
    np.testing.assert_array_equal(
        buffer.episodes[0].get_extra_model_outputs("where"), [[0, 0], [0, 0], [0, 0], [0, 3], [0, 4]]
    )
    truth = Truth([4, 6], [True] * 2, [False] * 2, [0, 0])
    buffer.add(chunk(truth, 0, 0, 4, id_="new"))
    later = chunk(truth, 1, 0, 6)
    later.extra_model_outputs.clear()
    buffer.add(later)
    assert not buffer.episodes[0].get_extra_model_outputs("where").any()


# ------------------------------------------------------------------------------------------------- counts and metrics


@both
def test_counts_and_metrics(cls):
    buffer, _ = full(cls, lengths=(5, 1, 9, 12), capacity=20)
    assert buffer.get_added_episodes() == 4
    assert (buffer.get_num_episodes(), buffer.get_num_timesteps(), len(buffer)) == (1, 12, 12)
    buffer.sample(8, n_step=2, sample_episodes=True)
    buffer.sample_batch(4, n_step=1)
    assert buffer.get_sampled_timesteps() == buffer.sampled_timesteps == 12
    tree = buffer.get_metrics()
    assert tree["num_env_steps_added"].peek() == tree["num_module_steps_added"]["default_policy"].peek() == 27
    assert tree["num_env_steps_evicted_lifetime"].peek() == 15
    assert tree["num_episodes_evicted"].peek() == 3
    assert tree["num_env_steps_sampled"].peek() == 12
    assert tree["num_episodes_per_sample"].peek() == 2
    assert tree["num_env_steps_stored"].peek() == np.mean([5, 6, 15, 12])
    assert 1.0 < tree["actual_n_step"].peek() <= 1.5
    assert buffer.get_metrics()["num_env_steps_sampled"].peek() == 0


# ------------------------------------------------------------------------------------------------------------- memory


def test_what_cannot_fit_is_refused(monkeypatch):
    image, action = gym.spaces.Box(0, 255, (84, 84, 4), np.uint8), gym.spaces.Discrete(4)
    monkeypatch.setattr(module, "available_host_bytes", lambda: 20 * 2**30)
    buffer = EpisodeReplayBuffer(600_000, observation_space=image, action_space=action)
    estimate = buffer.memory_estimate()
    assert estimate.columns["obs"] == 600_000 * 84 * 84 * 4
    assert "new_obs" not in estimate.columns
    assert estimate.num_bytes > 600_000 * 84 * 84 * 4
    with pytest.raises(ValueError, match=r"replay buffer: 26.* GiB = 1,000,000 transitions.*20 GiB are free.*capacity"):
        PrioritizedEpisodeReplayBuffer(1_000_000, observation_space=image, action_space=action)
    assert EpisodeReplayBuffer().memory_estimate() is None


def test_what_cannot_fit_is_refused_with_the_first_data(monkeypatch):
    monkeypatch.setattr("jaxrl_stack.replay.frame_store.available_host_bytes", lambda: 2**20)
    buffer = EpisodeReplayBuffer(10**6)
    with pytest.raises(ValueError, match=r"replay buffer: .* 1,062,500 rows .*1 MiB are free"):
        buffer.add(chunk(Truth([5], [True], [False], [0]), 0, 0, 3))
    assert len(buffer) == 0


def test_the_estimate_is_what_is_allocated():
    for cls in CLASSES:
        source = Blocks(0)
        spaces = {"observation_space": gym.spaces.Box(-9, 9, (2,)), "action_space": gym.spaces.Discrete(9)}
        buffer = cls(5000, extra_columns=(), **spaces)
        buffer.add_block(source.next())
        store, own = buffer._store, 0
        arrays = [*store.columns.values(), store.next, store.prev, store.t, store.owner, store.generation, store._free]
        if cls is EpisodeReplayBuffer:
            own = buffer._items.nbytes + buffer._places.nbytes
        else:
            own = sum(level.nbytes for level in (*buffer._tree._sums, *buffer._tree._minima))
        actual = (sum(array.nbytes for array in arrays) + own) / store.num_rows
        assert isinstance(buffer.memory_estimate(), memory.MemoryEstimate)
        np.testing.assert_allclose(buffer.memory_estimate().bytes_per_row, actual, rtol=0.03)


# ------------------------------------------------------------------------------------------------------------- errors


@both
def test_bad_arguments(cls):
    for kwargs, message in (
        ({"capacity": 0}, "capacity=0 must be an int >= 1"),
        ({"capacity": 2.5}, "capacity=2.5"),
        ({"batch_size_B": 0}, "batch_size_B=0"),
        ({"batch_length_T": True}, "batch_length_T=True"),
        ({"extra_columns": "state_out"}, "extra_columns='state_out'"),
    ):
        with pytest.raises(ValueError, match=message):
            cls(**kwargs)
    with pytest.raises(ValueError, match="empty: add episodes"):
        cls().sample_batch(3)
    buffer, _ = full(cls)
    for call, message in (
        (lambda: buffer.sample_batch(0), "num_items=0"),
        (lambda: buffer.sample_batch(3, n_step=0), "n_step=0"),
        (lambda: buffer.sample_batch(3, n_step=(3, 3)), r"n_step=\(3, 3\).*high excluded"),
        (lambda: buffer.sample_batch(3, n_step=1.5), "n_step=1.5"),
        (lambda: buffer.sample(3, batch_size_B=3), "have the same meaning"),
        (
            lambda: buffer.sample(3, n_step=2, batch_length_T=4, sample_episodes=True),
            "n_step=2 cannot be combined with",
        ),
        (lambda: buffer.sample(3, lookback=-1, sample_episodes=True), "lookback=-1"),
        (lambda: buffer.sample(3, min_batch_length_T=12, sample_episodes=True), "no episode .* more than 12"),
        (lambda: buffer.sample_sequences(3, batch_length_T=2, burn_in_len=-1), "burn_in_len=-1"),
        (lambda: buffer.sample_sequences(3, batch_length_T=2, state_column="h"), r"'h'. Choose from \['where'\]"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert len(buffer.sample(5, min_batch_length_T=11, sample_episodes=True)) == 5


@both
def test_data_that_does_not_fit(cls):
    buffer, truth = full(cls, running=(3,))
    again = Truth([20], [True], [False], [0])
    part = chunk(again, 0, 0, 3)
    before = contents(buffer)
    with pytest.raises(ValueError, match="e0 that starts at t=0 .* has already ended"):
        buffer.add(part)
    truth.lengths[3], truth.given[3] = 40, 14
    with pytest.raises(ValueError, match="e3 starts at t=14, .* ends at t=12"):
        buffer.add(chunk(truth, 3, 14, 15))
    with pytest.raises(TypeError, match="SingleAgentEpisodes, not dict"):
        buffer.add([{}])
    image = SingleAgentEpisode(
        observations=[np.zeros(3, np.float32)] * 2, actions=[0], rewards=[0.0], len_lookback_buffer=0
    )
    with pytest.raises(ValueError, match=r"'obs' has items of shape \(3,\) .* \(2,\) in the replay buffer"):
        buffer.add(image)
    structured = SingleAgentEpisode(
        observations=[{"a": np.zeros(2)}] * 2, actions=[0], rewards=[0.0], len_lookback_buffer=0
    )
    with pytest.raises(ValueError, match="'obs' is an array in the replay buffer, but the new data is a dict"):
        buffer.add(structured)
    precise = SingleAgentEpisode(
        observations=[np.zeros(2, np.float32)] * 2, actions=[0.5], rewards=[0.0], len_lookback_buffer=0
    )
    with pytest.raises(ValueError, match="'actions' has dtype float64 .* int32"):
        buffer.add(precise)
    words = SingleAgentEpisode(observations=["a", "b"], actions=[0], rewards=[0.0], len_lookback_buffer=0)
    with pytest.raises(ValueError, match="'obs' has dtype <U1"):
        cls().add(words)
    assert contents(buffer) == before
    assert len(buffer) == len(before)


@both
def test_blocks_that_do_not_fit(cls):
    source, buffer = Blocks(0), cls(40)
    with pytest.raises(ValueError, match="block of 60 steps .* capacity=40"):
        buffer.add_block(source.next(20))
    source = Blocks(0)
    buffer.add_block(source.next(2))
    torn = Blocks(2, longest=50).next(3)
    torn["terminateds"][:] = torn["truncateds"][:] = False
    torn["loss_mask"] = np.array([[True] * 3, [True, False, True], [True] * 3])
    with pytest.raises(ValueError, match="resets environment 1 at time step 1 .* episode did not end at time step 0"):
        buffer.add_block(torn, stream=1)
    assert len(buffer) == 6
    nothing = source.next(1) | {"loss_mask": np.zeros((1, 3), bool)}
    buffer.add_block(nothing)
    assert len(buffer) == 6
    assert buffer.sample_batch(20, n_step=9)["n_step"].max() <= 2


@both
@pytest.mark.parametrize("num_envs", [1, 5])
def test_a_block_of_another_number_of_environments_continues_nothing(cls, num_envs):
    before, buffer = Blocks(0, longest=50), cls(60, seed=0)
    before.truth.lengths[:] = [50] * 3
    buffer.add_block(before.next(4), serial=7)
    steps = contents(buffer)
    after = Blocks(1, num_envs=num_envs, longest=50)
    after.truth.lengths[:] = [50] * num_envs
    first, second = after.next(3), after.next(3)
    for block in (first, second):
        for name in ("obs", "final_obs"):
            block[name][..., 0] += 100
    buffer.add_block(first, serial=8, starts=np.ones(num_envs, bool))
    assert contents(buffer) == steps | {(100 + e, t) for e in range(num_envs) for t in range(3)}
    assert [record.is_running for record in buffer._records.values()] == [False] * 3 + [True] * num_envs
    transitions = buffer.sample_batch(80, n_step=9)
    is_new = transitions["obs"][:, 0] >= 100
    assert set(is_new.tolist()) == {False, True}
    left = np.where(is_new, 3, 4) - transitions["obs"][:, 1]
    np.testing.assert_array_equal(transitions["n_step"], left)
    np.testing.assert_array_equal(transitions["new_obs"][:, 0], transitions["obs"][:, 0])
    sequences = buffer.sample_sequences(40, batch_length_T=9, burn_in_len=3)
    assert sequences["seq_lens"].max() == 4
    # They go on among themselves, and the others are evicted.
    buffer.add_block(second, serial=9, starts=np.zeros(num_envs, bool))
    assert buffer.sample_batch(80, n_step=9)["n_step"].max() == 6
    many = Blocks(2, num_envs=6).next(10)
    many["obs"][..., 0] += 200
    buffer.add_block(many, stream=1)
    assert len(buffer) == 60 and min(contents(buffer))[0] >= 200


def test_a_reset_in_row_0_ends_what_was_running():
    source, buffer = Blocks(3, num_envs=2, longest=50), EpisodeReplayBuffer(1000, seed=0)
    source.truth.lengths[:] = [50, 50]
    buffer.add_block(source.next(3))
    block = source.next(3) | {"loss_mask": np.array([[False, True], [True, True], [True, True]])}
    block["obs"][1:, 0, 1] -= 4  # A new episode, the first observation of which is that of a reset.
    block["final_obs"][-1, 0, 1] -= 4
    buffer.add_block(block, starts=np.zeros(2, bool))
    assert sorted((e.t_started, e.t, e.get_observations(0).tolist()) for e in buffer.episodes) == [
        (0, 2, [0, 0]),
        (0, 3, [0, 0]),
        (0, 6, [1, 0]),
    ]
    assert [record.is_running for record in buffer._records.values()] == [False, True, True]
    again = Blocks(3, num_envs=2, longest=50).next(2)
    buffer.add_block(again, starts=np.array([True, True]))
    assert [(e.t_started, e.t) for e in buffer.episodes][-2:] == [(0, 2), (0, 2)]


def test_steps_count_on_after_an_eviction():
    """An unfinished episode of which all steps were evicted continues with its later time steps."""
    source, buffer = Blocks(3, num_envs=3, longest=50), EpisodeReplayBuffer(12, seed=0)
    source.truth.lengths[:] = [50] * 3
    for _ in range(6):
        buffer.add_block(source.next(4))
        assert len(buffer) == 12
        for episode in buffer.episodes:
            assert episode.get_observations(0)[1] == episode.t_started
