"""Leaves of 32 bits in one uint32 matrix."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.ops import packing


@pytest.mark.parametrize("lead", [1, 2])
def test_every_leaf_is_read_back_as_it_was_on_host_and_device(lead):
    shape = (4, 3)[:lead]
    rng = np.random.default_rng(0)
    leaves = [
        rng.normal(size=shape).astype(np.float32),
        rng.integers(-9, 9, (*shape, 5), np.int32),
        rng.integers(0, 2, (*shape, 2)).astype(bool),
        rng.integers(0, 255, (*shape, 2, 2), np.uint8),
        rng.normal(size=(*shape, 2, 3)).astype(np.float32),
        np.zeros((*shape, 0), np.float32),
    ]
    matrix, loose, slots = packing.pack([jnp.asarray(leaf) for leaf in leaves], lead)
    assert matrix is not None and matrix.dtype == np.uint32 and matrix.shape == (*shape, 14)
    assert [leaf.dtype for leaf in loose] == [np.uint8]
    assert packing.slots_of([jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves], lead) == slots

    @jax.jit
    def on_device(matrix, loose):
        return [slot.read(matrix, loose) for slot in slots]

    on_host = [slot.read(np.asarray(matrix), loose) for slot in slots]
    for found in (on_host, on_device(matrix, loose)):
        for leaf, read in zip(leaves, found, strict=True):
            assert read.dtype == leaf.dtype
            np.testing.assert_array_equal(read, leaf)


def test_columns_are_views_of_a_matrix_on_the_host():
    matrix, _, slots = packing.pack([jnp.ones((2, 3)), jnp.zeros((2,), jnp.int32)])
    matrix = np.array(matrix)
    assert all(np.shares_memory(slot.read(matrix, ()), matrix) for slot in slots)


def test_a_leaf_that_is_given_twice_is_packed_once():
    leaf = jnp.arange(6.0).reshape(2, 3)
    matrix, _, (first, second) = packing.pack([leaf, leaf])
    assert matrix is not None and matrix.shape == (2, 3) and first == second


def test_there_is_no_matrix_without_leaves_that_fit():
    matrix, loose, slots = packing.pack([jnp.zeros((2, 3), jnp.uint8)])
    assert matrix is None and len(loose) == 1 and slots[0].read(None, loose) is loose[0]
