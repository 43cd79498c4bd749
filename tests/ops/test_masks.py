import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.ops import masks


@pytest.mark.parametrize("size", [5, 40_000])
def test_rows_of_the_true_values_of_a_mask(size):
    mask = np.zeros(size, bool)
    mask[[1, 2, 4]] = True
    rows = jax.jit(masks.rows_of)(jnp.cumsum(mask), jnp.array([1, 2, 3, 4, 0]))
    assert rows.tolist() == [1, 2, 4, size, 0]
