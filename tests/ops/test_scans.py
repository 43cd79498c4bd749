"""Scans whose random numbers are made before the loop."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.ops.scans import scan_ahead

XS = {"key": jax.random.split(jax.random.key(0), 5), "bias": jnp.arange(5.0)}


def body(weight, carry, x):
    """Draws, jitted or not, in branches or not, of keys alone and of keys that the carry changes."""
    alone = jax.random.normal(x["key"], (3,)) + jnp.ones(3)
    nested = jax.jit(lambda key, c: jax.random.uniform(key, (3,)) * c)(x["key"], carry)
    mixed = jax.random.uniform(jax.random.fold_in(x["key"], carry.sum().astype(jnp.int32)), (3,))
    drawn = jax.lax.cond(carry.sum() > 0, lambda: jax.random.uniform(jax.random.fold_in(x["key"], 1)), lambda: 0.0)
    carry = 0.5 * carry + weight @ (alone + nested + mixed) + drawn
    return carry, {"alone": alone, "sum": carry.sum() + x["bias"], "key": jax.random.key_data(x["key"])}


def primitives(program):
    for equation in program.eqns:
        yield equation.primitive.name
        for part in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(part, "jaxpr", part)
            if hasattr(inner, "eqns"):
                yield from primitives(inner)


@pytest.mark.parametrize("max_bytes", [1 << 20, 8])
def test_it_is_the_scan_that_it_stands_for(max_bytes):
    def run(scan, weight, carry):
        return scan(lambda c, x: body(weight, c, x), carry, XS)

    def ahead(function, carry, xs):
        return scan_ahead(function, carry, xs, max_bytes=max_bytes)

    weight, carry = jnp.eye(3) * 0.3, jnp.ones(3)
    ours, expected = (jax.jit(lambda w, c, s=scan: run(s, w, c))(weight, carry) for scan in (ahead, jax.lax.scan))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), ours, expected)
    gradients = [jax.grad(lambda w, s=scan: run(s, w, carry)[0].sum())(weight) for scan in (ahead, jax.lax.scan)]
    np.testing.assert_allclose(*gradients, rtol=1e-5)


def test_what_follows_from_keys_alone_leaves_the_loop():
    def run(carry):
        return scan_ahead(lambda c, x: (c + jax.random.normal(x["key"], (3,)), c), carry, XS)

    program = jax.make_jaxpr(run)(jnp.zeros(3)).jaxpr
    (loop,) = (equation for equation in program.eqns if equation.primitive.name == "scan")
    inside = set(primitives(loop.params["jaxpr"].jaxpr))
    assert "random_bits" in set(primitives(program)) - inside and "add" in inside


def test_members_have_steps_of_their_own():
    def run(key):
        return scan_ahead(lambda c, k: (c + jax.random.normal(k), c), 0.0, jax.random.split(key, 4))[0]

    keys = jax.random.split(jax.random.key(1), 3)
    np.testing.assert_allclose(jax.vmap(run)(keys), [run(key) for key in keys], rtol=1e-6)
