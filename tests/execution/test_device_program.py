"""The loops of a device program: which of their steps compute what is reported."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.core.learner.traced_metrics import NOT_FINITE
from jaxrl_stack.execution.device_program import repeat_reporting_last
from jaxrl_stack.ops.reductions import Flat

METRIC, FLAG = ("module", "loss"), (NOT_FINITE, "module", "loss")


def run(start, *, num_steps=5, with_flag=False):
    """``(last state, metrics, calls that computed them)`` of steps that count up from `start`."""
    calls = []

    def reported(state):
        calls.append(int(state))
        return np.float32(10 * state)

    def step(state):
        metrics = {METRIC: jax.pure_callback(reported, jax.ShapeDtypeStruct((), jnp.float32), state)}
        if with_flag:
            metrics[FLAG] = (state == 2).astype(jnp.float32)
        return state + 1, Flat.of(metrics)

    program = jax.jit(lambda start: repeat_reporting_last(step, start, start, num_steps))
    state, learned = jax.device_get(program(jnp.int32(start)))
    return int(state), learned.tree(), calls


def test_only_the_last_step_computes_what_is_reported():
    state, metrics, calls = run(1)
    assert (state, metrics[METRIC], calls) == (5, 40.0, [4])


@pytest.mark.parametrize(("start", "expected"), [(4, 40.0), (5, 0.0)])
def test_one_step_and_none(start, expected):
    state, metrics, calls = run(start)
    assert (state, metrics[METRIC]) == (5, expected)
    assert calls == ([4] if start == 4 else [])


def test_flags_are_those_of_all_steps():
    _, metrics, calls = run(0, with_flag=True)
    assert (metrics[METRIC], metrics[FLAG], calls) == (40.0, 1.0, [0, 1, 2, 3, 4])
