import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.ops import losses, running_statistics
from jaxrl_stack.ops.dense import dense


def test_surrogate_by_hand():
    # Ratios 1, 2, 0.5 with clip 0.2: unclipped; clipped above for A > 0; for A < 0 the smaller (worse) one counts.
    logp = jnp.log(jnp.array([1.0, 2.0, 2.0, 0.5, 0.5]))
    advantages = jnp.array([3.0, 1.0, -1.0, 1.0, -1.0])
    out = losses.clipped_surrogate(logp, jnp.zeros(5), advantages, 0.2)
    np.testing.assert_allclose(out, [3.0, 1.2, -2.0, 0.5, -0.8], rtol=1e-6)


def test_surrogate_has_no_gradient_beyond_the_clip():
    gradient = jax.grad(lambda logp: losses.clipped_surrogate(logp, 0.0, 1.0, 0.2))
    assert gradient(jnp.log(1.5)) == 0.0
    np.testing.assert_allclose(gradient(jnp.log(1.1)), 1.1, rtol=1e-6)


def test_sampled_divergence():
    old, new = np.array([0.2, 0.3, 0.5]), np.array([0.4, 0.5, 0.1])
    rows = np.asarray(losses.sampled_kl(jnp.log(new), jnp.log(old)))
    np.testing.assert_allclose((old * rows).sum(), (old * np.log(old / new)).sum(), rtol=1e-5)
    assert (rows > 0.0).all()
    assert losses.sampled_kl(jnp.float32(-0.3), jnp.float32(-0.3)) == 0.0


def test_clamped_squared_error():
    error, clamped = losses.clamped_squared_error(jnp.array([1.0, 5.0]), jnp.array([0.0, 0.0]), 10.0)
    np.testing.assert_array_equal(error, [1.0, 25.0])
    np.testing.assert_array_equal(clamped, [1.0, 10.0])


def test_explained_variance():
    rng = np.random.default_rng(0)
    target = rng.normal(size=100).astype(np.float32)
    prediction = (target + 0.5 * rng.normal(size=100)).astype(np.float32)
    error = target - prediction
    statistics = running_statistics.of_batch(jnp.stack([target, error], axis=-1))
    np.testing.assert_allclose(losses.explained_variance(statistics), 1 - error.var() / target.var(), rtol=1e-4)
    found = losses.critic_metrics(statistics)
    expected = {"value_target_mean": target.mean(), "value_target_std": target.std()}
    expected |= {"advantage_mean": error.mean(), "advantage_std": error.std()}
    assert found.pop("vf_explained_var") == losses.explained_variance(statistics)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def test_clipped_rows_by_hand():
    # Ratios 1, 1.1, 1.3, 0.9, 0.7 with clip 0.2.
    logp = jnp.log(jnp.array([1.0, 1.1, 1.3, 0.9, 0.7]))
    np.testing.assert_array_equal(losses.is_clipped(logp, jnp.zeros(5), 0.2), [0.0, 0.0, 1.0, 0.0, 1.0])


@pytest.mark.parametrize(("rows", "n", "m"), [((32,), 64, 64), ((32,), 4, 64), ((32,), 64, 2), ((4, 8), 20, 30)])
def test_dense_has_the_gradients_of_autodiff(rows, n, m):
    rng = np.random.default_rng(0)
    shapes = ((*rows, n), (n, m), (m,), (*rows, m))
    *arguments, cotangent = (rng.normal(size=shape).astype(np.float32) for shape in shapes)

    @jax.jit
    def both(arguments, cotangent):
        out, pullback = jax.vjp(dense, *arguments)
        expected, expected_pullback = jax.vjp(lambda x, w, b: x @ w + b, *arguments)
        return (out, pullback(cotangent)), (expected, expected_pullback(cotangent))

    (out, gradients), (expected, expected_gradients) = both(arguments, cotangent)
    np.testing.assert_array_equal(out, expected)
    for ours, theirs in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
