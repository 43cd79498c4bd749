"""The backend of actors without processes: order, time, losses, and the same exceptions as Ray's."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, OwnerDiedError, RayTaskError

from jaxrl_stack.utils import actor_setup
from jaxrl_stack.utils.actor_backend import RAY, Backend, start_actors
from tests.fake_actors import FakeActors, in_place_of_ray, work


class Counter:
    """Counts, takes its time and fails when told to."""

    def __init__(self, start=0):
        if start is None:
            raise LookupError("nothing to start from")
        self.count, self.was_restarted = start, actor_setup.was_actor_restarted()

    def add(self, n=1, seconds=0.0):
        work(seconds)
        self.count += n
        return self.count

    def fail(self):
        raise KeyError("told to")

    def both(self):
        return self.count, [self.count]

    def restarted(self):
        return self.was_restarted, actor_setup.was_actor_restarted()

    def call(self, other):
        return other.add.remote(5)


def started(fake, *, number=1, max_restarts=0, start=0):
    return start_actors(Counter, [{"start": start}] * number, options={}, max_restarts=max_restarts, backend=fake)


def test_calls_run_in_the_order_in_which_they_were_sent_and_take_no_time():
    fake: Backend = FakeActors()
    (actor,) = started(fake)
    refs = [actor.add.remote(), actor.add.remote(n=2), actor.fail.remote(), actor.add.remote()]
    assert fake.get([refs[0], refs[3]]) == [1, 4] and fake.now() == 0.0
    with pytest.raises(KeyError, match="told to") as caught:
        fake.get(refs[2])
    assert isinstance(caught.value, RayTaskError) and "in fail" in str(caught.value)
    count, own = actor.both.options(num_returns=2).remote()
    assert (fake.get(count), fake.get(own)) == (4, [4])


def test_what_is_sent_is_a_copy_and_a_reference_stands_for_its_value():
    fake = FakeActors()
    first, second = started(fake, number=2)
    numbers = np.ones(2)
    ref = fake.put(numbers)
    numbers[:] = 7.0
    np.testing.assert_array_equal(fake.get(first.add.remote(ref)), [1.0, 1.0])
    np.testing.assert_array_equal(fake.puts[0], [7.0, 7.0])
    # Handles and references are the same on the other side.
    inner = fake.get(first.call.remote(second))
    assert fake.get(inner) == 5 and fake.get(second.add.remote(0)) == 5


def test_the_clock_moves_while_something_is_waited_for():
    fake = FakeActors()
    slow, fast = started(fake, number=2)
    refs = [slow.add.remote(1, seconds=2.0), slow.add.remote(1, seconds=2.0), fast.add.remote(1, seconds=0.5)]
    assert fake.wait(refs, 1, timeout_s=0.0) == ([], refs) and fake.now() == 0.0
    assert fake.wait(refs, 1) == ([refs[2]], refs[:2]) and fake.now() == 0.5
    assert fake.wait(refs, 3, timeout_s=2.5) == ([refs[0], refs[2]], [refs[1]]) and fake.now() == 3.0
    with pytest.raises(GetTimeoutError):
        fake.get(refs[1], timeout_s=0.5)
    assert fake.get(refs[1]) == 2 and fake.now() == 4.0
    fake.sleep(1.0)
    assert fake.now() == 5.0 and fake.wait([], 0) == ([], [])


def test_answers_can_be_late_and_come_in_another_order():
    fake = FakeActors()
    first, second = started(fake, number=2)
    fake.delay(first, 3.0, 1.0)
    refs = [first.add.remote(), first.add.remote(), second.add.remote()]
    order = []
    while len(order) < 3:
        (ready,), _ = fake.wait([ref for ref in refs if ref not in order])
        order.append(ready)
    assert order == [refs[2], refs[1], refs[0]] and fake.now() == 3.0
    # The actor itself was never late, and is not any more.
    assert fake.get(refs) == [1, 2, 1] and fake.get(first.add.remote()) == 3 and fake.now() == 3.0
    fake.stall(first, 2.0)
    ref = first.add.remote()
    assert fake.wait([ref], 1, timeout_s=1.0) == ([], [ref])
    assert fake.get(ref) == 4 and fake.now() == 5.0


def test_a_lost_actor_comes_back_as_another_object_as_often_as_it_may():
    fake = FakeActors(restart_s=2.0)
    (actor,) = started(fake, max_restarts=1, start=10)
    done = actor.add.remote()
    assert fake.get(done) == 11 and fake.get(actor.restarted.remote()) == (False, False)
    running = actor.add.remote(1, seconds=9.0)
    fake.wait([running], 1, timeout_s=1.0)
    queued = actor.add.remote()
    fake.lose(actor)
    for ref in (running, queued, actor.add.remote()):
        with pytest.raises(ActorUnavailableError):
            fake.get(ref)
    assert fake.get(done) == 11
    fake.sleep(2.0)
    assert fake.get(actor.add.remote()) == 11
    assert fake.get(actor.restarted.remote()) == (True, True) and not actor_setup.was_actor_restarted()
    fake.lose(actor)
    with pytest.raises(ActorDiedError):
        fake.get(actor.add.remote())


def test_an_actor_that_is_killed_may_be_restarted_and_one_that_cannot_be_built_is_dead():
    fake = FakeActors(restart_s=0.0)
    lasting, killed = started(fake, number=2, max_restarts=-1)
    for _ in range(5):
        fake.get(lasting.add.remote())
        fake.kill(lasting, restart=True)
    assert fake.get(lasting.add.remote()) == 1
    fake.kill(killed)
    with pytest.raises(ActorDiedError):
        fake.get(killed.add.remote())
    (broken,) = started(fake, max_restarts=-1, start=None)
    first, second = broken.add.remote(), broken.add.remote()
    for ref in (first, second, broken.add.remote()):
        with pytest.raises(ActorDiedError, match="LookupError: nothing to start from"):
            fake.get(ref)


def test_a_result_can_be_lost_and_a_wait_without_an_end_is_an_error():
    fake = FakeActors()
    (actor,) = started(fake)
    ref = actor.add.remote()
    fake.lose_object(ref)
    with pytest.raises(OwnerDiedError):
        fake.get(ref)
    assert fake.get(actor.add.remote()) == 2
    fake.lose_results(actor)
    with pytest.raises(OwnerDiedError):
        fake.get(actor.add.remote())
    assert fake.get(actor.add.remote()) == 4
    fake.stall(actor, float("inf"))
    with pytest.raises(RuntimeError, match="no actor will answer"):
        fake.get(actor.add.remote())


def test_in_place_of_ray_the_librarys_actors_are_such_ones_until_the_end():
    with in_place_of_ray() as fake:
        (actor,) = start_actors(Counter, [{"start": 1}], options={"num_cpus": 1}, max_restarts=0)
        assert fake.handles == [actor] and RAY.is_running
        refs = [actor.add.remote(seconds=2.0), RAY.put(3)]
        assert RAY.wait(refs, 2, 1.0) == (refs[1:], refs[:1]) and RAY.now() == 1.0
        assert RAY.get(refs) == [2, 3] and RAY.now() == 2.0
        assert fake.is_reference(refs[0]) and not fake.is_reference(3)
        RAY.kill(actor)
        with pytest.raises(ActorDiedError):
            RAY.get(actor.add.remote())
    assert RAY.now() > 2.0


is_inside, may_leave = threading.Event(), threading.Event()


class Guest:
    def stay(self):
        is_inside.set()
        may_leave.wait(0.2)

    def visit(self):
        may_leave.set()
        time.sleep(0.05)


def test_threads_take_turns_in_actors_and_are_outside_of_them_afterwards():
    fake = FakeActors()
    one, other = start_actors(Guest, [{}, {}], options={}, max_restarts=0, backend=fake)
    thread = threading.Thread(target=lambda: fake.get(one.stay.remote()))
    thread.start()
    assert is_inside.wait(10.0)
    fake.get(other.visit.remote())
    thread.join()
    assert not actor_setup.is_actor_process()
