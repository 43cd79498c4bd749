"""Metrics of compiled updates that are exchanged between devices."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.core.learner.traced_metrics import (
    Metrics,
    TracedMetrics,
    nest_metrics,
    put_counter,
    put_setting,
    sum_of_counters,
)
from jaxrl_stack.ops import losses, reductions, running_statistics
from jaxrl_stack.utils import counters

NUM_DEVICES = 3
NAME = ("default_policy", "vf_explained_var")


def logged(rows):
    metrics = TracedMetrics()
    metrics.log_statistics(NAME, losses.explained_variance, running_statistics.of_batch(rows))
    return metrics.collect()


def with_an_all_reduce_of_its_own(rows):
    return logged(rows).values("devices")[NAME]


def beside_the_gradients(rows):
    metrics = logged(rows)
    slots = metrics.statistics_in_slots("devices")
    (mean, averages), slots = reductions.means_and_sums((jnp.mean(rows), metrics.averages), slots, "devices")
    return metrics.exchanged(averages, slots).values("devices", are_exchanged=True)[NAME], mean


def test_statistics_are_those_of_all_rows_and_need_no_exchange_of_their_own():
    rows = np.random.default_rng(0).normal(5000.0, [2.0, 1.0], (NUM_DEVICES, 8, 2)).astype(np.float32)
    shares, means = jax.pmap(beside_the_gradients, axis_name="devices")(rows)
    np.testing.assert_allclose(means, rows.mean(), rtol=1e-6)
    every = rows.reshape(-1, 2).astype(np.float64).var(axis=0)
    np.testing.assert_allclose(shares, 1.0 - every[1] / every[0], rtol=1e-3)
    np.testing.assert_array_equal(shares, jax.pmap(with_an_all_reduce_of_its_own, axis_name="devices")(rows))
    program = str(jax.make_jaxpr(beside_the_gradients, axis_env=[("devices", NUM_DEVICES)])(rows[0]))
    assert program.count("psum") == 1 and "all_gather" not in program


def test_a_function_of_statistics_may_have_several_names():
    metrics = TracedMetrics()
    rows = jnp.array([[1.0, 0.5], [3.0, -0.5]])
    metrics.log_statistics("p", losses.critic_metrics, running_statistics.of_batch(rows))
    found = {path: float(value) for path, value in metrics.collect().values().items()}
    assert found[("p", "vf_explained_var")] == 0.75 and found[("p", "value_target_mean")] == 2.0
    assert found[("p", "advantage_std")] == 0.5 and all(path[0] == "p" for path in found)


def test_a_setting_is_reported_as_it_was_set_and_a_metric_as_it_was_found():
    metrics = {("p", "mean_learning_rate"): np.float32(0.1)}
    put_setting(metrics, ("p", "default_optimizer_learning_rate"), jnp.float32(0.0003))
    reported = nest_metrics(jax.device_get(metrics))["p"]
    assert reported == {"mean_learning_rate": float(np.float32(0.1)), "default_optimizer_learning_rate": 0.0003}


def test_a_counter_is_reported_exactly_beyond_what_one_float_holds():
    metrics = {}
    put_counter(metrics, ("p", "steps"), counters.from_int(2**40 + 3))
    assert nest_metrics(jax.device_get(metrics)) == {"p": {"steps": 2.0**40 + 3}}


def test_metrics_are_a_monoid_over_parts_minibatches_and_devices():
    """Shares of a minibatch add up; minibatches and devices reduce as their names say; nothing is nothing."""
    kinds = ("last", "mean", "sum", "min", "max")
    two, four = (Metrics.of({(how,): (how, jnp.float32(x)) for how in kinds}) for x in (2.0, 4.0))
    values = lambda metrics, *args: {path[0]: float(x) for path, x in metrics.values(*args).items()}  # noqa: E731
    assert values(two.nothing().with_part(two)) == values(two)
    assert values(two.with_part(four)) == {"last": 6.0, "mean": 6.0, "sum": 6.0, "min": 2.0, "max": 4.0}
    of_two = {"last": 4.0, "mean": 3.0, "sum": 6.0, "min": 2.0, "max": 4.0}
    history = jax.tree.map(lambda *x: jnp.stack(x), two, four)
    assert values(history.over_minibatches()) == of_two
    one_by_one = Metrics.with_minibatch(Metrics.with_minibatch(two.before_minibatches(), two), four)
    assert values(Metrics.after_minibatches(one_by_one, jnp.uint32(2))) == of_two
    over_devices = jax.pmap(lambda metrics: metrics.values("devices"), axis_name="devices", devices=jax.devices()[:2])
    found = {path[0]: float(x[0]) for path, x in over_devices(history).items()}
    assert found == {"last": 3.0, "mean": 3.0, "sum": 6.0, "min": 2.0, "max": 4.0}


def test_counters_are_added_exactly():
    numbers = (2**25 + 1, 3, 2**26 + 5, 7, 2**31 - 1)

    @jax.jit
    def total(counts):
        metrics = [{} for _ in numbers]
        for own, count in zip(metrics, counts, strict=True):
            put_counter(own, ("p", "steps"), count)
        return functools.reduce(sum_of_counters, [own["p", "steps"] for own in metrics])

    found = total([counters.from_int(number) for number in numbers])
    assert np.sum(np.asarray(found, np.float64)) == sum(numbers)
