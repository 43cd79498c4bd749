"""EnvRunnerGroup: calls, samples, weights and connector states, in the order of the actors' answers."""

from __future__ import annotations

import contextlib
import types
from unittest import mock

import jax
import numpy as np
import pytest

from jaxrl_stack.env.env_runner_group import MAX_BYTES_IN_CALLS, MAX_ROUNDS_WITHOUT_DATA, EnvRunnerGroup
from jaxrl_stack.env.env_runner_state_server import EnvRunnerStateServer
from tests.fake_actors import FakeActors, work
from tests.toy_runners import ToyRunner, sample_blocks, toy_config


@pytest.fixture
def fake():
    return FakeActors()


@pytest.fixture
def group(fake):
    return EnvRunnerGroup(config=toy_config(), env_runner_kwargs={"config": None}, backend=fake)


# ------------------------------------------------------------------------------------------------------------ calls


def test_all_runners_are_called_in_order_and_the_local_one_first(group):
    index = lambda runner: runner.worker_index  # noqa: E731
    assert group.foreach_env_runner(index) == [0, 1, 2]
    assert group.foreach_env_runner("get_spaces", local_env_runner=False) == [{"__env__": 1}, {"__env__": 2}]
    assert group.foreach_env_runner(index, remote_worker_ids=[2], return_actor_ids=True) == [(0, 0), (2, 2)]
    several = group.foreach_env_runner([index, "ping", lambda runner, k: k], kwargs=[{}, {}, {"k": 7}])
    assert several == [0, "pong", 7]
    assert [runner.num_workers for runner in [group.local_env_runner]] == [2]
    # A local runner beside actors has no environment: it is told the spaces.
    assert group.get_spaces() == {"__env__": 1} == group.local_env_runner.given_spaces
    assert (group.num_remote_env_runners(), group.num_healthy_remote_env_runners()) == (2, 2)
    assert (group.num_healthy_env_runners(), group.healthy_env_runner_ids()) == (3, [1, 2])
    assert group.sampling_ids() == [1, 2]


def test_references_and_time_outs(group, fake):
    refs = group.foreach_env_runner("get_spaces", local_env_runner=False, return_obj_refs=True)
    assert fake.get(refs) == [{"__env__": 1}, {"__env__": 2}]
    napping = [lambda runner: "awake", lambda runner: work(0.7)]
    assert group.foreach_env_runner(napping, local_env_runner=False, timeout_seconds=0.3) == ["awake"]
    assert fake.now() == pytest.approx(0.3)
    assert group.foreach_env_runner("ping", local_env_runner=False, timeout_seconds=0.0) == []


def test_what_a_runner_raises_is_raised_with_its_traceback_or_ignored(group, monkeypatch, caplog):
    def fail(runner):
        if runner.worker_index == 2:
            raise KeyError("lost key")
        return "fine"

    with pytest.raises(KeyError, match="lost key") as caught:
        group.foreach_env_runner(fail)
    assert "in fail" in str(caught.value) and caught.value.__notes__ == ["In actor 2."]
    monkeypatch.setattr(group, "config", toy_config(ignore_env_runner_failures=True))
    assert group.foreach_env_runner(fail, local_env_runner=False) == ["fine"]
    assert "EnvRunner actor 2 failed" in caplog.text and "lost key" in caplog.text
    assert group.healthy_env_runner_ids() == [1, 2]


def test_asynchronous_calls(group):
    assert group.foreach_env_runner_async("ping", "p") == 2
    assert group.foreach_env_runner_async("ping", "p") == 0  # max_requests_in_flight_per_env_runner=1
    assert group.num_in_flight_async_reqs() == group.num_in_flight_async_reqs("p") == 2
    assert group.fetch_ready_async_reqs(tags="other") == []
    assert group.fetch_ready_async_reqs(tags=["p"], timeout_seconds=None) == [(1, "pong"), (2, "pong")]
    assert group.foreach_env_runner_async_fetch_ready("ping", tag="p", timeout_seconds=None) == ["pong"] * 2


# --------------------------------------------------------------------------------------------------------- sampling


def test_blocks_come_in_the_same_order_however_fast_the_runners_are(group):
    group.foreach_env_runner(lambda runner: setattr(runner, "slow", 0.2), remote_worker_ids=[1])
    assert sample_blocks(group, 5, num_steps=7) == [(1, 1, 7), (2, 1, 7), (1, 2, 7), (2, 2, 7), (1, 3, 7)]


def test_what_a_late_runner_leaves_open_is_sampled_by_the_others(group):
    group.foreach_env_runner(lambda runner: setattr(runner, "slow", 0.5), remote_worker_ids=[2])
    blocks = sample_blocks(group, 2, num_steps=3, timeout_seconds=0.3)
    assert [block[0] for block in blocks] == [1, 1]
    # Unless it is to be asked for once only.
    group.foreach_env_runner("ping")
    assert [block[0] for block in sample_blocks(group, 2, num_steps=3, once=True, timeout_seconds=0.3)] == [1]


def test_runners_that_never_answer_in_time_are_an_error_that_names_the_setting(group, monkeypatch):
    monkeypatch.setattr(group, "config", toy_config().env_runners(sample_timeout_s=0.05))
    group.foreach_env_runner(lambda runner: setattr(runner, "slow", 0.2))
    with pytest.raises(
        TimeoutError, match=r"sample_timeout_s=0.05.*num_envs_per_env_runner=1.*3 rounds of sampling calls in a row"
    ):
        sample_blocks(group, 2, num_steps=1, timeout_seconds=0.05)
    assert MAX_ROUNDS_WITHOUT_DATA == 3
    group.foreach_env_runner("ping")  # Waits until the late ones are through.


def shares_per_second(group, fake, number):
    """Shares of the first runner, with every runner asked again as soon as it has answered, and how many others."""
    own = others = 0
    started = fake.now()
    while own < number:
        group.request("sample_block", {"num_steps": 1})
        came = [block[0] for block in group.collect("sample_block", {"num_steps": 1}, timeout_seconds=30.0)]
        own += came.count(1)
        others += len(came) - came.count(1)
    return own / (fake.now() - started), others


def test_a_slow_runner_holds_no_other_one_up(group, fake):
    group.foreach_env_runner(lambda runner: setattr(runner, "slow", 0.05), remote_worker_ids=[1])
    group.foreach_env_runner(lambda runner: setattr(runner, "slow", 0.5), remote_worker_ids=[2])
    rate, others = shares_per_second(group, fake, 38)
    assert rate == pytest.approx(1 / 0.05) and others == 3
    group.forget_requests()


def test_collecting_waits_for_nothing_that_was_not_requested_and_no_longer_than_it_is_told(group, fake):
    assert group.collect("sample_block", {"num_steps": 1}, timeout_seconds=30.0) == []
    group.foreach_env_runner(lambda runner: setattr(runner, "slow", 1.5))
    assert group.request("sample_block", {"num_steps": 1}) == 2
    assert group.collect("sample_block", {"num_steps": 1}, timeout_seconds=0.0) == []
    assert fake.now() == 0.0
    group.foreach_env_runner("ping", local_env_runner=False)  # After the shares in the actors' queues.
    assert group.collect("sample_block", {"num_steps": 1}, timeout_seconds=0.0) == [(1, 1, 1), (2, 1, 1)]


# ---------------------------------------------------------------------------------------------------------- weights


def params(group):
    return group.foreach_env_runner(lambda runner: {k: v[0] for k, v in runner.state["rl_module"]["params"].items()})


def test_weights_reach_all_runners_as_one_object(group, fake):
    puts = fake.puts
    large = MAX_BYTES_IN_CALLS // 8
    weights = {"params": {"a/w": jax.numpy.ones(large), "b/w": np.ones(large)}, "rest": {}}
    group.sync_weights(weights=weights, weights_seq_no=5, more_state={"num_env_steps_sampled_lifetime": 9})
    assert params(group) == [{"a/w": 1.0, "b/w": 1.0}] * 3 and len(puts) == 1
    assert isinstance(puts[0]["rl_module"]["params"]["a/w"], np.ndarray)
    # Small ones travel with the calls.
    small = {"params": {"a/w": jax.numpy.full(2, 2.0), "b/w": np.full(2, 2.0)}, "rest": {}}
    group.sync_weights(weights=small, weights_seq_no=5, more_state={"num_env_steps_sampled_lifetime": 9})
    assert params(group) == [{"a/w": 2.0, "b/w": 2.0}] * 3 and len(puts) == 1
    more = group.foreach_env_runner(lambda r: (r.state["weights_seq_no"], r.state["num_env_steps_sampled_lifetime"]))
    assert more == [(5, 9)] * 3


def test_weights_of_a_runner_of_some_modules_and_to_some_actors(group):
    group.local_env_runner.set_state(
        {"rl_module": {"params": {"a/w": np.full(2, 2.0)}, "rest": {}}, "weights_seq_no": 6}
    )
    group.sync_weights(to_worker_indices=[2], policies=["a"], timeout_seconds=None)
    assert group.foreach_env_runner("get_state", kwargs={"components": ["weights_seq_no"]}, remote_worker_ids=[2])[
        1
    ] == {"weights_seq_no": 6}
    assert params(group) == [{"a/w": 2.0, "b/w": 0.0}, {"a/w": 0.0, "b/w": 0.0}, {"a/w": 2.0, "b/w": 0.0}]
    more = {"params": {"a/w": np.full(2, 3.0), "critic/w": np.ones(2)}, "rest": {}}
    group.sync_weights(weights=more, inference_only=True)
    assert params(group) == [{"a/w": 3.0, "b/w": 0.0}] * 3


def both(number, seq_no):
    """Arguments of `sync_weights` with weights of the modules "a" and "b"."""
    weights = {"params": {"a/w": np.full(2, number), "b/w": np.full(2, number)}, "rest": {}}
    return {"weights": weights, "weights_seq_no": seq_no}


def test_a_restarted_actor_has_all_weights_that_it_was_sent(group, fake):
    group.sync_weights(**both(2.0, 1))
    group.sync_weights(policies=["a"], **both(3.0, 2))
    group.sync_weights(to_worker_indices=[1], **both(4.0, 3))
    fake.lose(fake.handles[1])
    group.foreach_env_runner("ping")
    fake.sleep(fake.restart_s)
    assert group.probe_unhealthy_env_runners() == [2]
    assert params(group)[1:] == [{"a/w": 4.0, "b/w": 4.0}, {"a/w": 3.0, "b/w": 2.0}]


@pytest.mark.parametrize("to", [{"policies": ["a"]}, {"policies": ["a"], "with_requests": True}])
def test_states_that_wait_for_a_request_arrive_before_later_ones(group, to):
    more = {"env_to_module_connector": {"F": np.ones(1)}}
    group.sync_weights(with_requests=True, more_state=more, **both(2.0, 1))
    group.sync_weights(**to, **both(3.0, 2))
    group.sync_weights(to_worker_indices=[1], with_requests=True, **both(4.0, 3))
    group.request("sample_block", {"num_steps": 1})
    group.sync_local_env_runner()
    assert params(group) == [{"a/w": 4.0, "b/w": 4.0}] * 2 + [{"a/w": 3.0, "b/w": 2.0}]
    assert group.foreach_env_runner(lambda runner: runner.state["env_to_module_connector"]["F"][0]) == [1.0] * 3
    # Nothing is sent again.
    group.foreach_env_runner(lambda runner: runner.state.update(weights_seq_no=-1), local_env_runner=False)
    group.request("sample_block", {"num_steps": 1})
    assert group.foreach_env_runner(lambda runner: runner.state["weights_seq_no"])[1:] == [-1, -1]


def test_actors_that_have_not_fetched_from_the_state_server_keep_its_weights(group, fake, monkeypatch):
    server = types.SimpleNamespace(push=mock.Mock(), clear=mock.Mock())
    monkeypatch.setattr(group, "_state_server", server)
    group.sync_weights(with_requests=True, **both(2.0, 1))
    assert server.push.remote.call_count == 1 and params(group)[1:] == [{"a/w": 0.0, "b/w": 0.0}] * 2
    group.sync_weights(policies=["a"], to_worker_indices=[1], **both(3.0, 2))
    assert server.clear.remote.call_count == 1
    assert params(group)[1:] == [{"a/w": 3.0, "b/w": 2.0}, {"a/w": 2.0, "b/w": 2.0}]


def test_an_actor_that_has_fetched_from_the_state_server_keeps_its_later_statistics(group, monkeypatch):
    monkeypatch.setattr(group, "_state_server", types.SimpleNamespace(push=mock.Mock(), clear=mock.Mock()))
    own = {"env_to_module_connector": {"F": np.ones(1)}}
    group.sync_weights(with_requests=True, more_state=own, **both(2.0, 1))
    fetched = {"rl_module": both(2.0, 1)["weights"], "weights_seq_no": 1}
    later = {**fetched, "env_to_module_connector": {"F": np.full(1, 50.0)}}
    group.foreach_env_runner("set_state", kwargs={"state": later}, remote_worker_ids=[1], local_env_runner=False)
    group.sync_weights(**both(5.0, 1))  # set_weights()
    assert params(group)[1:] == [{"a/w": 5.0, "b/w": 5.0}] * 2
    statistics = [runner["env_to_module_connector"]["F"][0] for runner in group.foreach_env_runner("get_state")[1:]]
    assert statistics == [50.0, 1.0]


@pytest.mark.parametrize("to", [{"policies": ["a"]}, {"to_worker_indices": [1]}])
def test_the_state_server_takes_only_whole_states_for_all_actors(group, monkeypatch, to):
    server = types.SimpleNamespace(push=mock.Mock(), clear=mock.Mock())
    monkeypatch.setattr(group, "_state_server", server)
    with pytest.raises(ValueError, match=f"with_requests=True, {next(iter(to))}=.*Leave out"):
        group.sync_weights(with_requests=True, **to, **both(2.0, 1))
    assert not server.push.remote.called


def test_an_unknown_id_leaves_waiting_states_waiting(group):
    group.sync_weights(with_requests=True, **both(2.0, 1))
    with pytest.raises(ValueError, match="no actor with the id 99"):
        group.sync_weights(policies=["a"], to_worker_indices=[99, 1], **both(3.0, 2))
    group.request("sample_block", {"num_steps": 1})
    group.sync_local_env_runner()
    assert params(group) == [{"a/w": 2.0, "b/w": 2.0}] * 3


def test_weights_of_a_dropped_actor_are_freed(fake):
    config = toy_config(restart_failed_env_runners=False, ignore_env_runner_failures=True)
    group = EnvRunnerGroup(False, config=config, env_runner_kwargs={"config": None}, backend=fake)
    group.sync_weights(**both(2.0, 1))
    fake.lose(fake.handles[1])
    group.foreach_env_runner("ping")
    assert group.num_remote_env_runners() == 1
    group.sync_weights(**both(3.0, 2))
    assert group._states.all_of(2) == {} and group._states.all_of(1)["state_0"]["weights_seq_no"] == 2


def test_a_learner_groups_weights_and_their_number(group):
    state = {"rl_module": {"params": {"a/w": np.full(2, 7.0)}, "rest": {}}}
    learners = types.SimpleNamespace(weights_for_runners=lambda: state["rl_module"], num_updates=11)
    group.sync_weights(from_worker_or_learner_group=learners)
    assert params(group) == [{"a/w": 7.0, "b/w": 0.0}] * 3
    assert group.foreach_env_runner(lambda runner: runner.state["weights_seq_no"]) == [11] * 3


def test_a_state_that_does_not_fit_is_reported_without_a_wait_for_it(group):
    state = {"params": {}, "rest": {}}
    group.local_env_runner.set_state = lambda state: None
    group.sync_weights(weights=state, more_state={"bad": 1})
    with pytest.raises(ValueError, match="unknown part 'bad'"):
        group.foreach_env_runner("ping")
    # The other actor refuses it, too: at the latest, the call after the next one says so.
    for _ in range(2):
        with contextlib.suppress(ValueError):
            group.foreach_env_runner("ping")
    del group.local_env_runner.set_state
    group.sync_weights(weights=state, more_state={"bad": 0})  # What a restarted actor would get.


# -------------------------------------------------------------------------------------------------- without actors


def test_a_group_of_the_local_runner_alone_needs_no_ray():
    runner = ToyRunner(config=toy_config())
    group = EnvRunnerGroup(runner, num_env_runners=0)
    assert group.config is runner.config and group.local_env_runner is runner
    assert group.sampling_ids() == [0] and group.get_spaces() == {"__env__": 0}
    assert sample_blocks(group, 2, num_steps=4) == [(0, 1, 4), (0, 2, 4)]
    assert (
        group.foreach_env_runner("ping") == ["pong"] and group.foreach_env_runner("ping", local_env_runner=False) == []
    )
    group.sync_weights(weights={"params": {"a/w": np.full(2, 5.0)}, "rest": {}})
    assert params(group) == [{"a/w": 5.0, "b/w": 0.0}]
    group.sync_env_runner_states(config=group.config, env_steps_sampled=12)
    assert runner.state["num_env_steps_sampled_lifetime"] == 12
    with pytest.raises(ValueError, match="needs config="):
        EnvRunnerGroup()
    with pytest.raises(ValueError, match="no local runner to take the weights from"):
        EnvRunnerGroup(False, config=toy_config(), num_env_runners=0).sync_weights()


def test_the_state_server_hands_out_only_what_is_newer():
    server = EnvRunnerStateServer()
    assert server.pull() is None and server.get_version() == -1 and server.pull_if_newer(-1) is None
    server.push({"weights_seq_no": 2, "x": 1})
    server.push({"weights_seq_no": 1, "x": 0})
    assert server.get_version() == 2 and server.pull() == {"weights_seq_no": 2, "x": 1}
    assert server.pull_if_newer(1) == {"weights_seq_no": 2, "x": 1} and server.pull_if_newer(2) is None
    with pytest.raises(ValueError, match="needs 'weights_seq_no'"):
        server.push({})
