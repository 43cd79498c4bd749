from __future__ import annotations

import jax
import numpy as np
import pytest

from jaxrl_stack.utils import counters

INTERESTING = [0, 1, 7, 2**24 + 1, 2**31, 2**32 - 1, 2**32, 2**32 + 5, 3 * 2**40 + 11, 2**62 + 3]


@pytest.mark.parametrize("n", [*INTERESTING, 2**64 - 1])
def test_round_trip(n):
    assert counters.to_int(counters.from_int(n)) == n


@pytest.mark.parametrize("n", [-1, 2**64])
def test_from_int_refuses_what_does_not_fit(n):
    with pytest.raises(ValueError, match=str(n)):
        counters.from_int(n)


def test_add_carries_exactly():
    add = jax.jit(counters.add)
    for start in INTERESTING:
        for n in (0, 1, 4096, 2**31 - 1):
            assert counters.to_int(add(counters.from_int(start), np.int32(n))) == start + n
    assert counters.to_int(counters.add(counters.from_int(2**32 - 1), 2**32 - 1)) == 2 * (2**32 - 1)
    with pytest.raises(ValueError, match="n=-5.*numbers that grow"):
        counters.add(counters.zero(), -5)


def test_difference_subtracts_before_it_rounds():
    difference = jax.jit(counters.difference)
    for a in INTERESTING:
        for b in INTERESTING:
            got = difference(counters.from_int(a), counters.from_int(b))
            assert got.dtype == np.float32
            np.testing.assert_allclose(float(got), float(a - b), rtol=2e-7)
    # One step apart at an age where float32 has a spacing of 2**39.
    assert float(difference(counters.from_int(2**62 + 3), counters.from_int(2**62 + 4))) == -1.0


def test_counters_batch():
    batch = np.stack([counters.from_int(n) for n in INTERESTING])
    total = counters.add(batch, np.arange(len(INTERESTING), dtype=np.int32))
    assert [counters.to_int(row) for row in total] == [n + i for i, n in enumerate(INTERESTING)]
    assert counters.difference(total, batch).tolist() == list(range(len(INTERESTING)))


def test_two_floats_are_the_whole_counter():
    split = jax.jit(counters.as_floats)
    for n in (0, 7, 2**24 + 1, 2**32 - 1, 2**32, 2**32 + 5, 3 * 2**40 + 11, 2**48 - 1):
        parts = split(counters.from_int(n))
        assert sum(map(float, parts)) == n
        assert float(parts[0]) == np.float32(n)


@pytest.mark.parametrize("n", [None, 7, np.uint32(7), np.float32(7), np.float32(3 * 2**40), counters.from_int(2**40)])
def test_numbers_of_steps_become_counters(n):
    wanted = 0 if n is None else 2**40 if np.ndim(n) else int(n)
    assert counters.to_int(jax.jit(counters.of_steps)(n)) == wanted


def test_a_bounded_difference_is_an_int_of_ints_and_right_over_the_end_of_a_word():
    assert [counters.bounded_difference(a, 7, 5) for a in (3, 7, 9, 2**40)] == [0, 0, 2, 5]
    lower_words = np.array([2**32 - 3, 2**32 - 1, 1, 100], np.uint32)
    found = jax.jit(lambda a: counters.bounded_difference(a, np.uint32(2**32 - 2), 5))(lower_words)
    assert found.dtype == np.int32 and found.tolist() == [0, 1, 3, 5]
