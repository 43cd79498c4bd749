"""Truncation and loss of quantile critics: by hand, against loops, and by what they are for."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.algorithms.tqc.quantiles import quantile_huber_rows, truncated


def test_truncation_by_hand():
    quantiles = jnp.array([[[5.0, 1.0, 9.0], [8.0, 7.0, 6.0]], [[0.0, 0.0, 0.0], [3.0, -1.0, 0.5]]])
    # Of the pool, not of each critic: the first row loses one of either, the second row two of the second critic.
    np.testing.assert_array_equal(truncated(quantiles, 1), [[1.0, 5.0, 6.0, 7.0], [-1.0, 0.0, 0.0, 0.0]])
    np.testing.assert_array_equal(truncated(quantiles, 2), [[1.0, 5.0], [-1.0, 0.0]])
    np.testing.assert_array_equal(truncated(quantiles, 0), np.sort(np.reshape(quantiles, (2, 6)), axis=-1))


def test_the_loss_by_hand():
    # tau is 1/4 and 3/4. Distances 0 - 1 = -1 and 2 - 1 = 1 of the first quantile, -3 and -1 of the second.
    quantiles, targets = jnp.array([[[1.0, 3.0]]]), jnp.array([[0.0, 2.0]])
    expected = 0.75 * 0.5 + 0.25 * 0.5 + 0.25 * 2.5 + 0.25 * 0.5
    np.testing.assert_allclose(quantile_huber_rows(quantiles=quantiles, targets=targets), [expected])
    # Critics add up.
    both = jnp.concatenate([quantiles, jnp.array([[[0.0, 2.0]]])], axis=1)
    of_the_other = 0.25 * 0.0 + 0.25 * 1.5 + 0.25 * 1.5 + 0.75 * 0.0
    np.testing.assert_allclose(quantile_huber_rows(quantiles=both, targets=targets), [expected + of_the_other])


def loss_in_loops(quantiles, targets):
    """By the definition: one asymmetric Huber loss for each pair."""
    rows = []
    for critics, atoms in zip(quantiles, targets, strict=True):
        total = 0.0
        for critic in critics:
            for k, z in enumerate(critic):
                tau = (2 * k + 1) / (2 * len(critic))
                for y in atoms:
                    error = y - z
                    huber = 0.5 * error**2 if abs(error) <= 1.0 else abs(error) - 0.5
                    total += abs(tau - (error < 0)) * huber
        rows.append(total)
    return rows


def gradient_in_loops(quantiles, targets):
    """The slope of every pair's loss, written down."""
    found = np.zeros_like(quantiles)
    for (n, c, k), z in np.ndenumerate(quantiles):
        tau = (2 * k + 1) / (2 * quantiles.shape[-1])
        for y in targets[n]:
            found[n, c, k] += (1.0 - tau if y < z else tau) * np.clip(z - y, -1.0, 1.0)
    return found


def test_loss_and_gradient_against_loops():
    rng = np.random.default_rng(0)
    quantiles = rng.normal(size=(4, 3, 5)).astype(np.float32) * 2
    targets = rng.normal(size=(4, 7)).astype(np.float32) * 2
    total = lambda q, y: jnp.sum(quantile_huber_rows(quantiles=q, targets=y))  # noqa: E731
    rows = jax.jit(quantile_huber_rows)(quantiles=quantiles, targets=targets)
    np.testing.assert_allclose(rows, loss_in_loops(quantiles, targets), rtol=1e-5)
    slope, of_targets = jax.jit(jax.grad(total, argnums=(0, 1)))(quantiles, targets)
    np.testing.assert_allclose(slope, gradient_in_loops(quantiles, targets), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(of_targets, 0.0)


def test_its_minimum_are_the_quantiles():
    """Where distances are large against Huber's 1, that is the quantile regression that it is named after."""
    atoms = np.sort(np.random.default_rng(1).normal(size=(1, 200)).astype(np.float32) * 100)
    descend = jax.jit(
        lambda q: jax.lax.fori_loop(
            0,
            2000,
            lambda i, q: q - 0.02 * jax.grad(lambda q: quantile_huber_rows(quantiles=q, targets=atoms)[0])(q),
            q,
        )
    )
    found = descend(jnp.zeros((1, 1, 4)))
    np.testing.assert_allclose(found[0, 0], np.quantile(atoms, [0.125, 0.375, 0.625, 0.875]), atol=6.0)


@pytest.mark.parametrize(
    "call",
    [
        lambda: truncated(jnp.zeros((2, 3)), 1),
        lambda: quantile_huber_rows(quantiles=jnp.zeros((2, 3)), targets=jnp.zeros((2, 3))),
        lambda: quantile_huber_rows(quantiles=jnp.zeros((2, 2, 3)), targets=jnp.zeros(2)),
    ],
)
def test_other_ranks_are_refused(call):
    with pytest.raises(AssertionError, match="rank"):
        call()


def test_shapes():
    quantiles = jax.ShapeDtypeStruct((6, 2, 25), jnp.float32)
    atoms = jax.eval_shape(lambda q: truncated(q, 2), quantiles)
    chex.assert_shape(atoms, (6, 46))
    chex.assert_shape(jax.eval_shape(lambda q, y: quantile_huber_rows(quantiles=q, targets=y), quantiles, atoms), (6,))
