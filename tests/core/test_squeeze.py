"""Blocks in which agents skip steps: squeezed, and what connectors and replay make of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.frames import FRAMES_BEFORE
from jaxrl_stack.core.squeeze import squeezed
from jaxrl_stack.ops import masks


def test_rows_of_true_values_come_first_in_their_order():
    mask = jnp.array([[False, True, False], [True, True, False], [False, False, False], [True, False, False]])
    rows, is_valid = jax.jit(masks.valid_first)(mask)
    np.testing.assert_array_equal(rows, [[1, 0, 3], [3, 1, 3], [3, 3, 3], [3, 3, 3]])
    np.testing.assert_array_equal(is_valid, [[True, True, False], [True, True, False], [False] * 3, [False] * 3])


def test_every_column_of_a_block_moves_with_its_rows():
    rng, (num_steps, num_columns) = np.random.default_rng(0), (7, 5)
    shape = (num_steps, num_columns)
    mask = rng.random(shape) < 0.5
    mask[:, 1], mask[:, 2] = False, True
    columns = {
        Columns.OBS: {"image": rng.integers(0, 255, (*shape, 2, 2), np.uint8), "x": rng.normal(size=shape)},
        Columns.FINAL_OBS: rng.normal(size=(*shape, 3)).astype(np.float32),
        Columns.STATE_IN: (rng.normal(size=(*shape, 4)).astype(np.float32),),
        Columns.TERMINATEDS: rng.random(shape) < 0.5,
        Columns.RESETS: rng.random(shape) < 0.5,
        Columns.ACTIONS: rng.integers(0, 9, shape, np.int32),
        FRAMES_BEFORE: rng.random((1, num_columns, 3)).astype(np.float32),
        Columns.LOSS_MASK: mask,
    }
    out = jax.jit(squeezed)(columns)
    assert out.keys() == columns.keys()
    np.testing.assert_array_equal(out[FRAMES_BEFORE], columns[FRAMES_BEFORE])
    for before, after in zip(jax.tree.leaves(columns), jax.tree.leaves(out), strict=True):
        if len(before) == 1:
            continue
        assert before.shape == after.shape
        for b in range(num_columns):
            own = before[mask[:, b], b]
            expected = jnp.asarray(own) if before is not mask else np.ones(len(own), bool)
            np.testing.assert_array_equal(after[: len(own), b], expected)
    np.testing.assert_array_equal(out[Columns.LOSS_MASK].sum(axis=0), mask.sum(axis=0))


def test_a_block_without_masked_rows_stays_as_it_is():
    columns = {Columns.REWARDS: np.arange(6, dtype=np.float32).reshape(3, 2), Columns.LOSS_MASK: np.ones((3, 2), bool)}
    for name, own in squeezed(columns).items():
        np.testing.assert_array_equal(own, columns[name])
