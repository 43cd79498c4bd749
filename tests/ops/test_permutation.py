import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.ops import permutation

permute, round_keys = jax.jit(permutation.permute, static_argnums=1), jax.jit(permutation.round_keys)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 100, 138, 997, 4096, 8192])
def test_every_index_is_hit_exactly_once(size):
    keys = round_keys(jax.random.key(size))
    out = permute(jnp.arange(size, dtype=jnp.uint32), size, keys)
    assert sorted(np.asarray(out)) == list(range(size))


def test_different_keys_give_different_orders():
    index = jnp.arange(512, dtype=jnp.uint32)
    keys = [round_keys(jax.random.key(i)) for i in range(50)]
    orders = {tuple(np.asarray(permute(index, 512, key))) for key in keys}
    assert len(orders) == 50


@pytest.mark.parametrize("size", [12, 60])
def test_every_row_is_equally_likely_at_every_position(size):
    num_keys = 6000
    keys = jax.vmap(lambda i: round_keys(jax.random.fold_in(jax.random.key(0), i)))(jnp.arange(num_keys))
    index = jnp.arange(size, dtype=jnp.uint32)
    orders = np.asarray(jax.vmap(lambda k: permute(index, size, k))(keys))
    counts = np.stack([np.bincount(orders[:, p], minlength=size) for p in range(size)])
    expected = num_keys / size
    chi_square = ((counts - expected) ** 2 / expected).sum() / (size - 1) ** 2
    # Mean 1 under uniformity, with a standard deviation of sqrt(2) / (size - 1): 0.13 and 0.024.
    assert chi_square < 1.0 + 5 * np.sqrt(2) / (size - 1)


def test_neighbours_are_separated():
    """The distance between the images of two neighbours is distributed as between random rows."""
    size = 8192
    out = np.asarray(permute(jnp.arange(size, dtype=jnp.uint32), size, round_keys(jax.random.key(1)))).astype(np.int64)
    gaps = np.abs(np.diff(out))
    assert abs(gaps.mean() / (size / 3) - 1) < 0.05
    assert abs(np.corrcoef(out[:-1], out[1:])[0, 1]) < 0.05


def test_one_permutation_per_element():
    size = 50
    keys = jax.vmap(round_keys)(jax.random.split(jax.random.key(0), 2))
    index = jnp.arange(size, dtype=jnp.uint32)
    both = permute(jnp.stack([index, index]), size, keys[:, None])
    for i in range(2):
        np.testing.assert_array_equal(both[i], permute(index, size, keys[i]))


@pytest.mark.parametrize("size", [0, -3, 2**31 + 1])
def test_a_size_out_of_range_is_refused(size):
    with pytest.raises(ValueError, match=f"size={size}"):
        permutation.permute(jnp.zeros(1, jnp.uint32), size, jnp.zeros(permutation.NUM_ROUNDS, jnp.uint32))


def test_the_size_can_be_an_argument():
    permute_within = jax.jit(permutation.permute_within)
    keys = round_keys(jax.random.key(5))
    index = jnp.arange(16, dtype=jnp.uint32)
    for size in (16, 17, 138, 4096):
        expected = permute(index, size, keys)
        domain = np.array(permutation.domain(size), np.uint32)
        np.testing.assert_array_equal(permute_within(index, domain, keys), expected)
    with pytest.raises(ValueError, match="size=0"):
        permutation.domain(0)
