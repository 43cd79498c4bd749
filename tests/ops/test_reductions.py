import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.ops import reductions


def devices(n):
    return jax.devices("cpu")[:n]


def test_means_over_unequal_masks_are_global():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 10)).astype(np.float32) + np.arange(4)[:, None].astype(np.float32) * 100
    mask = rng.random((4, 10)) < np.array([0.1, 0.3, 0.9, 0.5])[:, None]
    out = jax.pmap(lambda x, m: reductions.masked_mean(x, m, "d"), "d", devices=devices(4))(x, mask)
    np.testing.assert_allclose(out, x[mask].mean(), rtol=1e-6)
    assert abs(float(out[0]) - np.mean([x[i][mask[i]].mean() for i in range(4)])) > 10


def test_mean_and_std_over_devices():
    rng = np.random.default_rng(1)
    x = (1e4 + rng.normal(size=(2, 50))).astype(np.float32)
    mask = rng.random((2, 50)) < 0.6
    mean, std = jax.pmap(lambda x, m: reductions.masked_mean_std(x, m, "d"), "d", devices=devices(2))(x, mask)
    np.testing.assert_allclose(mean, x[mask].mean(dtype=np.float64), rtol=1e-6)
    np.testing.assert_allclose(std, x[mask].std(dtype=np.float64), rtol=1e-4)


def test_masked_rows_may_be_nan_and_their_gradient_is_zero():
    x = jnp.array([1.0, jnp.nan, 3.0])
    mask = jnp.array([True, False, True])
    value, gradient = jax.value_and_grad(lambda x: reductions.masked_mean(x, mask))(x)
    assert value == 2.0
    np.testing.assert_array_equal(gradient, [0.5, 0.0, 0.5])


def test_no_valid_row_gives_zero():
    assert reductions.masked_mean(jnp.ones(3), jnp.zeros(3, bool)) == 0.0


def test_several_means_equal_single_ones():
    rng = np.random.default_rng(2)
    values = {name: rng.normal(size=8).astype(np.float32) for name in "abc"}
    mask = rng.random(8) < 0.5
    together = reductions.masked_means(values, mask)
    for name, x in values.items():
        assert together[name] == reductions.masked_mean(x, mask)


def test_gradient_of_a_global_mean_over_devices_is_that_of_one_device():
    """Loss = (global mean)^2: not linear in the means, so averaging local losses would be wrong."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(2, 6)).astype(np.float32)
    mask = np.array([[1, 1, 1, 1, 1, 0], [1, 0, 0, 0, 0, 0]], bool)

    def gradient(p, x, m):
        g = jax.grad(lambda p: reductions.masked_mean(p * x, m, "d") ** 2)(p)
        return reductions.pmean_flat({"g": g}, "d")["g"]

    over_devices = jax.pmap(gradient, "d", in_axes=(None, 0, 0), devices=devices(2))(2.0, x, mask)
    alone = jax.grad(lambda p: reductions.masked_mean(p * x.reshape(-1), mask.reshape(-1)) ** 2)(2.0)
    np.testing.assert_allclose(over_devices, alone, rtol=1e-5)


def test_pmean_flat_keeps_structure_shapes_and_dtypes():
    tree = {"a": jnp.ones((2, 3)), "b": [jnp.float32(4.0), jnp.zeros((0,))]}
    out = jax.pmap(lambda t: reductions.pmean_flat(t, "d"), "d", devices=devices(2))(
        jax.tree.map(lambda x: jnp.stack([x, 3 * x]), tree)
    )
    assert jax.tree.map(jnp.shape, out) == jax.tree.map(lambda x: (2, *jnp.shape(x)), tree)
    np.testing.assert_array_equal(out["a"], jnp.full((2, 2, 3), 2.0))
    np.testing.assert_array_equal(out["b"][0], [8.0, 8.0])


def test_a_compensated_sum_keeps_its_digits():
    def add(total_and_error, x):
        return reductions.compensated_add(*total_and_error, x), None

    zero = (jnp.float32(0.0), jnp.float32(0.0))
    terms = jnp.full((1_000_000,), 0.1, jnp.float32)
    (total, _), _ = jax.lax.scan(add, zero, terms)
    np.testing.assert_allclose(total, 1e5, rtol=1e-7)
    (total, error), _ = jax.lax.scan(add, zero, jnp.array([1.0, jnp.inf, 1.0]))
    assert total == jnp.inf and error == 0.0
