"""Rows that are computed in chunks: the same results and gradients as all at once."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.ops import chunking


@pytest.mark.parametrize(("num_rows", "is_split"), [(12, True), (13, False), (4, False)])
def test_chunks_have_the_results_and_gradients_of_all_rows(num_rows, is_split, monkeypatch):
    monkeypatch.setattr(chunking, "ROWS_PER_CHUNK", 4)
    rng = np.random.default_rng(0)
    rows = (rng.normal(size=(num_rows, 3)).astype(np.float32), rng.normal(size=num_rows).astype(np.float32))
    kernel = rng.normal(size=(3, 5)).astype(np.float32)

    def loss(kernel, rows, mapped):
        def function(rows):
            x, weight = rows
            logits = x @ kernel
            return {"weighted": weight * jax.nn.logsumexp(logits, axis=-1), "logits": logits}

        out = mapped(function, rows)
        return jnp.sum(out["weighted"]) + jnp.sum(jnp.square(out["logits"])), out

    def of(mapped):
        return jax.jit(jax.value_and_grad(lambda *args: loss(*args, mapped), argnums=(0, 1), has_aux=True))(
            kernel, rows
        )

    seen = []

    def recorded(function, rows):
        return chunking.map_rows(lambda rows: seen.append(len(rows[0])) or function(rows), rows)

    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5),
        of(recorded),
        of(lambda function, rows: function(rows)),
    )
    assert (4 in seen and num_rows > 4) == is_split


@pytest.mark.parametrize(("num_rows", "is_split"), [(12, True), (10, True), (13, False), (4, False)])
def test_means_of_rows_have_the_gradient_of_all_rows(num_rows, is_split, monkeypatch):
    monkeypatch.setattr(chunking, "ROWS_PER_CHUNK", 4)
    rng = np.random.default_rng(0)
    rows = (rng.normal(size=(num_rows, 3)).astype(np.float32), rng.normal(size=num_rows).astype(np.float32))
    params = {"kernel": rng.normal(size=(3, 5)).astype(np.float32)}
    seen = []

    def function(params, rows):
        x, weight = rows
        seen.append(len(x))
        losses = jax.nn.logsumexp(x @ params["kernel"], axis=-1)
        return weight * losses, {"unweighted": losses}

    def loss(mapped, params):
        value, means = mapped(function, params, rows)
        return jnp.square(value) + means["unweighted"] * 0.0, (value, means)

    def at_once(function, params, rows):
        return jax.tree.map(jnp.mean, function(params, rows))

    of = {name: jax.value_and_grad(functools.partial(loss, mapped), has_aux=True) for name, mapped in (
        ("chunks", chunking.mean_of_rows), ("at once", at_once)
    )}  # fmt: skip
    found = jax.jit(of["chunks"])(params)
    assert (set(seen) != {num_rows}) == is_split
    jax.tree.map(lambda *x: np.testing.assert_allclose(*x, rtol=1e-5, atol=1e-6), found, jax.jit(of["at once"])(params))
    jax.tree.map(
        lambda *x: np.testing.assert_allclose(*x, rtol=1e-5),
        jax.jit(functools.partial(chunking.mean_of_rows, function))(params, rows),
        at_once(function, params, rows),
    )


def test_rows_and_further_means_have_no_gradient():
    def function(params, rows):
        return params * rows, params * rows

    rows = jnp.arange(3.0)
    assert jax.grad(lambda rows: chunking.mean_of_rows(function, jnp.float32(2.0), rows)[0])(rows).tolist() == [0.0] * 3
    assert jax.grad(lambda params: chunking.mean_of_rows(function, params, rows)[1])(2.0) == 0.0


@pytest.mark.parametrize(
    ("num_rows", "size", "chunks"),
    [(8192, 1, 1), (15_360, 8, 15), (7_680, 8, 8), (16_384, 8, 16), (8_191 * 2 + 1, 1, 3), (104_729, 1, 1)],
)
def test_chunks_are_of_equal_length(num_rows, size, chunks):
    assert chunking.number_of_chunks(num_rows, size) == chunks
    assert num_rows % chunks == 0
