"""Fingerprints (hashes) of parameters, to check whether two computations give identical parameters.

A fingerprint is a pair of numbers, which changes if any bit of the parameters changes.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.utils.devices import host_view
from jaxrl_stack.utils.named_leaves import leaves_by_name

FINGERPRINT = "fingerprint"
"""Key of the fingerprint in results: ``{"low": int, "high": int}``."""
FINGERPRINT_COLUMNS = (f"{FINGERPRINT}/low", f"{FINGERPRINT}/high")
"""Columns of the fingerprint in the tables of runs."""


def fingerprint(params: Any) -> jax.Array:
    """Fingerprint of parameters: two sums, modulo 2**32, of hashes of all elements of all arrays.

    Each element adds ``mix(bits ^ key)`` to a sum. The key depends on the name of the leaf, its shape and type, and the
    position of the element. The mix is a bijection of uint32, and each sum has a different one. A change of one element
    therefore always changes the fingerprint; changes of several elements leave it the same with a probability of about
    2**-64. The order of the leaves and of the additions has no effect. Numbers that are equal but have different bits,
    such as 0.0 and -0.0, have different fingerprints.

    It finds differences between computations, and is no protection against forgery.

    Args:
        params: Pytree of arrays with a name for each leaf, such as nested dicts. All types, and PRNG keys, are
            possible.

    Returns:
        uint32 ``[2]``: low, high.
    """
    sums = jnp.zeros(2, jnp.uint32)
    for name, leaf in leaves_by_name(params).items():
        seed = zlib.crc32(f"{name} {leaf.dtype} {leaf.shape}".encode())
        sums += _sums_of_leaf(_words(leaf), np.uint32(seed))
    return sums


def fingerprint_of(params: Mapping[str, jax.Array]) -> dict[str, int]:
    """Fingerprint of a learner's parameters, as numbers for results: ``{"low": int, "high": int}``.

    One program computes it, also with ``disable_jit=True``.

    Args:
        params: ``{ref: array}``, replicated over devices, as in `LearnerState`.
    """
    is_on_one = all(len(leaf.sharding.device_set) == 1 for leaf in params.values())
    with jax.disable_jit(False):
        # Views cost half of the time of small networks.
        low, high = np.asarray(_compiled(params if is_on_one else host_view(params))).tolist()
    return {"low": low, "high": high}


def fingerprints_of_members(params: Mapping[str, jax.Array]) -> jax.Array:
    """Computes a fingerprint (hash) of the parameters of each population member.

    Each fingerprint equals the result of `fingerprint` for the parameters of one member.

    Args:
        params: ``{ref: array}``, ``[D, V, ...]`` for V members on each of D devices.

    Returns:
        uint32 ``[D, V, 2]``.
    """
    return _compiled_of_members(params)


_compiled = jax.jit(fingerprint)
_compiled_of_members = jax.jit(jax.vmap(jax.vmap(fingerprint)))


class _Mix(NamedTuple):
    """Hash function for fingerprints: a bijection of uint32.

    The input for each element of an array is ``bits ^ key``: the element's bits, and ``key = (position + seed) *
    step``. The seed depends on the name, shape and dtype of the array; `step` is a constant of the hash function.
    """

    shifts: tuple[int, int, int]
    factors: tuple[int, int]
    step: int

    def __call__(self, x: jax.Array) -> jax.Array:
        for shift, factor in zip(self.shifts, self.factors, strict=False):
            x = (x ^ (x >> shift)) * np.uint32(factor)
        return x ^ (x >> self.shifts[-1])


_LOW = _Mix((16, 13, 16), (0x85EBCA6B, 0xC2B2AE35), 0x9E3779B9)
"""Finalizer of MurmurHash3 (A. Appleby)."""
_HIGH = _Mix((16, 15, 16), (0x7FEB352D, 0x846CA68B), 0x85EBCA77)
"""`lowbias32` (C. Wellons, "Prospecting for Hash Functions", 2018)."""


def _sums_of_leaf(words: list[jax.Array], seed: np.uint32) -> jax.Array:
    """Hashes each of an array's n elements with two hash functions, and returns the two sums of the hashes.

    The result is uint32 ``[2]``. `words` contains the elements' bits: one array uint32 ``[n]``, or two such arrays for
    64-bit elements.
    """
    number = jnp.arange(words[0].size, dtype=jnp.uint32) + seed
    low, high = words[0] ^ (number * np.uint32(_LOW.step)), words[-1] ^ (number * np.uint32(_HIGH.step))
    if len(words) == 2:
        # A Feistel network, also a bijection: each sum depends on both words.
        low = low ^ _HIGH(high)
        high = high ^ _LOW(low)
    # One reduction of two operands: ten times as fast on CPUs as two reductions.
    zero = np.uint32(0)
    sums = jax.lax.reduce((_LOW(low), _HIGH(high)), (zero, zero), lambda a, b: (a[0] + b[0], a[1] + b[1]), (0,))
    return jnp.stack(sums)


def _words(leaf: Any) -> list[jax.Array]:
    """Converts an array with n elements to uint32 words for hashing.

    The result is one array ``[n]``, or two arrays ``[n]`` with the two halves of 64-bit elements. Elements of fewer
    than 32 bits are padded with zero bits; bools and integers of 2 or 4 bits are first converted to uint8. A complex
    number counts as two elements, a PRNG key as the elements of its uint32 key data.
    """
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        leaf = jnp.stack([leaf.real, leaf.imag])  # as two elements
    if leaf.dtype == jnp.bool_ or leaf.dtype.name in ("int2", "int4", "uint2", "uint4"):
        leaf = leaf.astype(jnp.uint8)
    unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}[leaf.dtype.itemsize]
    words = jax.lax.bitcast_convert_type(leaf, unsigned).astype(jnp.uint32)
    if leaf.dtype.itemsize == 8:
        return [words[..., 0].reshape(-1), words[..., 1].reshape(-1)]
    return [words.reshape(-1)]
