"""Percentiles by search: those of a sort."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.ops.percentiles import percentiles_of

PERCENTILES = (0.0, 5.0, 33.3, 95.0, 100.0)


@pytest.mark.parametrize(
    "values",
    [
        np.random.default_rng(0).normal(size=(13, 7)),
        np.random.default_rng(1).normal(size=100) * 10.0 ** np.arange(-50, 50).clip(-30, 30),
        [2.5],
        [3.0, 3.0, -0.0, 0.0],
        np.zeros(9),
    ],
)
def test_percentiles_are_those_of_numpy(values):
    values = np.asarray(values, np.float32)
    found = jax.jit(lambda x: percentiles_of(x, PERCENTILES))(values)
    np.testing.assert_allclose(found, np.percentile(values, PERCENTILES), rtol=1e-5)


def test_percentiles_of_nan_are_nan():
    assert np.isnan(percentiles_of(jnp.array([1.0, jnp.nan, 2.0]), [50.0])).all()


def test_values_without_bound_are_the_largest():
    found = percentiles_of(jnp.array([jnp.inf, -1.0, 2.0, 5.0, -jnp.inf]), [25.0, 50.0, 75.0])
    np.testing.assert_array_equal(found, [-1.0, 2.0, 5.0])


def test_every_member_has_percentiles_of_its_own():
    values = np.random.default_rng(0).normal(size=(3, 40)).astype(np.float32)
    found = jax.jit(jax.vmap(lambda x: percentiles_of(x, (5.0, 95.0))))(values)
    np.testing.assert_allclose(found, np.percentile(values, (5.0, 95.0), axis=1).T, rtol=1e-5)
