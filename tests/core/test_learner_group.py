"""LearnerGroup: one Learner here, and several in Ray actors that update as one."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from fractions import Fraction

import gymnasium as gym
import jax
import numpy as np
import pytest

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.experience import Experience, Share
from jaxrl_stack.core.learner import joined_learners
from jaxrl_stack.core.learner.learner_actor import LearnerActor
from jaxrl_stack.core.learner.learner_group import LearnerGroup
from jaxrl_stack.core.learner.training_data import TrainingData, bounds, slice_episodes, split_rows
from jaxrl_stack.core.rl_module import RLModuleSpec
from jaxrl_stack.env.single_agent_episode import SingleAgentEpisode
from jaxrl_stack.utils.compile_clock import CompileClock
from tests.pickled_by_value import pickled_by_value

OBS_SPACE = gym.spaces.Box(-10.0, 10.0, (3,), np.float32)
ACTION_SPACE = gym.spaces.Discrete(2)
SHUFFLED = {"num_epochs": 3, "shuffle_batch_per_epoch": True, "timesteps": 1000}
# Minibatches are per learner. Few programs: whatever size is not what a test is about is this one.
OF_TWO = {**SHUFFLED, "minibatch_size": 12}
OF_ONE = {**SHUFFLED, "minibatch_size": 24}
NUM_ROWS = 32  # as the episodes of a test below have together: one program for both


def config_of(num_learners, num_devices=1, **learners):
    return (
        PPOConfig()
        .environment(observation_space=OBS_SPACE, action_space=ACTION_SPACE)
        .training(lr=0.01)
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .learners(num_learners=num_learners, num_cpus_per_learner=num_devices, **learners)
        .debugging(seed=0)
    )


def steps(num_steps, num_columns, seed):
    return Experience.of_steps({DEFAULT_MODULE_ID: columns(num_steps, num_columns, seed)})


def in_object_store(ray, experience):
    (part,) = experience.parts
    return Experience((part.kept_at(ray.put(part.modules)),))


def columns(num_steps, num_columns, seed):
    rng = np.random.default_rng(seed)
    shape = (num_steps, num_columns)
    return {
        "obs": rng.normal(size=(*shape, 3)).astype(np.float32),
        "actions": rng.integers(0, 2, shape),
        "action_dist_inputs": rng.normal(scale=0.1, size=(*shape, 2)).astype(np.float32),
        "action_logp": np.full(shape, np.log(0.5), np.float32),
        "rewards": rng.normal(size=shape).astype(np.float32),
        "terminateds": rng.random(shape) < 0.1,
        "truncateds": np.zeros(shape, bool),
        "final_obs": rng.normal(size=(*shape, 3)).astype(np.float32),
    }


def batch_of(num_rows, seed):
    sampled = jax.tree.map(lambda x: x[0], columns(1, num_rows, seed))
    rng = np.random.default_rng(seed)
    more = {"advantages": rng.normal(size=num_rows), "value_targets": rng.normal(size=num_rows)}
    return {name: value for name, value in sampled.items() if name != "final_obs"} | {
        name: value.astype(np.float32) for name, value in more.items()
    }


def episode_of(length, seed):
    rng = np.random.default_rng(seed)
    return SingleAgentEpisode(
        id_=str(seed),
        observations=list(rng.normal(size=(length + 1, 3)).astype(np.float32)),
        actions=list(rng.integers(0, 2, length)),
        rewards=list(rng.normal(size=length)),
        terminated=True,
        extra_model_outputs={
            "action_dist_inputs": list(rng.normal(scale=0.1, size=(length, 2)).astype(np.float32)),
            "action_logp": [np.float32(np.log(0.5))] * length,
        },
        len_lookback_buffer=0,
    )


def values_of(group, func, **kwargs):
    calls = list(group.foreach_learner(func, **kwargs))
    assert all(call.ok for call in calls), calls
    return [call.get() for call in calls]


def weights_of_learner(learner):
    return learner.get_weights()


def assert_same_learners(group, reference, atol=1e-5, changed_from=None):
    """Bit for bit the same in all learners of the group, and to `atol` the same as in the reference."""
    all_weights = values_of(group, weights_of_learner)
    expected = reference.local_learner.get_weights()
    for weights in all_weights:
        assert weights.keys() == expected.keys()
        for ref, weight in weights.items():
            np.testing.assert_array_equal(weight, all_weights[0][ref], err_msg=ref)
            np.testing.assert_allclose(weight, expected[ref], rtol=0.0, atol=atol, err_msg=ref)
    if changed_from is not None:
        moved = [np.abs(expected[ref] - changed_from[ref]).max() for ref in expected]
        assert max(moved) > 1e-3
    state, expected_state = group.get_state()["learner"], reference.get_state()["learner"]
    for counted in (state, expected_state):
        # Rows in minibatches are per learner.
        del counted["counters"]["steps_trained"]
    leaves = jax.tree.leaves_with_path(state)
    for (path, leaf), other in zip(leaves, jax.tree.leaves(expected_state), strict=True):
        np.testing.assert_allclose(leaf, other, rtol=0.0, atol=atol, err_msg=jax.tree_util.keystr(path))


# ------------------------------------------------------------------------------------------------------ two processes


@pytest.fixture(scope="module")
def own_module(ray_session):
    """The actors cannot import this module: its functions travel with their code."""
    with pickled_by_value(ray_session, sys.modules[__name__]):
        yield


@pytest.fixture(scope="module")
def two(own_module):
    group = LearnerGroup(config=config_of(2, learner_snapshot_interval=3, max_requests_in_flight_per_learner=2))
    yield group
    group.shutdown()


@pytest.fixture(scope="module")
def one():
    """One learner, whose shuffle shards are the two learners of the group."""
    group = LearnerGroup(config=config_of(0, num_shuffle_shards=2))
    yield group
    group.shutdown()


@pytest.fixture
def same_start(two, one):
    one.set_state(two.get_state())
    return one.local_learner.get_weights()


def test_two_learners_are_one_with_two_shards(ray_session, two, one, same_start):
    assert two.is_remote
    assert not two.is_local
    assert len(two) == 2
    assert two.local_learner is None
    assert two.ping() == ["pong", "pong"]
    assert len(set(values_of(two, lambda learner: os.getpid()))) == 2
    assert two.get_stats()["num_devices"] == 2
    blocks = [steps(4, 8, seed) for seed in range(3)]
    refs = [in_object_store(ray_session, block) for block in blocks]
    values_of(two, start_clock)
    for i in range(2):
        results = two.update_block(Experience.merged(refs), **OF_TWO)
        (expected,) = one.update_block(Experience.merged(blocks), **OF_ONE)
        assert_same_learners(two, one, changed_from=same_start)
        assert len(results) == 2
        for result in results:
            for name in ("total_loss", "policy_loss", "curr_kl_coeff"):
                assert result[DEFAULT_MODULE_ID][name] == pytest.approx(expected[DEFAULT_MODULE_ID][name], abs=1e-5)
        compiles = values_of(two, num_compiles)
        if i == 0:
            after_first = compiles
    assert min(after_first) > 0
    assert compiles == after_first
    assert two.num_updates == one.num_updates
    # Blocks that are here may differ in their number of columns.
    cuts = (slice(5), slice(5, None))
    parts = [Experience.of_steps(jax.tree.map(lambda x, cut=cut: x[:, cut], blocks[0].modules)) for cut in cuts]
    two.update_block(Experience.merged([*parts, *blocks[1:]]), **OF_TWO)
    one.update_block(Experience.merged(blocks), **OF_ONE)
    assert_same_learners(two, one)
    assert values_of(two, num_compiles) == after_first


def start_clock(learner):
    learner.clock = CompileClock()


def num_compiles(learner):
    return learner.clock.compiles


def test_blocks_that_do_not_fit(ray_session, two, one, same_start):
    with pytest.raises(ValueError, match=r"from \[T=2, B=4\] to \[T=4, B=4\]"):
        two.update_block(Experience.merged(in_object_store(ray_session, steps(n, 4, 0)) for n in (4, 2)))
    with pytest.raises(ValueError, match=r"gets 1/2 samples .* a sample of B=3 .*multiple of 2"):
        two.update_block(in_object_store(ray_session, steps(4, 3, 0)))
    with pytest.raises(ValueError, match="without steps"):
        two.update_block(Experience())
    assert_same_learners(two, one)


def differ(learner):
    learner.policies_to_train = lambda module_id, batch: jax.process_index() == 0


def agree(learner):
    learner.policies_to_train = None


def test_learners_that_would_update_different_modules(ray_session, two, one, same_start):
    """They would run different programs, and wait for each other forever."""
    values_of(two, differ)
    blocks = [in_object_store(ray_session, steps(3, 4, seed)) for seed in range(2)]
    row_batch = Experience.of_rows({DEFAULT_MODULE_ID: batch_of(NUM_ROWS, 1)})
    for update in (
        lambda: two.update_block(Experience.merged(blocks)),
        lambda: two.update(batch=batch_of(NUM_ROWS, 0), **OF_TWO),
        lambda: two.update(batch=batch_of(NUM_ROWS, 0)),
        lambda: two.update_rows(row_batch),
    ):
        with pytest.raises(ValueError, match=r"\('default_policy'\) is True in 1 of 2 learners"):
            update()
    values_of(two, agree)
    assert two.get_stats()["num_learner_restarts"] == 0
    assert_same_learners(two, one)


def test_rows_of_batches(ray_session, two, one, same_start):
    batches = [batch_of(n, n) for n in (17, NUM_ROWS - 17)]
    two.update(batches=batches, **OF_TWO)
    one.update(batches=batches, **OF_ONE)
    assert_same_learners(two, one, changed_from=same_start)
    two.update(training_data=TrainingData(batch=batch_of(NUM_ROWS, 0)), **OF_TWO)
    one.update(batch=batch_of(NUM_ROWS, 0), **OF_ONE)
    assert_same_learners(two, one)
    half = batch_of(NUM_ROWS // 2, 1)
    two.update(batch_refs=[ray_session.put(half), ray_session.put(half)], **OF_TWO)
    one.update(batches=[half, half], **OF_ONE)
    assert_same_learners(two, one)


def test_time_slices_of_episodes(ray_session, two, one, same_start):
    episodes = [episode_of(length, seed=length) for length in (9, 20, 3)]
    slices = [part for parts in slice_episodes(episodes, 2, 1) for part in parts]
    assert [len(part) for part in slices] == [9, 7, 13, 3]
    two.update(episodes_refs=[ray_session.put(episodes[:2]), ray_session.put(episodes[2:])], **OF_TWO)
    one.update(episodes=slices, **OF_ONE)
    assert_same_learners(two, one, changed_from=same_start)
    two.update(episodes=episodes, **OF_TWO)
    one.update(episodes=slices, **OF_ONE)
    assert_same_learners(two, one)


def test_weights_and_state(ray_session, two, one, same_start):
    weights = two.get_weights()
    assert weights.keys() == {DEFAULT_MODULE_ID}
    changed = {DEFAULT_MODULE_ID: {name: value + 1.0 for name, value in weights[DEFAULT_MODULE_ID].items()}}
    two.set_weights(changed)
    one.set_weights(changed)
    assert_same_learners(two, one)
    assert len(two.get_weights(inference_only=True)[DEFAULT_MODULE_ID]) < len(weights[DEFAULT_MODULE_ID])
    with pytest.raises(KeyError, match="No module 'other'"):
        two.get_weights(["other"])
    for_runners = ray_session.get(two.get_weights_ref())
    assert for_runners["weights_seq_no"] == two.num_updates
    expected = one.local_learner.get_weights()
    assert for_runners["rl_module"]["params"].keys() == expected.keys()
    for ref, value in for_runners["rl_module"]["params"].items():
        np.testing.assert_array_equal(value, expected[ref])
    results = two.update(batch=batch_of(NUM_ROWS, 0), return_state=True, **OF_TWO)
    after = results[0]["_rl_module_state_after_update"]
    assert after["weights_seq_no"] == two.num_updates == for_runners["weights_seq_no"] + 1
    np.testing.assert_equal(after["rl_module"]["params"], values_of(two, weights_of_learner)[1])
    assert "_rl_module_state_after_update" not in results[1]
    assert two.get_state("learner/rl_module")["learner"].keys() == {"rl_module"}
    assert "rl_module" not in two.get_state(not_components="rl_module")["learner"]
    assert two.get_state(not_components="learner") == {}


def fail_in_one(learner):
    if jax.process_index() == 1:
        raise KeyError("learner 1")
    return 7


def test_foreach_learner(two):
    with pytest.raises(KeyError, match="learner 1"):
        two.foreach_learner(fail_in_one)
    (first,) = two.foreach_learner(fail_in_one, remote_actor_ids=[0])
    assert (first.actor_id, first.get()) == (0, 7)
    assert values_of(two, lambda learner, x: learner.num_joined_learners + x, x=1) == [3, 3]
    assert values_of(two, lambda learner: jax.process_index(), remote_actor_ids=[1]) == [1]
    with pytest.raises(ValueError, match="Learner 2 does not exist.*from 0 to 1"):
        two.foreach_learner(fail_in_one, remote_actor_ids=[2])


def test_asynchronous_updates(two):
    batch = batch_of(NUM_ROWS, 0)
    dropped = two.get_stats()["learner_group_ts_dropped_lifetime"]
    before, results = two.num_updates, []
    for _ in range(6):
        results += two.update(batch=batch, async_update=True, **OF_TWO)
        assert two.get_stats()["actor_manager_num_outstanding_async_reqs"] <= 2
    dropped = two.get_stats()["learner_group_ts_dropped_lifetime"] - dropped
    assert dropped > 0, "an update takes longer than a call that does not wait for it"
    sent = before + 6 - dropped // NUM_ROWS
    # A call that waits comes after those that did not.
    two.update(batch=batch, **OF_TWO)
    results += two.update(batch=batch, async_update=True, **OF_TWO)
    assert len(results) == 2 * (sent - before)
    assert values_of(two, lambda learner: learner.num_updates) == [sent + 2] * 2
    assert two.get_stats()["actor_manager_num_outstanding_async_reqs"] == 1
    results = two.update(batch=batch, async_update=True, **OF_TWO)
    assert [result[DEFAULT_MODULE_ID]["weights_seq_no"] for result in results] == [sent + 2] * 2
    # Nothing is left to come for the next test.
    two.ping()
    assert two.update(batch=batch, async_update=True, **OF_TWO)
    two.ping()


def test_modules_come_and_go(two):
    spec = RLModuleSpec(
        module_class=config_of(0).rl_module_spec.module_class,
        observation_space=OBS_SPACE,
        action_space=ACTION_SPACE,
        model_config={"fcnet_hiddens": [2]},
    )
    grown = two.add_module(module_id="second", module_spec=spec)
    assert set(grown.rl_module_specs) == {DEFAULT_MODULE_ID, "second"}
    assert set(two.get_weights()) == {DEFAULT_MODULE_ID, "second"}
    # A group that starts anew has them, too.
    kill(two, 0)
    assert set(two.get_weights()) == {DEFAULT_MODULE_ID, "second"}
    left = two.remove_module("second")
    assert set(left.rl_module_specs) == set(two.get_weights()) == {DEFAULT_MODULE_ID}


def kill(group, index):
    os.kill(values_of(group, lambda learner: os.getpid())[index], signal.SIGKILL)


def test_a_killed_learner(two, one, caplog):
    restarts = two.get_stats()["num_learner_restarts"]
    start = two.get_state()["learner"]
    two.set_state({"learner": start})
    batches = [batch_of(NUM_ROWS, seed) for seed in range(5)]
    # A snapshot after the third; the fourth is lost. That nothing fetches the first one's answers does not matter.
    for i, batch in enumerate(batches[:4]):
        two.update(batch=batch, async_update=i == 0, **OF_TWO)
    kill(two, 1)
    with caplog.at_level(logging.WARNING):
        results = two.update(batch=batches[4], **OF_TWO)
    assert "all 2 restart from the last snapshot" in caplog.text
    assert len(results) == 2
    assert two.get_stats()["num_learner_restarts"] == restarts + 1

    one.set_state({"learner": start})
    for batch in batches[:3]:
        one.update(batch=batch, **OF_ONE)
    # It stays counted.
    state = one.get_state()["learner"]
    state["counters"]["num_updates"] = state["counters"]["num_updates"] + np.uint32(1)
    one.set_state({"learner": state})
    one.update(batch=batches[4], **OF_ONE)
    assert_same_learners(two, one)
    assert two.num_updates == start["counters"]["num_updates"] + 5


# -------------------------------------------------------------------------------------------------------- one process


@pytest.mark.usefixtures("own_module")
def test_a_single_actor_with_two_devices():
    group = LearnerGroup(config=config_of(1, num_devices=2))
    reference = LearnerGroup(config=config_of(0, num_devices=2))
    assert (len(group), group.is_remote, group.get_stats()["num_devices"]) == (1, True, 2)
    weights, expected = group.get_weights(), reference.get_weights()
    np.testing.assert_equal(weights, expected)
    changed = config_of(1, num_devices=2).training(lr=0.5)
    changed.freeze()
    group.change_settings(changed)
    assert values_of(group, lambda learner: learner.config.lr) == [0.5]
    # What kills every learner that tries it is not tried forever, and does not end the group.
    with pytest.raises(RuntimeError, match="lost again after a restart"):
        group.foreach_learner(lambda learner: os._exit(1))
    np.testing.assert_equal(group.get_weights(), expected)
    assert group.get_stats()["num_learner_restarts"] == 2
    assert values_of(group, lambda learner: learner.config.lr) == [0.5], "learners that are back have changed settings"
    group.shutdown()
    group.shutdown()
    with pytest.raises(ValueError, match="was shut down"):
        group.ping()


def test_the_local_group(one):
    assert one.is_local
    assert not one.is_remote
    assert (len(one), one.ping(), one.has_host_connectors) == (1, ["pong"], False)
    assert values_of(one, lambda learner, x: x, x=3) == [3]
    assert not list(one.foreach_learner(lambda learner: 1, remote_actor_ids=[]))
    with pytest.raises(KeyError):
        one.foreach_learner(_fail)
    before = one.num_updates
    (result,) = one.update(batch=batch_of(NUM_ROWS, 0), return_state=True, **OF_ONE)
    assert result["_rl_module_state_after_update"]["weights_seq_no"] == one.num_updates == before + 1
    state = one.get_state(["rl_module", "counters"])
    assert state["learner"].keys() == {"rl_module", "counters"}
    one.set_state({})
    with pytest.raises(ValueError, match="with num_learners=0 the learner is in this process"):
        one.update(batch=batch_of(8, 0), async_update=True)
    with pytest.raises(ValueError, match="exactly one data argument.*got none"):
        one.update()
    with pytest.raises(ValueError, match=r"got training_data and \['batch'\]"):
        one.update(batch={}, training_data=TrainingData(batch={}))
    with pytest.warns(DeprecationWarning, match="update_from_batch"):
        one.update_from_batch(batch_of(NUM_ROWS, 0), **OF_ONE)
    with (
        pytest.warns(DeprecationWarning, match="update_from_episodes"),
        pytest.raises(ValueError, match="none of the 0 episodes"),
    ):
        one.update_from_episodes([])
    with pytest.raises(ValueError, match=r"async_update\(\.\.\.\) is gone"):
        one.async_update()
    with pytest.raises(ValueError, match=r"load_module_state\(\.\.\.\) is gone.*set_weights"):
        one.load_module_state(rl_module_ckpt_dirs={})


def _fail(learner):
    raise KeyError("here")


def test_arguments_that_contradict_each_other():
    with pytest.raises(ValueError, match="learner runs in this process"):
        LearnerGroup(config=config_of(0), placement_group=object())
    with pytest.raises(ValueError, match="num_learners=2 starts actors"):
        LearnerGroup(config=config_of(2), learner=object())


# ------------------------------------------------------------------------------------------------------ dealing out


def test_bounds_and_rows():
    assert bounds(7, 3) == [(0, 3), (3, 5), (5, 7)]
    nested = [{"a": {"x": np.arange(5)}, "b": {"x": np.arange(2)}}, {"a": {"x": np.arange(5, 9)}}]
    first, second = split_rows(nested, 2)
    np.testing.assert_equal(first, [{"a": {"x": np.arange(5)}, "b": {"x": np.arange(1)}}])
    np.testing.assert_equal(second, [{"b": {"x": np.array([1])}}, {"a": {"x": np.arange(5, 9)}}])
    flat = [{"obs": {"x": np.arange(3)}, "mask": np.ones(3, bool)}]
    np.testing.assert_equal([part["obs"]["x"] for (part,) in split_rows(flat, 2)], [np.arange(2), np.array([2])])
    with pytest.raises(ValueError, match="1 rows of 'x' cannot be split over 2 learners"):
        split_rows([{"x": np.zeros(1)}], 2)


def test_sharding_of_training_data():
    with pytest.raises(ValueError, match=r"got \['batch', 'batches'\]"):
        TrainingData(batch={}, batches=[]).validate()
    whole = TrainingData(batch={})
    assert whole.shard(1) == [whole]
    iterators = [iter(()), iter(())]
    shards = TrainingData(data_iterators=iterators).shard(2)
    assert [shard.data_iterators for shard in shards] == [[iterators[0]], [iterators[1]]]
    with pytest.raises(ValueError, match="2 data_iterators do not match 3 learners"):
        TrainingData(data_iterators=iterators).shard(3)
    episode = episode_of(5, 0)
    first, second = TrainingData(episodes=[episode]).shard(2, len_lookback_buffer=2)
    ((head,), (tail,)) = (first.episodes, second.episodes)
    assert (len(head), head.is_done, len(tail), tail.is_terminated) == (3, False, 2, True)
    np.testing.assert_array_equal(tail.get_observations(0), head.get_observations(-1))
    np.testing.assert_array_equal(tail.get_rewards([-1, -2], neg_index_as_lookback=True), episode.get_rewards([2, 1]))
    with pytest.raises(ValueError, match="5 steps in the episodes cannot be split over 6 learners"):
        TrainingData(episodes=[episode]).shard(6)


def shares_of(experiences, num_learners):
    """What learners get of experiences that are not here."""
    parts = Experience.merged(experiences).parts
    length = Fraction(len(parts), num_learners)
    shares = []
    for i in range(num_learners):
        first, last = (i * length).__floor__(), ((i + 1) * length).__ceil__()
        shares.append(Share(parts[first:last], i * length - first, length).fetched())
    return shares


def test_columns_of_experiences():
    parts = [Experience.of_steps({"m": {"x": np.arange(8).reshape(2, 4) + 100 * i}}) for i in range(3)]
    everything = np.concatenate([part.modules["m"]["x"] for part in parts], axis=1)
    for num_learners in (1, 2, 3, 4, 6):
        for shares in (Experience.merged(parts).deal_out(num_learners), shares_of(parts, num_learners)):
            assert [share.num_env_steps for share in shares] == [24 // num_learners] * num_learners
            columns = [share.modules["m"]["x"] for share in shares]
            assert {own.shape for own in columns} == {(2, 12 // num_learners)}
            np.testing.assert_array_equal(np.concatenate(columns, axis=1), everything)
    with pytest.raises(ValueError, match="gets 3/5 samples .* a sample of B=4 .*a multiple of 5"):
        shares_of(parts, 5)
    with pytest.raises(ValueError, match=r"size by module: \{'m': 12\}\) cannot be split evenly over 5 learners"):
        Experience.merged(parts).deal_out(5)
    with pytest.raises(ValueError, match=r"differ in their columns: \{'m': \['x'\]\} and \{'m': \['y'\]\}"):
        _ = Experience.merged([parts[0], Experience.of_steps({"m": {"y": parts[0].modules["m"]["x"]}})]).modules
    with pytest.raises(ValueError, match=r"numbers of steps: \[T=1, B=4\], \[T=2, B=4\]"):
        _ = Experience.merged([parts[0], Experience.of_steps({"m": {"x": np.zeros((1, 4))}})]).modules
    # An environment of one runner has failed, and none of the other's.
    mask = np.array([[True, False, True, True], [True] * 4])
    failed = Experience.of_steps({"m": {"x": np.zeros((2, 4)), "loss_mask": mask}})
    masks = Experience.merged([parts[0], failed]).modules["m"]["loss_mask"]
    np.testing.assert_array_equal(masks, np.concatenate([np.ones((2, 4), bool), mask], axis=1))
    uneven = [parts[0], Experience.of_steps({"m": {"x": np.zeros((2, 3))}}), parts[1]]
    with pytest.raises(ValueError, match="multiple of num_learners"):
        shares_of(uneven, 2)


def test_modules_of_an_experience_may_differ_in_their_columns():
    parts = [
        Experience.of_steps({m: {"x": np.arange(2 * n).reshape(2, n) + 100 * i} for m, n in (("a", 4), ("b", 2))})
        for i in range(3)
    ]
    for shares in (Experience.merged(parts).deal_out(2), shares_of(parts, 2)):
        for mid, num_columns in (("a", 6), ("b", 3)):
            columns = [share.modules[mid]["x"] for share in shares]
            assert {own.shape for own in columns} == {(2, num_columns)}
            everything = np.concatenate([part.modules[mid]["x"] for part in parts], axis=1)
            np.testing.assert_array_equal(np.concatenate(columns, axis=1), everything)
    with pytest.raises(ValueError, match="gets 3/4 samples .* a sample of B=2 .*a multiple of 4"):
        shares_of(parts, 4)
    mask = np.zeros((2, 2), bool)
    masked = Experience.of_steps({"a": {"x": np.zeros((2, 4))}, "b": {"x": np.zeros((2, 2)), "loss_mask": mask}})
    of_both = Experience.merged([parts[0], masked]).modules
    assert "loss_mask" not in of_both["a"] and of_both["b"]["loss_mask"].tolist() == [[True, True, False, False]] * 2


def test_what_is_no_experience_is_told_what_to_pass(one):
    with pytest.raises(TypeError, match=r"got dict. Create it with Experience.of_rows"):
        one.update_rows({})
    with pytest.raises(TypeError, match=r"got dict. Create it with Experience.of_steps"):
        one.update_block({})
    with pytest.raises(TypeError, match=r"got Experience of rows. Create it with Experience.of_steps"):
        one.local_learner.update_block(Experience.of_rows({"m": {"x": np.zeros(2)}}))


@pytest.mark.usefixtures("own_module")
def test_a_port_that_is_taken_before_it_is_used(ray_session, tmp_path, monkeypatch, caplog):
    """The learners are joined at another one."""
    address = ray_session.util.get_node_ip_address()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as listener:
        listener.bind((address, 0))
        listener.listen()
        port, tries = listener.getsockname()[1], tmp_path / "tries"
        tries.touch()

        class TooLate(LearnerActor):
            def free_address(self):
                free = super().free_address()
                with tries.open("r+") as file:
                    if file.read():
                        return free
                    file.write("one")
                return f"{free.rpartition(':')[0]}:{port}"

        monkeypatch.setattr(joined_learners.JoinedLearners, "actor_class", TooLate)
        monkeypatch.setattr(joined_learners, "OTHERS_TIMEOUT_S", 1.0)
        with caplog.at_level(logging.WARNING, logger="jaxrl_stack"):
            group = LearnerGroup(config=config_of(2))
        assert "could not be joined and are started again" in caplog.text
        assert group.ping() == ["pong", "pong"]
        assert group.get_stats()["num_learner_restarts"] == 0
        group.shutdown()
