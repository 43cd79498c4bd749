"""How many updates a training ratio is worth."""

from __future__ import annotations

import math
import types
from fractions import Fraction

import jax
import numpy as np
import pytest

from jaxrl_stack.algorithms.dreamerv3.dreamerv3 import DreamerV3Config
from jaxrl_stack.algorithms.dreamerv3.windows_step import WindowsStep
from jaxrl_stack.execution.host_place import HostPlace


@pytest.mark.parametrize(("ratio", "expected"), [(1024, Fraction(1)), (512, Fraction(1, 2)), (0.5, Fraction(1, 2048))])
def test_updates_per_env_step(ratio, expected):
    assert DreamerV3Config().training(training_ratio=ratio).updates_per_env_step == expected


@pytest.mark.parametrize("ratio", [100.123, 1 / 3, 0.001, 1e6])
def test_devices_count_with_32_bits(ratio):
    found = DreamerV3Config().training(training_ratio=ratio).updates_per_env_step
    assert float(found) * 1024 == pytest.approx(ratio, rel=1e-6)
    assert found.numerator * found.denominator < 2**31


def test_updates_come_when_they_are_due_and_are_counted_alike_on_both_sides():
    step = WindowsStep(DreamerV3Config().training(training_ratio=96, batch_size_B=4, batch_length_T=16))
    step._ratio, step.learning_starts, step.num_env_steps = Fraction(3, 2), 64, 4
    due = [step._due_after(sampled) for sampled in range(64, 104, 4)]
    assert due == [6 * (i + 1) for i in range(10)]
    sampled = np.arange(64, 104, dtype=np.uint32)
    on_device = jax.jit(step._due_after)(sampled)
    np.testing.assert_array_equal(on_device, [step._due_after(int(x)) for x in sampled])


@pytest.mark.parametrize(
    ("num_envs", "items", "ratio"), [(1, 64, 96), (3, 64, 96), (130, 40, 40), (2, 64, 1), (4, 64, 40.7)]
)
def test_a_run_is_never_behind_and_makes_up_for_what_another_ratio_has_left(num_envs, items, ratio):
    """Of rounds that do not meet the number of random steps, too: the rest of the last round had no updates."""
    config = DreamerV3Config().training(training_ratio=ratio, batch_size_B=2, batch_length_T=items // 2)
    step = WindowsStep(config)
    step._ratio, step.learning_starts, step.num_env_steps = config.updates_per_env_step, items, num_envs
    step.num_updates = math.ceil(2 * step._ratio * num_envs)
    place = HostPlace.__new__(HostPlace)
    place._config = config
    place._log, place._learner_group = types.SimpleNamespace(num_env_steps=0), types.SimpleNamespace(num_updates=0)

    def rounds(number):
        for _ in range(number):
            place._log.num_env_steps += num_envs
            if place.has_sampled(items):
                place._learner_group.num_updates += step._num_due(None, place)
                assert place._learner_group.num_updates > 0

    def behind():
        return step._due_after(place._log.num_env_steps) - place._learner_group.num_updates

    rounds(200)
    assert behind() == 0
    step._ratio *= 2
    step.num_updates = math.ceil(2 * step._ratio * num_envs)
    left = behind()
    assert left > 0
    rounds(200)
    assert behind() == 0
