from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.ops import running_statistics as rs

RNG = np.random.default_rng(0)

of_batch, update, merge = jax.jit(rs.of_batch), jax.jit(rs.update), jax.jit(rs.merge)


def expected(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    rows = rows.astype(np.float64)
    return rows.mean(0), rows.var(0)


def count_of(statistics: rs.RunningStatistics) -> int:
    high, low = np.asarray(statistics.count)
    return int(high) * 2**32 + int(low)


def assert_statistics(statistics: rs.RunningStatistics, rows: np.ndarray, rtol: float = 2e-6) -> None:
    mean, variance = expected(rows)
    assert count_of(statistics) == len(rows)
    np.testing.assert_allclose(statistics.mean, mean, rtol=rtol, atol=1e-6)
    np.testing.assert_allclose(statistics.variance, variance, rtol=10 * rtol, atol=1e-10)


def test_updates_match_the_moments_of_all_rows():
    batches = [RNG.normal(3.0, 2.0, (size, 2, 3)).astype(np.float32) for size in (1, 5, 64, 7)]
    statistics = rs.init((2, 3))
    for batch in batches:
        statistics = update(statistics, batch)
    rows = np.concatenate(batches)
    assert_statistics(statistics, rows)
    np.testing.assert_allclose(rs.standard_deviation(statistics), rows.std(0, ddof=1), rtol=1e-5)


def test_masked_rows_do_not_count_even_if_they_are_not_numbers():
    batch = RNG.normal(size=(6, 3)).astype(np.float32)
    mask = np.array([False, True, True, False, True, False])
    batch[~mask] = np.nan
    assert_statistics(update(rs.init((3,)), jnp.asarray(batch), jnp.asarray(mask)), batch[mask])


@pytest.mark.parametrize("masks", [None, np.arange(5) != 2])
def test_finite_rows_give_the_same_bits_with_and_without_a_look_at_them(masks):
    update = jax.jit(lambda statistics, rows: rs.update(statistics, rows, masks))
    careful = jax.jit(
        lambda statistics, rows: rs.on_finite_rows(lambda rows, mask: rs.update(statistics, rows, mask), rows, masks)
    )
    statistics = rs.init((7,))
    for rows in np.random.default_rng(0).normal(3.0, 5.0, (10, 5, 7)).astype(np.float32):
        expected, found = update(statistics, rows), careful(statistics, rows)
        assert all(np.array_equal(a, b) for a, b in zip(expected, found, strict=True))
        statistics = found


def test_a_batch_without_a_valid_row_changes_no_bit():
    before = update(rs.init((2,)), jnp.asarray(RNG.normal(size=(9, 2)), jnp.float32))
    after = update(before, jnp.full((4, 2), jnp.nan), jnp.zeros(4, bool))
    jax.tree.map(np.testing.assert_array_equal, after, before)


@pytest.mark.parametrize("mask", [None, np.array([False, True, True, True, False])])
def test_a_constant_column_has_exactly_its_value_and_no_variance(mask):
    statistics = rs.init(())
    for _ in range(3):
        statistics = update(statistics, jnp.full((5,), 1.1, jnp.float32), mask)
    assert statistics.mean == np.float32(1.1)
    assert statistics.variance == 0.0


def test_a_large_mean_does_not_swallow_the_variance():
    rows = (1e4 + RNG.normal(size=(4096, 1))).astype(np.float32)
    statistics = rs.init((1,))
    for batch in np.split(rows, 64):
        statistics = update(statistics, jnp.asarray(batch))
    np.testing.assert_allclose(statistics.variance, rows.astype(np.float64).var(0), rtol=1e-3)


def test_merge_is_associative_and_commutative():
    a, b, c = (of_batch(jnp.asarray(RNG.normal(i, i + 1, (10 * i + 3, 2)), jnp.float32)) for i in range(3))
    left, right = merge(merge(a, b), c), merge(c, merge(b, a))
    assert count_of(left) == count_of(right) == 39
    np.testing.assert_allclose(left.mean, right.mean, rtol=1e-5)
    np.testing.assert_allclose(left.variance, right.variance, rtol=1e-5)


def test_the_count_is_exact_beyond_32_bits():
    old = rs.RunningStatistics(jnp.array([3, 2**32 - 5], jnp.uint32), jnp.zeros(1), jnp.ones(1))
    new = update(old, jnp.ones((7, 1), jnp.float32))
    assert count_of(new) == 4 * 2**32 + 2


def test_after_billions_of_rows_the_variance_neither_sinks_nor_grows():
    statistics = rs.RunningStatistics(jnp.array([4, 0], jnp.uint32), jnp.zeros(1), jnp.ones(1))
    batch = jnp.asarray([[-1.0], [1.0]])
    statistics = jax.lax.fori_loop(0, 10_000, lambda _, s: update(s, batch), statistics)
    np.testing.assert_allclose(statistics.variance, 1.0, rtol=1e-5)


def test_fewer_than_two_rows_leave_the_scale_alone():
    batch = jnp.asarray([[2.0], [4.0]])
    np.testing.assert_array_equal(rs.normalize(rs.init((1,)), batch), batch)
    one = update(rs.init((1,)), batch[:1])
    np.testing.assert_array_equal(rs.normalize(one, batch), [[0.0], [2.0]])


def test_normalize_switches():
    rows = jnp.asarray(RNG.normal(5.0, 3.0, (50, 2)), jnp.float32)
    statistics = of_batch(rows)
    mean, std = np.mean(rows, 0), np.std(rows, 0, ddof=1)
    for subtract in (True, False):
        for divide in (True, False):
            out = rs.normalize(statistics, rows, subtract_mean=subtract, divide_by_std=divide, clip=1.5)
            wanted = (np.asarray(rows) - mean * subtract) / (std if divide else 1.0)
            np.testing.assert_allclose(out, np.clip(wanted, -1.5, 1.5), rtol=1e-4, atol=1e-5)


def test_merge_over_devices_counts_every_row_once_and_agrees_bit_for_bit():
    num_devices = jax.local_device_count()
    assert num_devices > 1
    rows = RNG.normal(2.0, 3.0, (3, num_devices, 4, 2)).astype(np.float32)
    mask = RNG.random((3, num_devices, 4)) < 0.6
    mask[1, 0] = False  # one device without a valid row

    def iteration(base, rows, mask):
        delta = update(rs.init((2,)), rows, mask)
        return rs.merge_over_axis(base, delta, "devices")

    step = jax.pmap(iteration, axis_name="devices")
    base = jax.tree.map(lambda leaf: jnp.stack([leaf] * num_devices), rs.init((2,)))
    for i in range(3):
        base = step(base, rows[i], mask[i])
        merged = jax.tree.map(np.asarray, base)
        for leaf in merged:
            np.testing.assert_array_equal(leaf, np.broadcast_to(leaf[:1], leaf.shape))
        assert_statistics(rs.RunningStatistics(*(leaf[0] for leaf in merged)), rows[: i + 1][mask[: i + 1]])
