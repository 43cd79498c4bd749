import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.ops import masks


@jax.jit
def rows_and_total(mask, wanted):
    found = masks.TrueRows.of(mask)
    return found.rows(wanted), found.total


@pytest.mark.parametrize("size", [5, 20_000, 40_000], ids=["compared", "searched", "in blocks"])
def test_rows_of_the_true_values_of_a_mask(size):
    mask = np.zeros(size, bool)
    mask[[1, 2, 4]] = True
    rows, total = rows_and_total(mask, jnp.array([1, 2, 3, 4, 0]))
    assert rows.tolist() == [1, 2, 4, size, 0] and total == 3


@pytest.mark.parametrize("size", [32_768, 32_769, 65_535, 65_536])
@pytest.mark.parametrize("part", [0.0, 0.004, 0.5, 1.0])
def test_true_values_are_found_by_their_number(size, part):
    mask = np.random.default_rng(size).random(size) < part
    expected = np.flatnonzero(mask)
    wanted = np.unique(np.linspace(1, size + 1, 300).astype(np.int32))
    rows, total = rows_and_total(mask, wanted)
    assert total == expected.size
    np.testing.assert_array_equal(rows, np.append(expected, np.full(size + 1 - total, size))[wanted - 1])
