"""Random numbers with unrolled rounds are JAX's own."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.ops import q_learning, unrolled_threefry

BITS = np.array([0x12345678, 0x9ABCDEF0], np.uint32)


def both(function):
    default = jax.random.wrap_key_data(BITS, impl="threefry2x32")
    return [np.asarray(jax.jit(function)(key)) for key in (default, unrolled_threefry.wrap_key_data(BITS))]


@pytest.mark.parametrize(
    "function",
    [
        lambda key: jax.random.key_data(jax.random.fold_in(key, 7)),
        lambda key: jax.random.key_data(jax.random.fold_in(key, jnp.uint32(0xFFFFFFFF))),
        lambda key: jax.random.key_data(jax.random.split(key)),
        lambda key: jax.random.key_data(jax.random.split(key, (2, 3))),
        lambda key: jax.random.uniform(key, (3, 5)),
        lambda key: jax.random.normal(key, (7,)),
        lambda key: jax.random.bits(key, (4,), jnp.uint8),
        lambda key: jax.random.bits(key, (4,), jnp.uint16),
        lambda key: jax.random.categorical(key, jnp.zeros((6, 3))),
        lambda key: jax.random.permutation(key, 9),
        lambda key: jax.random.randint(jax.random.fold_in(key, 3), (5,), 0, 10),
    ],
)
def test_numbers_are_those_of_the_default_generator(function):
    expected, found = both(function)
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == expected.dtype


def test_only_keys_of_the_default_kind_are_unrolled():
    default = jax.random.wrap_key_data(BITS, impl="threefry2x32")
    unrolled = unrolled_threefry.unrolled(default)
    assert unrolled.dtype == unrolled_threefry.wrap_key_data(BITS).dtype
    assert unrolled_threefry.unrolled(unrolled) is unrolled
    other = jax.random.wrap_key_data(np.zeros(4, np.uint32), impl="rbg")
    assert unrolled_threefry.unrolled(other) is other
    legacy = unrolled_threefry.unrolled(jnp.asarray(BITS))
    np.testing.assert_array_equal(jax.random.bits(legacy), jax.random.bits(default))


def test_exploring_starts_no_loop_of_rounds():
    key = jax.random.wrap_key_data(BITS, impl="threefry2x32")
    values = jnp.zeros((3, 2))
    traced = str(jax.make_jaxpr(q_learning.epsilon_greedy)(key, values, 0.5))
    assert "threefry2x32" not in traced.replace("unrolled_threefry2x32", "")
