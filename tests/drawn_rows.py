"""Batches that an algorithm draws from its replay buffer, for checks and for the same updates on the host."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.experience import Experience
from jaxrl_stack.core.learner.update import Update
from jaxrl_stack.utils import counters

_DRAWN: list = []


class RecordsRows(Update):
    """Hands every drawn batch to the host."""

    def step(self, state, batch, settings, timesteps, **kwargs):
        jax.debug.callback(lambda *x: _DRAWN.append(jax.tree.map(np.asarray, x)), batch, timesteps, ordered=True)
        return super().step(state, batch, settings, timesteps, **kwargs)


class Iteration(NamedTuple):
    """An iteration with its drawn batches.

    Attributes:
        result: Result of `train`.
        drawn: ``(batch, timesteps)`` of each update.
        weights: Weights before and after it.
    """

    result: dict[str, Any]
    drawn: list
    weights: tuple[dict[str, Any], dict[str, Any]]


def recorded_iteration(algo):
    """Trains one iteration of an algorithm whose learner's ``update_class`` is `RecordsRows`."""
    _DRAWN.clear()
    before = algo.learner.get_weights()
    result = algo.train()
    jax.effects_barrier()
    return Iteration(result, list(_DRAWN), (before, algo.learner.get_weights()))


def learned(result):
    """Numbers of the default module in a result."""
    return {k: v for k, v in result["learners"][DEFAULT_MODULE_ID].items() if isinstance(v, float) and v == v}


def assert_same_updates_on_the_host(hosted, iteration, names):
    """Makes the updates of an iteration on the host.

    Args:
        hosted: A new algorithm, which is stopped.
        iteration: An iteration on the device.
        names: Results of the module to compare.
    """
    result, drawn, (before, expected) = iteration
    jax.tree.map(np.testing.assert_array_equal, before, hosted.learner.get_weights())
    for batch, steps in drawn:
        hosted.learner.update_rows(Experience.of_rows(batch), timesteps=counters.to_int(steps))
    of_host = hosted.learner.row_results(len(drawn))[DEFAULT_MODULE_ID]
    after = hosted.learner.get_weights()
    assert all((value != before[ref]).any() for ref, value in expected.items())
    for ref, value in expected.items():
        np.testing.assert_allclose(after[ref], value, atol=1e-6, err_msg=ref)
    for name in names:
        fused = result["learners"][DEFAULT_MODULE_ID][name]
        np.testing.assert_allclose(of_host[name], fused, rtol=1e-5, atol=1e-5, err_msg=name)
    hosted.stop()
