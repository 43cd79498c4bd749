"""Metrics of compiled updates that are exchanged between devices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.core.learner.loss_hooks import nest_metrics
from jaxrl_stack.core.learner.traced_metrics import TracedMetrics, in_slots
from jaxrl_stack.ops import losses, reductions, running_statistics

NUM_DEVICES = 3
NAME = ("default_policy", "vf_explained_var")


def logged(rows):
    metrics = TracedMetrics()
    metrics.log_statistics(NAME, losses.explained_variance, running_statistics.of_batch(rows))
    return metrics.collect()


def one_minibatch(collected):
    return jax.tree.map(lambda x: x[None], collected)


def with_an_all_reduce_of_its_own(rows):
    return TracedMetrics.reduce_history(one_minibatch(logged(rows)), "devices")[NAME]


def beside_the_gradients(rows):
    mean, slots = reductions.means_and_sums(jnp.mean(rows), in_slots(logged(rows), "devices"), "devices")
    return TracedMetrics.reduce_history(one_minibatch(slots), "devices", are_averaged=True)[NAME], mean


def test_statistics_are_those_of_all_rows_and_need_no_exchange_of_their_own():
    rows = np.random.default_rng(0).normal(5000.0, [2.0, 1.0], (NUM_DEVICES, 8, 2)).astype(np.float32)
    shares, means = jax.pmap(beside_the_gradients, axis_name="devices")(rows)
    np.testing.assert_allclose(means, rows.mean(), rtol=1e-6)
    every = rows.reshape(-1, 2).astype(np.float64).var(axis=0)
    np.testing.assert_allclose(shares, 1.0 - every[1] / every[0], rtol=1e-3)
    np.testing.assert_array_equal(shares, jax.pmap(with_an_all_reduce_of_its_own, axis_name="devices")(rows))
    program = str(jax.make_jaxpr(beside_the_gradients, axis_env=[("devices", NUM_DEVICES)])(rows[0]))
    assert program.count("psum") == 1 and "all_gather" not in program


def test_a_learning_rate_is_reported_as_it_was_set():
    rate, loss = ("p", "default_optimizer_learning_rate"), ("p", "total_loss")
    reported = nest_metrics({rate: np.float32(0.0003), loss: np.float32(0.1)})
    assert reported == {"p": {rate[1]: 0.0003, loss[1]: float(np.float32(0.1))}}
