"""The squashed Gaussian next to the bounds of asymmetric spaces, against its formula in float64."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.core.distribution import SquashedGaussian
from jaxrl_stack.core.distribution.jax_distribution import SQUASH_EPSILON

BOUNDS = [(-1.0, 1.0), (-2.0, 5.0), (0.0, 1.0), (0.0, 1000.0), (100.0, 101.0), (-0.25, 1e-3)]
NORMALS = [(0.0, 1.0), (3.0, 0.3), (-4.0, 0.5)]


def log_density(value, loc, scale, low, high):
    """log p(a) = log N(x; loc, scale) - log((high - low) / 2) - log(1 - tanh(x)^2), x = arctanh of a in [-1, 1]."""
    part = (np.asarray(value, np.float64) - low) / (high - low)
    part = np.clip(part, SQUASH_EPSILON / 2, 1 - SQUASH_EPSILON / 2)
    raw = 0.5 * (np.log(part) - np.log1p(-part))
    normal = -0.5 * ((raw - loc) / scale) ** 2 - np.log(scale) - 0.5 * np.log(2 * np.pi)
    # 1 - tanh(x)^2 = 4 part (1 - part)
    return normal - np.log(0.5 * (high - low)) - np.log(4 * part * (1 - part))


def values_next_to(low, high):
    """Actions at the bounds, at 1e-7 to 1e-1 of the range from them, and in the middle, as float32 has them."""
    part = np.concatenate([[0.0], 10.0 ** np.arange(-7, 0), [0.5]])
    inside = np.concatenate([low + part * (high - low), high - part * (high - low)]).astype(np.float32)
    return np.clip(inside, np.float32(low), np.float32(high))


@jax.jit
def logp_and_gradients(value, loc, scale, low, high):
    def logp(value, loc, log_scale):
        return SquashedGaussian(loc[None], jnp.exp(log_scale)[None], low, high).logp(value[None])

    def of_one(value):
        return jax.value_and_grad(logp, (0, 1, 2))(value, loc, jnp.log(scale))

    return jax.vmap(of_one)(value)


@pytest.mark.parametrize(("low", "high"), BOUNDS)
def test_logp_and_its_gradients_next_to_the_bounds(low, high):
    low, high = np.float32(low), np.float32(high)
    values = values_next_to(low, high)
    for loc, scale in NORMALS:
        loc, scale = np.float32(loc), np.float32(scale)
        ours, gradients = logp_and_gradients(values, loc, scale, low, high)
        exact = [np.float64(x) for x in (loc, scale, low, high)]
        np.testing.assert_allclose(ours, log_density(values, *exact), rtol=2e-5, atol=2e-5)
        assert all(np.isfinite(gradient).all() for gradient in gradients)
        # By the mean: (x - loc) / scale^2, of the same x.
        part = (values.astype(np.float64) - low) / (exact[3] - exact[2])
        part = np.clip(part, SQUASH_EPSILON / 2, 1 - SQUASH_EPSILON / 2)
        raw = 0.5 * (np.log(part) - np.log1p(-part))
        np.testing.assert_allclose(gradients[1], (raw - exact[0]) / exact[1] ** 2, rtol=1e-4, atol=1e-4)
        # By the value, where it is not clipped: the difference quotient of the formula.
        inner = (part > 1e-5) & (part < 1 - 1e-5)
        step = 1e-4 * part * (1 - part) * (exact[3] - exact[2])
        wide = values.astype(np.float64)
        quotient = (log_density(wide + step, *exact) - log_density(wide - step, *exact)) / (2 * step)
        np.testing.assert_allclose(gradients[0][inner], quotient[inner], rtol=2e-3, atol=1e-3 * np.abs(quotient).max())


@jax.jit
def draws_and_logps(key, low, high):
    """``(draws [4000, 1], their logp as they were drawn, their logp as values)``."""
    distribution = SquashedGaussian(jnp.full((4000, 1), -3.0), 1.0, low, high)
    value, logp = distribution.sample_and_logp(key=key)
    return value, logp, distribution.logp(jax.lax.optimization_barrier(value))


@pytest.mark.parametrize(("low", "high"), BOUNDS)
def test_a_draw_has_the_same_logp_from_both_sides(low, high):
    value, logp, logp_of_value = draws_and_logps(jax.random.key(0), np.float32(low), np.float32(high))
    assert value.min() >= low and value.max() <= high and value.min() < low + 1e-3 * (high - low)
    # An action that lies too few of its own float32 steps from the bound has no more digits to give.
    value = np.asarray(value)
    steps = np.spacing(np.maximum(np.abs(value), np.float32(abs(low))))
    far = ((value - np.float32(low)) > 2000 * steps).ravel()
    assert far.mean() > 0.1
    np.testing.assert_allclose(logp_of_value[far], logp[far], rtol=2e-3, atol=2e-3)


def test_gradients_of_a_draw_stay_finite_where_tanh_is_flat():
    def draw(loc, log_scale):
        distribution = SquashedGaussian.from_logits(jnp.concatenate([loc, log_scale]), -2.0, 5.0)
        value, logp = distribution.rsample_and_logp(key=jax.random.key(1))
        return jnp.sum(value) + logp

    gradients = jax.jit(jax.vmap(jax.grad(draw, (0, 1))))
    loc = jnp.array([[-1e4], [-90.0], [-8.0], [0.0], [8.0], [90.0], [1e4]])
    for log_scale in (-9.0, 0.0, 9.0):
        by_loc, by_log_scale = gradients(loc, jnp.full_like(loc, log_scale))
        assert np.isfinite(by_loc).all() and np.isfinite(by_log_scale).all()
        # -log(1 - tanh(x)^2) grows by 2 per unit of |x|.
        np.testing.assert_allclose(by_loc[[0, 1, 5, 6], 0], [-2.0, -2.0, 2.0, 2.0], atol=1e-3)
