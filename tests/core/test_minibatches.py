"""From a batch to the rows of a minibatch: the order of the stream, shards, packing, and what is carried at all."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.learner.items import Items, PackedItems, RowForm, shard_rows
from jaxrl_stack.core.learner.minibatches import epoch_keys, minibatch_index, minibatch_index_within, num_minibatches
from jaxrl_stack.ops import permutation


def stream(num_rows, size, num_epochs, num_shards=1, first_shard=0, shuffle=True):
    """Row numbers of all minibatches, ``[steps, S, m]``, and the round keys."""
    steps = num_minibatches(num_rows, size, num_epochs)

    @jax.jit
    def run(key, shards, steps):
        seed = permutation.round_keys(key)
        keys = epoch_keys(seed, -(-len(steps) * size // num_rows), shards) if shuffle else None
        return jax.vmap(lambda step: minibatch_index(step, size, num_rows, keys))(steps), keys

    shards = np.arange(first_shard, first_shard + num_shards, dtype=np.uint32)
    rows, keys = run(jax.random.key(3), shards, np.arange(steps, dtype=np.uint32))
    return np.asarray(rows), keys


def test_number_of_minibatches():
    assert num_minibatches(138, 64, 2) == 5
    assert num_minibatches(128, 64, 2) == 4
    assert num_minibatches(138, None, 3) == 3
    assert num_minibatches(10, 64, 1) == 1


@pytest.mark.parametrize(("num_rows", "size", "num_epochs"), [(138, 64, 2), (96, 32, 3), (10, 64, 1), (7, 3, 5)])
def test_row_p_of_the_stream_is_row_p_mod_n_of_the_epochs_permutation(num_rows, size, num_epochs):
    rows, keys = stream(num_rows, size, num_epochs)
    assert rows.shape == (num_minibatches(num_rows, size, num_epochs), 1, size)
    flat = rows.reshape(-1)
    permute = jax.jit(lambda rows, keys: permutation.permute(rows, num_rows, keys))
    permutations = [np.asarray(permute(np.arange(num_rows, dtype=np.uint32), of_epoch)) for of_epoch in keys[:, 0]]
    expected = [permutations[p // num_rows][p % num_rows] for p in range(len(flat))]
    np.testing.assert_array_equal(flat, expected)
    # Every epoch covers every row once; only what fills up the last minibatch comes on top.
    for epoch in range(num_epochs):
        np.testing.assert_array_equal(np.sort(flat[epoch * num_rows : (epoch + 1) * num_rows]), np.arange(num_rows))
    assert 0 <= len(flat) - num_epochs * num_rows < size
    if num_epochs > 1:
        assert (permutations[0] != permutations[1]).any()


def test_without_shuffling_rows_keep_their_order():
    rows, _ = stream(10, 4, 2, shuffle=False)
    np.testing.assert_array_equal(rows.reshape(-1), np.arange(20) % 10)


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_stream_is_the_same_where_the_number_of_rows_is_an_argument(shuffle):
    shards = np.arange(2, dtype=np.uint32)
    seed = jax.jit(permutation.round_keys)(jax.random.key(3)) if shuffle else None
    index = jax.jit(
        lambda steps, domain: jax.vmap(lambda step: minibatch_index_within(step, 8, domain, seed, shards))(steps)
    )
    for num_rows in (5, 16, 21):
        rows, _ = stream(num_rows, 8, 4, num_shards=2, shuffle=shuffle)
        domain = np.array(permutation.domain(num_rows), np.uint32)
        within = index(np.arange(len(rows), dtype=np.uint32), domain)
        np.testing.assert_array_equal(rows, within)


def test_a_shard_has_the_same_order_wherever_it_lives():
    together, _ = stream(12, 4, 2, num_shards=4)
    for shard in range(4):
        alone, _ = stream(12, 4, 2, num_shards=1, first_shard=shard)
        np.testing.assert_array_equal(together[:, shard], alone[:, 0])
    assert len({together[:, s].tobytes() for s in range(4)}) == 4


def test_shards_are_columns_of_the_block():
    block = np.arange(5 * 6 * 2).reshape(5, 6, 2)
    np.testing.assert_array_equal(shard_rows(block, 1), block.reshape(1, 30, 2))
    shards = np.asarray(shard_rows({"x": block}, 3)["x"])
    assert shards.shape == (3, 10, 2)
    for s in range(3):
        np.testing.assert_array_equal(shards[s], block[:, 2 * s : 2 * s + 2].reshape(10, 2))


def mixed_columns(num_shards, num_rows, seed=0):
    rng = np.random.default_rng(seed)
    leading = (num_shards, num_rows)
    columns = {
        "obs": {
            "image": rng.integers(0, 256, (*leading, 3, 2), dtype=np.uint8),
            "pair": (rng.normal(size=(*leading, 4)).astype(np.float32), rng.integers(-9, 9, leading, dtype=np.int32)),
        },
        "flag": rng.random(leading) < 0.5,
        "flags": rng.random((*leading, 3)) < 0.5,
        "count": rng.integers(0, 2**32, leading, dtype=np.uint32),
        "half": rng.normal(size=(*leading, 2)).astype(np.float16),
        "reward": rng.normal(size=leading).astype(np.float32),
    }
    columns["reward"][0, 0], columns["reward"][0, 1] = np.nan, -np.inf
    return columns


def packed(columns, carried=None, *, is_masked=False):
    items = Items(columns, None, RowForm(is_masked), jax.tree.leaves(columns)[0].shape[1])
    return PackedItems(items, columns if carried is None else carried)


@pytest.mark.parametrize("num_shards", [1, 3])
def test_packing_keeps_every_bit_of_every_type(num_shards):
    columns = mixed_columns(num_shards, 7)
    index = np.array([[0, 6, 1, 1, 5]] * num_shards, np.uint32)
    index[-1, 0] = 4
    taken = jax.device_get(jax.jit(lambda c, i: packed(c).take(i))(columns, index))
    expected = jax.tree.map(
        lambda x: np.concatenate([x[s][index[s]] for s in range(num_shards)]).reshape(-1, *x.shape[2:]), columns
    )
    assert jax.tree.structure(taken) == jax.tree.structure(expected)
    for (path, ours), theirs in zip(jax.tree.leaves_with_path(taken), jax.tree.leaves(expected), strict=True):
        assert ours.dtype == theirs.dtype, path
        np.testing.assert_array_equal(ours.view(np.uint8), theirs.view(np.uint8), err_msg=str(path))


def test_rows_that_count_are_those_of_the_mask_if_it_is_carried():
    columns = {Columns.LOSS_MASK: np.array([[True, False, True], [False, False, True]]), "x": np.ones((2, 3))}
    index = np.array([[[0, 1], [0, 1]], [[2, 2], [2, 1]]], np.uint32)  # two parts, two shards
    assert jax.jit(lambda c, i: packed(c, is_masked=True).num_valid(i))(columns, index) == 4.0
    assert packed(columns, ("x",), is_masked=True).num_valid(index) == packed(columns).num_valid(index) == 8


@pytest.mark.parametrize("names", [("flag",), ("half",), ()])
def test_what_is_not_carried_is_zeros(names):
    columns = mixed_columns(2, 7)
    index = np.array([[3, 1], [0, 6]], np.uint32)
    take = jax.jit(lambda columns, index, names=None: packed(columns, names).take(index), static_argnames="names")
    taken, whole = jax.device_get((take(columns, index, names), take(columns, index)))
    assert jax.tree.structure(taken) == jax.tree.structure(whole)
    for name in columns:
        for ours, theirs in zip(jax.tree.leaves(taken[name]), jax.tree.leaves(whole[name]), strict=True):
            assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
            np.testing.assert_array_equal(ours, theirs if name in names else np.zeros_like(theirs))


def test_the_program_gathers_only_what_it_carries():
    columns = {"used": np.ones((1, 64, 8), np.float32), "unused": np.ones((1, 64, 100), np.float32)}
    index = np.zeros((1, 16), np.uint32)

    def take(columns, index):
        return packed(columns, ("used",)).take(index)["used"]

    gathers = [e for e in jax.make_jaxpr(take)(columns, index).eqns if e.primitive.name == "gather"]
    assert [e.invars[0].aval.shape for e in gathers] == [(64, 8)]


def struct(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)
