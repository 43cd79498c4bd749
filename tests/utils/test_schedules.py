from __future__ import annotations

import functools

import jax
import numpy as np
import pytest

from jaxrl_stack.utils import counters
from jaxrl_stack.utils.live_inputs import traced_once
from jaxrl_stack.utils.schedules import (
    ConstantSchedule,
    ExponentialSchedule,
    LinearSchedule,
    PiecewiseSchedule,
    PolynomialSchedule,
    Scheduler,
    encode,
    value_at,
    values_at,
)

_value_at, _values_at = jax.jit(value_at), jax.jit(values_at)


def at(schedule, t):
    return float(_value_at(encode(schedule), counters.from_int(t)))


def test_a_constant_is_exact_at_any_age():
    for t in (0, 1, 2**31, 2**40):
        assert at(0.1, t) == np.float32(0.1)


def test_linear_in_between_and_last_value_after():
    schedule = [[0, 2.5e-3], [500_000, 0.5e-3], [1_000_000, 1e-3]]
    np.testing.assert_allclose(at(schedule, 250_000), 1.5e-3, rtol=1e-6)
    np.testing.assert_allclose(at(schedule, 750_000), 0.75e-3, rtol=1e-6)
    assert at(schedule, 0) == np.float32(2.5e-3)
    assert at(schedule, 500_000) == np.float32(0.5e-3)
    assert at(schedule, 1_000_000) == at(schedule, 2**50) == np.float32(1e-3)


def test_two_points_at_one_timestep_jump():
    schedule = [[0, 1.0], [10, 1.0], [10, 0.25], [20, 0.25]]
    assert [at(schedule, t) for t in (9, 10, 11, 30)] == [1.0, 0.25, 0.25, 0.25]


def test_late_schedules_keep_their_resolution():
    schedule = [[0, 0.0], [2**40, 0.0], [2**40 + 10, 1.0]]
    np.testing.assert_allclose([at(schedule, 2**40 + i) for i in range(11)], np.arange(11) / 10, rtol=1e-6)


def test_schedules_of_all_sizes_in_a_tree_are_what_each_is_alone():
    long = [[10 * i, 0.5**i] for i in range(9)]
    settings = {
        "lr": encode([[0, 0.3], [70, 0.1]]),
        "gamma": encode(0.99),
        "inner": {"long": encode(long), "clip": 0.2},
    }
    found = _values_at(settings, counters.from_int(13))
    assert found["inner"].pop("clip") == np.float32(0.2)
    expected = {"lr": at([[0, 0.3], [70, 0.1]], 13), "gamma": np.float32(0.99), "inner": {"long": at(long, 13)}}
    assert jax.tree.map(float, found) == expected
    # One more costs a program next to nothing.
    compiled = [_values_at.lower([encode(0.1)] * n, counters.zero()).compile().as_text() for n in (2, 6)]
    few, more = (text.count(" = ") for text in compiled)
    assert more < 1.5 * few


def test_a_value_needs_no_other_schedule_where_each_is_evaluated_alone():
    settings = {"epsilon": encode([[0, 1.0], [50, 0.1]]), "lr": encode(0.5)}
    alone = functools.partial(values_at, together=False)
    assert jax.tree.map(float, alone(settings, counters.from_int(25))) == {"epsilon": np.float32(0.55), "lr": 0.5}
    once = traced_once(lambda given, time: alone(given, time)["epsilon"], settings, counters.zero())
    needed = jax.tree.leaves(once.matters)
    assert needed == [True, True, False, False, True]


def test_constants_and_schedules_share_one_structure():
    constant, short = encode(1.0), encode([[0, 1.0], [5, 2.0]])
    assert constant.times.shape == short.times.shape == (8, 2)
    assert constant.values.shape == short.values.shape == (8,)
    assert (constant.times.dtype, constant.values.dtype) == (np.uint32, np.float32)
    assert encode([[i, i] for i in range(9)]).values.shape == (16,)
    assert isinstance(constant.values, np.ndarray)


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        ([[0, 1.0]], "fewer than 2"),
        ([[5, 1.0], [10, 2.0]], "not at 0"),
        ([0, 1.0], "pair"),
        ([[0, 1.0], [10, "x"]], "pair of numbers"),
        ([[0, 1.0], [10.5, 2.0]], "10.5"),
        ([[0, 1.0], [10, 2.0], [5, 3.0]], "decrease"),
        ("fast", "neither a number"),
    ],
)
def test_malformed_schedules_are_named(schedule, reason):
    with pytest.raises(ValueError, match=reason):
        encode(schedule)
    with pytest.raises(ValueError, match=r"learning rate.*lr="):
        Scheduler.validate(fixed_value_or_schedule=schedule, setting_name="lr", description="learning rate")


def test_scheduler_follows_the_lifetime_count():
    scheduler = Scheduler([[0, 1.0], [100, 0.0]])
    assert scheduler.get_current_value() == 1.0
    assert scheduler.update(25) == 0.75
    assert scheduler.get_current_value() == np.float32(0.75)
    assert scheduler.update(1000) == 0.0
    assert Scheduler(0.3).update(1000) == 0.3
    with pytest.raises(ValueError, match="torch"):
        Scheduler(0.3, framework="torch")


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (ConstantSchedule(2.0), [2.0, 2.0, 2.0]),
        (LinearSchedule(schedule_timesteps=10, final_p=0.0), [1.0, 0.5, 0.0]),
        (PolynomialSchedule(10, 0.0), [1.0, 0.25, 0.0]),
        (ExponentialSchedule(10), [1.0, 0.1**0.5, 0.01]),
        (PiecewiseSchedule([(0, 1.0), (10, 0.0)], outside_value=-1.0), [1.0, 0.5, -1.0]),
    ],
)
def test_schedule_functions(schedule, expected):
    np.testing.assert_allclose([schedule(t) for t in (0, 5, 20)], expected)
    traced = jax.jit(jax.vmap(schedule))(np.array([0, 5, 20], np.int32))
    np.testing.assert_allclose(traced, expected, rtol=1e-6, atol=1e-7)


def test_piecewise_without_outside_value_raises_outside():
    schedule = PiecewiseSchedule([(0, 1.0), (10, 0.0)])
    assert schedule.value(5) == 0.5
    with pytest.raises(ValueError, match="outside_value"):
        schedule(10)
