"""Rows that are computed in chunks: the same results and gradients as all at once."""

from __future__ import annotations

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
