"""How many updates a training ratio is worth."""

from __future__ import annotations

from fractions import Fraction

import jax
import numpy as np
import pytest

from jaxrl_stack.algorithms.dreamerv3.dreamerv3 import DreamerV3Config
from jaxrl_stack.algorithms.dreamerv3.windows_step import WindowsStep


@pytest.mark.parametrize(("ratio", "expected"), [(1024, Fraction(1)), (512, Fraction(1, 2)), (0.5, Fraction(1, 2048))])
def test_updates_per_env_step(ratio, expected):
    assert DreamerV3Config().training(training_ratio=ratio).updates_per_env_step == expected


def test_updates_come_when_they_are_due_and_are_counted_alike_on_both_sides():
    step = WindowsStep(DreamerV3Config().training(training_ratio=96, batch_size_B=4, batch_length_T=16))
    step._ratio, step.learning_starts, step.num_env_steps = Fraction(3, 2), 64, 4
    due = [step._due_after(sampled) for sampled in range(64, 104, 4)]
    assert due == [6 * (i + 1) for i in range(10)]
    sampled = np.arange(64, 104, dtype=np.uint32)
    on_device = jax.jit(step._due_after)(sampled)
    np.testing.assert_array_equal(on_device, [step._due_after(int(x)) for x in sampled])
