"""Fingerprints of parameters."""

from __future__ import annotations

import zlib

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jaxrl_stack.utils.fingerprints import fingerprint, fingerprint_of
from tests import programs

fingerprint_of_leaf = jax.jit(lambda leaf: fingerprint({"leaf": leaf}))
BITS = (1 << 32) - 1


def mixed(x, lane):
    """The two published hashes, in Python's integers."""
    shifts, factors = [((16, 13, 16), (0x85EBCA6B, 0xC2B2AE35)), ((16, 15, 16), (0x7FEB352D, 0x846CA68B))][lane]
    x = ((x ^ (x >> shifts[0])) * factors[0]) & BITS
    x = ((x ^ (x >> shifts[1])) * factors[1]) & BITS
    return x ^ (x >> shifts[2])


def by_hand(leaves):
    """The fingerprint of arrays with elements of up to 32 bits, element by element."""
    sums = [0, 0]
    for name, leaf in leaves.items():
        seed = zlib.crc32(f"{name} {leaf.dtype} {leaf.shape}".encode())
        words = np.ascontiguousarray(leaf).view(f"u{leaf.dtype.itemsize}").ravel().tolist()
        for position, word in enumerate(words):
            for lane, step in enumerate((0x9E3779B9, 0x85EBCA77)):
                sums[lane] += mixed(word ^ ((position + seed) * step & BITS), lane)
    return [total & BITS for total in sums]


def test_elements_are_summed_by_name_and_position():
    leaves = {
        "pi/kernel": np.array([[0.0, -0.0], [np.nan, 1.5]], np.float32),
        "pi/bias": np.array([1.0, -2.0], ml_dtypes.bfloat16),
        "mask": np.array([True, False]),
        "count": np.array(-3, np.int32),
    }
    expected = by_hand(leaves)
    assert fingerprint(leaves).tolist() == expected
    # Neither the order of names nor the nesting counts.
    nested = {"pi": {"bias": leaves["pi/bias"], "kernel": leaves["pi/kernel"]}}
    assert fingerprint({**dict(reversed(leaves.items()))}).tolist() == expected
    assert fingerprint({"mask": leaves["mask"], "count": leaves["count"], **nested}).tolist() == expected
    swapped = {**leaves, "pi/kernel": leaves["pi/kernel"].T}
    renamed = {{"mask": "other"}.get(name, name): leaf for name, leaf in leaves.items()}
    assert len({tuple(by_hand(own)) for own in (leaves, swapped, renamed)}) == 3
    assert fingerprint(swapped).tolist() == by_hand(swapped)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "bool", "int32", "float64", "complex64"])
def test_each_bit_of_each_element_counts(dtype):
    with jax.enable_x64(True):
        zeros = np.zeros(3, jnp.dtype(dtype))
        first = fingerprint_of_leaf(zeros).tolist()
        num_bits = 1 if dtype == "bool" else 8 * zeros.dtype.itemsize
        seen = {tuple(first)}
        for element in range(zeros.size):
            for bit in range(num_bits):
                flipped = np.zeros(zeros.nbytes, np.uint8)
                flipped[element * zeros.dtype.itemsize + bit // 8] = 1 << bit % 8
                found = fingerprint_of_leaf(flipped.view(zeros.dtype)).tolist()
                assert found != first
                seen.add(tuple(found))
        assert len(seen) == 1 + zeros.size * num_bits


def test_prng_keys_and_members_of_populations_have_fingerprints():
    keys = jax.random.split(jax.random.key(0), 3)
    params = {"key": keys, "w": jnp.arange(6.0).reshape(3, 2)}
    of_members = jax.vmap(fingerprint)(params)
    one_by_one = [fingerprint(jax.tree.map(lambda x, i=i: x[i], params)).tolist() for i in range(3)]
    assert of_members.tolist() == one_by_one and len({*map(tuple, one_by_one)}) == 3


@pytest.mark.parametrize("env", [programs.CARTPOLE, "CartPole-v1"])
def test_results_written_to_a_folder_have_the_fingerprint_of_the_parameters(env, tmp_path):
    algo = programs.ppo(env).reporting(results_dir=tmp_path / "run").build_algo()
    found = [algo.train()["fingerprint"] for _ in range(2)]
    assert found[0] != found[1] == fingerprint_of(algo.learner.state.params)
    rows = algo.history
    columns = zip(rows["fingerprint/low"].tolist(), rows["fingerprint/high"].tolist(), strict=True)
    assert [{"low": int(low), "high": int(high)} for low, high in columns] == found
    # The same values without compiled training, and as a pytree of their own.
    params = jax.device_get(algo.learner.state.params)
    assert list(found[1].values()) == fingerprint(params).tolist() == by_hand(params)
    algo.stop()


def test_runs_without_a_folder_have_no_fingerprint():
    algo = programs.ppo().build_algo()
    assert "fingerprint" not in algo.train()
    algo.stop()
