"""The circular buffer: who may be drawn how often, what falls out, and waiting."""

import collections
import threading

import numpy as np
import pytest

from jaxrl_stack.replay.circular_buffer import CircularBuffer


def drawn(buffer):
    return [buffer.get(timeout=0) for _ in range(len(buffer))]


def test_every_batch_is_drawn_as_often_as_it_may_be():
    buffer = CircularBuffer(3, 2, seed=0)
    assert [buffer.put(name) for name in "abc"] == [None, None, None]
    assert len(buffer) == buffer.qsize() == 6
    assert sorted(drawn(buffer)) == list("aabbcc")
    with pytest.raises(TimeoutError, match=r"get\(timeout=0\): there is no batch to draw"):
        buffer.get(timeout=0)


def test_the_oldest_falls_out_and_is_returned_if_nothing_has_been_learned_from_it():
    buffer = CircularBuffer(2, 2, seed=0)
    assert buffer.put("a") is None and buffer.get() == "a"
    assert not buffer.filled
    assert buffer.put("b") is None and buffer.filled
    assert buffer.put("c") is None  # "a" was drawn once
    assert buffer.put("d") == "b"
    assert sorted(drawn(buffer)) == list("ccdd")


def test_draws_that_are_left_are_equally_likely():
    first = collections.Counter()
    for seed in range(600):
        buffer = CircularBuffer(2, 3, seed=seed)
        buffer.put("a")
        buffer.get()
        buffer.put("b")
        first[buffer.get()] += 1
    # Two of "a" and three of "b" are left; four standard deviations.
    assert abs(first["a"] / 600 - 0.4) < 4 * np.sqrt(0.4 * 0.6 / 600)


def test_who_draws_as_often_as_batches_allow_draws_the_newest_one():
    """So a step that samples and learns in turns needs no buffer (`execution.sample_reuse`)."""
    buffer = CircularBuffer(8, 3)
    for number in range(20):
        assert buffer.put(number) is None
        assert [buffer.get(timeout=0) for _ in range(3)] == [number] * 3


def test_equal_seeds_draw_equally():
    orders = []
    for _ in range(2):
        buffer = CircularBuffer(4, 3, seed=5)
        for name in "abcd":
            buffer.put(name)
        orders.append(drawn(buffer))
    assert orders[0] == orders[1]


def test_get_waits_for_a_batch():
    buffer, found = CircularBuffer(1, 1), []
    thread = threading.Thread(target=lambda: found.append(buffer.get(timeout=60)))
    thread.start()
    buffer.put("a")
    thread.join()
    assert found == ["a"]


@pytest.mark.parametrize(("sizes", "name"), [((0, 1), "num_batches"), ((1, 0), "iterations_per_batch")])
def test_sizes_below_one_are_refused(sizes, name):
    with pytest.raises(ValueError, match=rf"CircularBuffer\({name}=0\): give an int of at least 1"):
        CircularBuffer(*sizes)
