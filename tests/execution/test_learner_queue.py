"""Batches that wait for a learner, and what becomes of their steps, without environments and networks."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from jaxrl_stack.core.block import Block
from jaxrl_stack.core.experience import Experience, LostExperienceError, Part, Versions
from jaxrl_stack.execution.aggregation import Packer, batch_of
from jaxrl_stack.execution.learner_feed import LearnerThread
from jaxrl_stack.execution.learner_queue import FirstInFirstOut, Ledger, Ring


def sample(number=0, version=0):
    """One of two env steps."""
    blocks = {"p": Block({"obs": np.full((2, 1), number, np.float32)})}
    return Part(blocks, num_env_steps=2, versions=Versions(version, version))


def batch(number=0, version=0):
    return batch_of([sample(number, version)])


def number_of(one):
    return int(one.experience.parts[0].modules["p"]["obs"][0, 0])


def test_a_packer_makes_batches_of_the_same_size_in_the_order_of_arrival():
    packer = Packer(3)
    assert packer.add(Experience(tuple(sample(i) for i in range(2)))) == []
    batches = packer.add(Experience(tuple(sample(i) for i in range(2, 7))))
    assert [[int(part.modules["p"]["obs"][0, 0]) for part in one.experience.parts] for one in batches] == [
        [0, 1, 2],
        [3, 4, 5],
    ]
    assert [one.num_env_steps for one in batches] == [6, 6]
    assert len(packer.parts) == 1


def test_a_queue_gives_batches_in_order_and_says_when_it_is_full():
    queue = FirstInFirstOut(2)
    assert queue.take() is None
    for i in range(2):
        assert queue.has_room
        assert queue.put(batch(i)) is None
    assert not queue.has_room
    assert [number_of(queue.take()), number_of(queue.take())] == [0, 1]
    assert queue.has_room
    assert len(queue) == 0


def test_a_ring_gives_each_batch_so_often_and_drops_what_nobody_has_read():
    ring = Ring(2, 3, seed=0)
    first, second, third = batch(0), batch(1), batch(2)
    assert ring.put(first) is None
    assert ring.put(second) is None
    assert ring.put(third) is first
    assert ring.has_room
    drawn = [number_of(ring.take()) for _ in range(len(ring))]
    assert sorted(drawn) == [1, 1, 1, 2, 2, 2]
    assert ring.take() is None
    # One that was read falls out without having been dropped.
    ring.put(batch(3))
    ring.take()
    assert ring.put(batch(4)) is None
    assert ring.put(batch(5)) is None


def test_steps_have_one_fate():
    ledger, one = Ledger(), batch()
    ledger.settle(one, "trained")
    ledger.settle(one, "lost")
    ledger.settle(batch(), "dropped")
    assert ledger.num_env_steps == {"trained": 2, "dropped": 2, "lost": 0}


class FakeLearner:
    """Stands for a place and its learner: an update is one number, and takes as long as `lets_go` is not set."""

    def __init__(self):
        self.num_updates = 0
        self.learned: list[int] = []
        self.lags: list[float] = []
        self.lets_go = threading.Event()
        self.lets_go.set()
        self.errors: dict[int, Exception] = {}

    def update(self, state, experience, plan):
        assert self.lets_go.wait(10)
        number = int(experience.parts[0].modules["p"]["obs"][0, 0])
        if number in self.errors:
            raise self.errors[number]
        self.num_updates += 1
        self.learned.append(number)

    def note_lag(self, lag):
        self.lags.append(lag)

    def weights_for_runners(self):
        return {"after": self.num_updates}


@pytest.fixture
def thread():
    learner, ledger = FakeLearner(), Ledger()
    feed = LearnerThread(learner, learner, FirstInFirstOut(2), ledger, {}, 2)
    yield feed, learner, ledger
    learner.lets_go.set()
    feed.stop()


def until_idle(feed):
    feed.resume()
    feed._changed.acquire()
    try:
        assert feed._changed.wait_for(lambda: not len(feed.queue) and feed._current is None, 10)
    finally:
        feed._changed.release()


def test_a_thread_learns_in_order_and_hands_out_weights_every_second_update(thread):
    feed, learner, ledger = thread
    feed.put(batch(0, version=0))
    feed.put(batch(1, version=0))
    assert learner.learned == []  # Not before it may.
    assert not feed.has_room
    until_idle(feed)
    learned = feed.take_learned()
    assert learner.learned == [0, 1]
    assert learned.num_updates == 2
    assert learned.lags == [(0.0, 0), (1.0, 1)]
    assert learned.weights == {"rl_module": {"after": 2}, "weights_seq_no": 2}
    assert ledger.num_env_steps["trained"] == 4
    assert feed.take_learned().weights is None


def test_a_pause_waits_for_the_update_that_runs_and_lets_none_follow(thread):
    feed, learner, _ = thread
    learner.lets_go.clear()
    feed.resume()
    feed.put(batch(0))
    feed.put(batch(1))
    threading.Timer(0.2, learner.lets_go.set).start()
    feed.pause()
    assert learner.learned in ([0], [])
    done = len(learner.learned)
    assert [number_of(one) for one in feed.on_their_way()] == [0, 1][done:]
    until_idle(feed)
    assert learner.learned == [0, 1]


def test_what_an_update_raises_is_raised_here_and_a_lost_batch_is_counted(thread):
    feed, learner, ledger = thread
    learner.errors = {0: LostExperienceError("gone"), 2: FloatingPointError("not finite")}
    feed.put(batch(0))
    feed.put(batch(1))
    until_idle(feed)
    assert feed.take_learned().num_updates == 1
    assert ledger.num_env_steps == {"trained": 2, "dropped": 0, "lost": 2}
    feed.put(batch(2))
    until_idle(feed)
    with pytest.raises(FloatingPointError, match="not finite"):
        feed.take_learned()


def test_who_waits_for_room_is_told(thread):
    feed, learner, _ = thread
    learner.lets_go.clear()
    for i in range(2):
        feed.put(batch(i))
    feed.resume()
    learner.lets_go.set()
    feed.wait_for_room(10)
    assert feed.has_room
