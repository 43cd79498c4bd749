"""Calls to sets of Ray's actors: results, errors, the object store, and processes that are killed and come back."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest
import ray

from jaxrl_stack.utils.actor_manager import FaultAwareApply, FaultTolerantActorManager
from tests import pool_promises
from tests.pickled_by_value import pickled_by_value
from tests.pool_promises import values


class Counter(FaultAwareApply):
    """Counts, sleeps, fails and dies when told to."""

    def __init__(self, start: int = 0):
        self.count = start

    def add(self, n: int = 1) -> int:
        self.count += n
        return self.count

    def sleep(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    def fail(self, message: str = "told to") -> None:
        raise KeyError(message)

    def pid(self) -> int:
        return os.getpid()


@pytest.fixture(scope="module")
def actors(ray_session):
    """Three actors with the counts 0, 10 and 20; the last one is restarted once."""
    with pickled_by_value(ray_session, sys.modules[__name__], pool_promises):
        remote = ray_session.remote(Counter)
        handles = [remote.options(num_cpus=0, max_restarts=i // 2).remote(10 * i) for i in range(3)]
        yield handles
        for handle in handles:
            ray_session.kill(handle)


@pytest.fixture
def manager(actors):
    return FaultTolerantActorManager(actors[:2], init_id=1)


def test_functions_methods_and_lists_reach_their_actors(manager, actors):
    pool_promises.functions_methods_and_lists_reach_their_actors(manager, actors, ray.get)


def test_a_large_argument_is_sent_as_one_object(manager):
    shared = ray.put([1, 2, 3])
    assert values(manager.foreach_actor(lambda actor, x: sum(x), kwargs={"x": shared})) == [6, 6]


def test_an_exception_is_a_result_and_raises_with_the_actors_traceback(manager):
    pool_promises.an_exception_is_a_result_and_raises_with_the_actors_traceback(manager)


def test_more_than_one_result_of_an_asynchronous_call_stays_in_the_object_store(manager):
    manager.foreach_actor_async(lambda actor: ("small", [1, 2]), "two", remote_actor_ids=[1], num_returns=2)
    (call,) = manager.fetch_first_async_reqs("two", timeout_seconds=30.0)
    small, ref = call.get()
    assert small == "small" and ray.get(ref) == [1, 2]


def test_a_killed_actor_is_left_out_until_it_is_back_and_a_dead_one_for_good(manager, actors, ray_session):
    short_lived = ray_session.remote(Counter).options(num_cpus=0).remote()
    manager.add_actors([actors[2], short_lived])
    pids = values(manager.foreach_actor("pid", remote_actor_ids=[3, 4]))
    manager.foreach_actor_async("sleep", kwargs={"seconds": 30.0}, remote_actor_ids=[3, 4])
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    lost = manager.fetch_ready_async_reqs(timeout_seconds=20.0)
    assert [call.ok for call in lost] == [False, False] and list(lost.ignore_ray_errors()) == []
    assert [manager.is_lost_for_good(call) for call in lost] == [False, True]
    assert manager.healthy_actor_ids() == [1, 2] and manager.num_outstanding_async_reqs() == 0
    assert values(manager.foreach_actor("add", kwargs={"n": 0})) == [0, 10]
    # An actor that is gone for good does not make the probe wait.
    assert manager.probe_unhealthy_actors(timeout_seconds=30.0, mark_healthy=True) == [3]
    assert manager.healthy_actor_ids() == [1, 2, 3] and manager.total_num_restarts() == 1
    assert values(manager.foreach_actor("add", kwargs={"n": 0}, remote_actor_ids=[3])) == [20]  # Built again.
    with pytest.raises(ray_session.exceptions.ActorDiedError):
        manager.handle_remote_call_result_errors(
            manager.foreach_actor("ping", healthy_only=False), ignore_ray_errors=False
        )
