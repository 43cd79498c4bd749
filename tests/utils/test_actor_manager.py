"""Calls to sets of actors: results, errors, time-outs, tags, and actors that die and come back."""

from __future__ import annotations

import pytest
import ray.exceptions

from jaxrl_stack.utils.actor_manager import FaultAwareApply, FaultTolerantActorManager, RemoteCallResults, ResultOrError
from tests import pool_promises
from tests.fake_actors import FakeActors, work
from tests.pool_promises import values


class Counter(FaultAwareApply):
    """Counts, takes its time and fails when told to."""

    def __init__(self, start: int = 0):
        self.count = start

    def add(self, n: int = 1) -> int:
        self.count += n
        return self.count

    def sleep(self, seconds: float) -> float:
        work(seconds)
        return seconds

    def fail(self, message: str = "told to") -> None:
        raise KeyError(message)


@pytest.fixture
def fake():
    return FakeActors()


@pytest.fixture
def actors(fake):
    """Three actors with the counts 0, 10 and 20; the last one is restarted once."""
    return [fake.start(Counter, {"max_restarts": i // 2}, start=10 * i) for i in range(3)]


@pytest.fixture
def manager(fake, actors):
    return FaultTolerantActorManager(actors[:2], init_id=1, backend=fake)


def test_functions_methods_and_lists_reach_their_actors(fake, manager, actors):
    pool_promises.functions_methods_and_lists_reach_their_actors(manager, actors, fake.get)


def test_an_exception_is_a_result_and_raises_with_the_actors_traceback(manager):
    pool_promises.an_exception_is_a_result_and_raises_with_the_actors_traceback(manager)


def test_late_results_are_left_out_and_dropped(manager):
    results = manager.foreach_actor(["ping", "sleep"], kwargs=[{}, {"seconds": 1.0}], timeout_seconds=0.5)
    assert [(call.actor_id, call.get()) for call in results] == [(1, "pong")]
    assert values(manager.foreach_actor("ping")) == ["pong", "pong"]


def test_a_call_without_a_wait_for_it_still_raises(fake, manager):
    assert len(manager.foreach_actor("sleep", kwargs={"seconds": 0.5}, timeout_seconds=0.0)) == 0
    assert fake.now() == 0.0
    manager.foreach_actor("fail", timeout_seconds=0.0)
    manager.foreach_actor("ping")  # After the failing calls in the actors' queues: they have failed by now.
    with pytest.raises(KeyError, match="told to") as raised:
        manager.foreach_actor("ping")
    assert "Also raised in actor 2: KeyError('told to')" in raised.value.__notes__
    assert values(manager.foreach_actor("ping")) == ["pong", "pong"]


def test_asynchronous_calls_are_fetched_by_tag_and_their_number_is_limited(manager):
    with pytest.raises(ValueError, match="max_remote_requests_in_flight_per_actor=0"):
        FaultTolerantActorManager([], max_remote_requests_in_flight_per_actor=0)
    assert manager.foreach_actor_async("add", "a", kwargs={"n": 0}) == 2
    assert manager.foreach_actor_async("ping", "b", remote_actor_ids=[1, 1, 1]) == 2
    assert manager.foreach_actor_async("add", "a", kwargs={"n": 0}) == 2
    assert manager.foreach_actor_async("add", "a", kwargs={"n": 0}) == 0
    assert manager.num_outstanding_async_reqs() == 6 and manager.num_outstanding_async_reqs("b") == 2
    fetched = manager.fetch_ready_async_reqs(tags="b", timeout_seconds=None)
    assert [(call.actor_id, call.tag, call.get()) for call in fetched] == [(1, "b", "pong")] * 2
    assert manager.num_outstanding_async_reqs() == 4
    rest = manager.fetch_ready_async_reqs(timeout_seconds=5.0)
    assert [call.actor_id for call in rest] == [1, 2, 1, 2] and manager.num_outstanding_async_reqs() == 0
    assert manager.foreach_actor_async("ping", "b") == 2  # There is room again.
    got = manager.foreach_actor_async_fetch_ready("ping", "b", timeout_seconds=5.0, return_actor_ids=True)
    assert got == [(1, "pong"), (2, "pong")] * 2


def test_the_first_outcome_ends_the_wait_and_whatever_else_is_there_comes_with_it(fake, manager):
    assert len(manager.fetch_first_async_reqs("first", timeout_seconds=30.0)) == 0
    manager.foreach_actor_async("sleep", "first", kwargs={"seconds": 2.0}, remote_actor_ids=[2])
    assert len(manager.fetch_first_async_reqs("first", timeout_seconds=0.1)) == 0
    # A failure is an outcome. What has another tag is left where it is.
    manager.foreach_actor_async("ping", "other", remote_actor_ids=[1])
    manager.foreach_actor_async("fail", "first", remote_actor_ids=[1])
    (failed,) = manager.fetch_first_async_reqs("first", timeout_seconds=30.0)
    assert failed.actor_id == 1 and isinstance(failed.error, KeyError)
    assert fake.now() == pytest.approx(0.1)
    manager.foreach_actor_async("ping", "first", remote_actor_ids=[1, 1])
    manager.foreach_actor("ping")  # After all of these in the actors' queues.
    results = manager.fetch_first_async_reqs("first", timeout_seconds=None)
    assert [(call.actor_id, call.get()) for call in results] == [(2, 2.0), (1, "pong"), (1, "pong")]
    assert manager.num_outstanding_async_reqs() == 1


def test_actors_come_and_go(manager, actors):
    assert manager.add_actors([actors[2]]) == [3]
    assert values(manager.foreach_actor("add", kwargs={"n": 0})) == [0, 10, 20]
    manager.foreach_actor_async("ping")
    assert manager.remove_actor(2) is actors[1]
    assert manager.actor_ids() == [1, 3] and manager.num_outstanding_async_reqs() == 2
    assert manager.add_actors([actors[1]]) == [4]
    manager.set_actor_state(3, healthy=False)
    assert not manager.is_actor_healthy(3) and manager.num_healthy_actors() == 2
    assert [call.actor_id for call in manager.foreach_actor("ping")] == [1, 4]
    results = manager.foreach_actor("ping", healthy_only=False, mark_healthy=True)
    assert [call.actor_id for call in results] == [1, 3, 4] and manager.is_actor_healthy(3)


def test_a_killed_actor_is_left_out_until_it_is_back_and_a_dead_one_for_good(fake, manager, actors):
    short_lived = fake.start(Counter, {})
    manager.add_actors([actors[2], short_lived])
    manager.foreach_actor_async("sleep", kwargs={"seconds": 30.0}, remote_actor_ids=[3, 4])
    for actor in (actors[2], short_lived):
        fake.lose(actor)
    lost = manager.fetch_ready_async_reqs(timeout_seconds=20.0)
    assert [call.ok for call in lost] == [False, False] and list(lost.ignore_ray_errors()) == []
    assert [manager.is_lost_for_good(call) for call in lost] == [False, True]
    assert manager.healthy_actor_ids() == [1, 2] and manager.num_outstanding_async_reqs() == 0
    assert values(manager.foreach_actor("add", kwargs={"n": 0})) == [0, 10]
    # An actor that is gone for good does not make the probe wait, and one that is not back yet is waited for no longer.
    assert manager.probe_unhealthy_actors(timeout_seconds=0.2) == [] and fake.now() <= 0.2
    assert manager.probe_unhealthy_actors(timeout_seconds=30.0, mark_healthy=True) == [3]
    assert fake.now() < 1.0
    assert manager.healthy_actor_ids() == [1, 2, 3] and manager.total_num_restarts() == 1
    assert values(manager.foreach_actor("add", kwargs={"n": 0}, remote_actor_ids=[3])) == [20]  # Built again.
    with pytest.raises(ray.exceptions.ActorDiedError):
        manager.handle_remote_call_result_errors(
            manager.foreach_actor("ping", healthy_only=False), ignore_ray_errors=False
        )


def test_a_probe_that_is_answered_late_stays_open(fake, manager, actors):
    manager.set_actor_state(1, healthy=False)
    fake.delay(actors[0], 3.0)
    for _ in range(10):
        assert manager.probe_unhealthy_actors(timeout_seconds=0.2) == []
    assert manager.probe_unhealthy_actors(timeout_seconds=None) == [1] and fake.now() == pytest.approx(3.0, abs=0.2)


def test_answers_come_in_the_order_of_the_requests_however_late_some_are(fake, manager, actors):
    fake.delay(actors[0], 2.0, 0.5)
    manager.foreach_actor_async("add", "a", kwargs={"n": 1}, remote_actor_ids=[1, 2, 1])
    results = manager.fetch_ready_async_reqs(tags="a", timeout_seconds=1.0)
    assert [(call.actor_id, call.get()) for call in results] == [(2, 11), (1, 2)]
    results = manager.fetch_ready_async_reqs(tags="a", timeout_seconds=None)
    assert [(call.actor_id, call.get()) for call in results] == [(1, 1)]


def test_a_result_that_is_lost_with_a_node_leaves_its_actor_healthy(fake, manager):
    manager.foreach_actor_async("ping", "a")
    fake.lose_object(manager.async_request_refs("a")[0])
    lost, found = manager.fetch_ready_async_reqs(tags="a", timeout_seconds=None)
    assert lost.is_ray_error and not manager.is_lost_for_good(lost) and found.get() == "pong"
    assert manager.healthy_actor_ids() == [1, 2]


def test_results_tell_lost_actors_from_failing_code():
    results = RemoteCallResults()
    results.add_result(1, ResultOrError(result=5), "x")
    results.add_result(2, ResultOrError(error=ray.exceptions.ActorDiedError()), "x")
    results.add_result(3, ResultOrError(error=ValueError("bad")))
    assert [call.ok for call in results] == [True, False, False] and len(results) == 3
    assert [call.actor_id for call in results.ignore_errors()] == [1]
    assert [call.actor_id for call in results.ignore_ray_errors()] == [1, 3]
    assert [call.tag for call in results] == ["x", "x", None]
