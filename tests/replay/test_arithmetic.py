"""The arithmetic of items, in both namespaces, against loops over single items."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.replay import arithmetic

both = pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])
NUM_ITEMS, WIDTH = 40, 5


def random_ends():
    return np.random.default_rng(0).random((NUM_ITEMS, WIDTH)) < 0.25


@both
def test_steps_up_to_the_end_of_an_episode(xp):
    ends = random_ends()
    first = [next((j for j, end in enumerate(row) if end), WIDTH) for row in ends]
    found, is_there = arithmetic.first(xp, xp.asarray(ends)), arithmetic.until_end(xp, xp.asarray(ends))
    assert found.dtype == np.int32 and is_there.dtype == np.bool_
    np.testing.assert_array_equal(found, first)
    np.testing.assert_array_equal(is_there, [[j <= end for j in range(WIDTH)] for end in first])


@both
def test_windows_sum_what_is_in_them_and_nothing_else(xp):
    is_in = arithmetic.until_end(np, random_ends())
    rewards = np.random.default_rng(1).normal(size=is_in.shape).astype(np.float32)
    discounts = np.float32(0.9) ** np.arange(WIDTH, dtype=np.float32)
    sums, lengths = arithmetic.window(xp, *map(xp.asarray, (np.where(is_in, rewards, np.nan), discounts, is_in)))
    assert sums.dtype == np.float32 and lengths.dtype == np.int32
    expected = [
        sum(0.9**j * float(reward) for j, reward in enumerate(row[:length]))
        for row, length in zip(rewards, is_in.sum(axis=1), strict=True)
    ]
    np.testing.assert_allclose(sums, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(lengths, is_in.sum(axis=1))


@both
def test_every_step_is_in_equally_many_sequences(xp):
    for num_steps, length in ((9, 4), (4, 4), (2, 4), (1, 4), (5, 1)):
        is_first = np.arange(num_steps) == 0
        counts = np.zeros(num_steps)
        for t, number in enumerate(arithmetic.num_starts(xp, xp.asarray(is_first), length).tolist()):
            starts = xp.arange(number, dtype=xp.int32)
            firsts = xp.full(number, is_first[t])
            for size in arithmetic.num_learned(xp, firsts, starts, length).tolist():
                counts[t : t + size] += 1
        np.testing.assert_array_equal(counts, length)


@both
@pytest.mark.parametrize("wanted", [None, np.arange(NUM_ITEMS) % 3 + 1])
def test_windows_in_sequences_stop_where_these_do(xp, wanted):
    sizes = np.arange(NUM_ITEMS) % (WIDTH + 1)
    is_there = np.arange(WIDTH) < sizes[:, None]
    rewards = np.random.default_rng(1).normal(size=is_there.shape).astype(np.float32)
    discounts = np.float32(0.9) ** np.arange(3, dtype=np.float32)
    given = [None if wanted is None else xp.asarray(wanted)]
    sums, lengths, last = arithmetic.windows_in_sequences(
        xp, *map(xp.asarray, (np.where(is_there, rewards, np.nan), discounts, is_there)), *given
    )
    assert (sums.dtype, lengths.dtype, last.dtype) == (np.float32, np.int32, np.int32)
    for i, size in enumerate(sizes):
        steps = [min(3 if wanted is None else wanted[i], size - t) for t in range(size)]
        np.testing.assert_array_equal(lengths[i], steps + [0] * (WIDTH - size))
        np.testing.assert_array_equal(last[i, :size], np.arange(size) + steps - 1)
        expected = [sum(0.9**k * float(rewards[i, t + k]) for k in range(n)) for t, n in enumerate(steps)]
        np.testing.assert_allclose(sums[i], expected + [0.0] * (WIDTH - size), rtol=1e-5, atol=1e-6)


@both
def test_losses_see_what_is_neither_burn_in_nor_filled_up(xp):
    lengths = np.arange(NUM_ITEMS) % WIDTH + 1
    num_before = np.minimum(np.arange(NUM_ITEMS) % 3, lengths - 1)
    masks = arithmetic.sequence(xp, xp.asarray(np.arange(WIDTH) < lengths[:, None]), xp.asarray(num_before))
    expected = [[b <= j < n for j in range(WIDTH)] for b, n in zip(num_before, lengths, strict=True)]
    np.testing.assert_array_equal(masks["loss_mask"], expected)
    np.testing.assert_array_equal(masks["seq_lens"], lengths)
    assert masks["seq_lens"].dtype == np.int32


@both
def test_weights_are_those_of_the_paper(xp):
    priorities = np.random.default_rng(2).normal(size=NUM_ITEMS).astype(np.float32)
    priorities[0] = 0.0
    counts = arithmetic.magnitudes(xp, xp.asarray(priorities))
    np.testing.assert_array_equal(counts, np.maximum(np.abs(priorities), np.float32(1e-12)))
    shares = xp.asarray(np.abs(priorities[1:]))
    weights = arithmetic.importance_weights(xp, shares, shares.min(), 0.4)
    probabilities = np.abs(priorities[1:]).astype(np.float64) / np.abs(priorities[1:]).sum(dtype=np.float64)
    raw = (len(probabilities) * probabilities) ** -0.4
    assert weights.dtype == np.float32
    np.testing.assert_allclose(weights, raw / raw.max(), rtol=1e-5)


@pytest.mark.parametrize("n_step", [0, True, (3, 3), (0, 2), (1, 2, 3), 1.5, None])
def test_what_is_no_range_of_steps_is_refused(n_step):
    with pytest.raises(ValueError, match="n_step=.* must be a number of steps"):
        arithmetic.n_step_range(n_step)


def test_both_ends_of_a_range_of_steps():
    assert [arithmetic.n_step_range(n) for n in (1, np.int64(3), (2, 5), [2, 3])] == [(1, 1), (3, 3), (2, 4), (2, 2)]
