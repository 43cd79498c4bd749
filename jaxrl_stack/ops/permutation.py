"""Random permutations whose value at an index is computed directly, without a sort.

``jax.random.permutation`` sorts random keys; shuffling took a third of a PPO iteration that way. A Feistel network is a
bijection by construction, so the shuffled index of each row can be computed where it is needed, for the rows of one
minibatch, in a few integer operations each.

Sources: Luby and Rackoff, "How to construct pseudorandom permutations from pseudorandom functions" (1988); Black and
Rogaway, "Ciphers with arbitrary finite domains" (2002), whose generalised network on ``Z_a x Z_b`` and cycle walking
are used here.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

NUM_ROUNDS = 6
"""Half-rounds of the network; each of the two coordinates is moved three times."""


def _mix(x: jax.Array, key: jax.Array) -> jax.Array:
    """Round function of the Feistel network: a keyed 32-bit finaliser (multiply, xor-shift), uint32 to uint32."""
    x = (x ^ key) * jnp.uint32(0x9E3779B1)
    x = (x ^ (x >> 15)) * jnp.uint32(0x85EBCA77)
    return x ^ (x >> 13)


def round_keys(key: jax.Array) -> jax.Array:
    """Derives the round keys of one permutation, uint32 ``[NUM_ROUNDS]``, from a PRNG key."""
    return jax.random.bits(key, (NUM_ROUNDS,), jnp.uint32)


def derive_keys(keys: jax.Array, *numbers: jax.Array) -> jax.Array:
    """Derives the round keys of several random permutations from the round keys of a single permutation.

    Each combination of `numbers` (such as epoch and shard) gets a separate permutation.

    This takes a few integer operations; separate PRNG keys would compile one generator per number.

    Args:
        keys: uint32 ``[NUM_ROUNDS]``.
        *numbers: uint32 arrays that broadcast against ``[..., NUM_ROUNDS]``.
    """
    for number in numbers:
        keys = _mix(keys, _mix(number, jnp.uint32(0x632BE59B)))
    return keys


def permute(index: jax.Array, size: int, keys: jax.Array) -> jax.Array:
    """Applies a random permutation of ``range(size)`` to ``index``.

    The domain is the smallest rectangle ``a x b`` with ``a = ceil(sqrt(size))`` that covers the range. It is at most
    ``a - 1`` larger, so nearly every index lands inside at once. The permutation is applied again to the others (cycle
    walking), which keeps the map a bijection of the range.

    Args:
        index: uint32 array of any shape, each below ``size``.
        size: Length of the permuted range, 1 to 2**31.
        keys: uint32 ``[NUM_ROUNDS]``, or ``[..., NUM_ROUNDS]`` with the leading shape of ``index`` for one
            permutation per element.

    Returns:
        uint32 array of the shape of ``index``.

    Raises:
        ValueError: If ``size`` is out of range.
    """
    size, a, b = domain(size)
    out = _network(index, a, b, keys)
    return out if a * b == size else _walk(out, size, a, b, keys)


def domain(size: int) -> tuple[int, int, int]:
    """Computes the argument `domain` of `permute_within` for a range whose length `size` is a Python int.

    The result is ``(size, a, b)``; the Feistel network permutes ``a * b`` indices, which include the range.

    Args:
        size: Length of the range, 1 to 2**31.

    Returns:
        ``(size, a, b)``: the sides of the smallest rectangle with ``a = ceil(sqrt(size))`` that covers the range.

    Raises:
        ValueError: If ``size`` is out of range.
    """
    if not 1 <= size <= 2**31:
        raise ValueError(f"permute() needs 1 <= size <= 2**31, got size={size}.")
    a = math.isqrt(size - 1) + 1
    return size, a, -(-size // a)


def domain_of(size: jax.Array) -> jax.Array:
    """Computes the argument `domain` of `permute_within` for a range whose length `size` is a traced value.

    The result is ``[size, a, b]``; the Feistel network permutes ``a * b`` indices, which include the range.

    Args:
        size: uint32 scalar, 1 to 2**31.

    Returns:
        uint32 ``[3]``, the numbers of `domain`.
    """
    size = size.astype(jnp.uint32)
    below = size - 1
    root = jnp.sqrt(below.astype(jnp.float32)).astype(jnp.uint32)  # off by one at most
    root = jnp.where(root * root > below, root - 1, root)
    root = jnp.where((root + 1) * (root + 1) <= below, root + 1, root)
    a = root + 1
    return jnp.stack([size, a, (size + root) // a])


def permute_within(index: jax.Array, domain: jax.Array, keys: jax.Array) -> jax.Array:
    """Computes the same permutation as `permute`, for a range whose length is a traced value.

    The divisions are slower than in `permute`, because the compiler does not know the length.

    Args:
        index: uint32 array of any shape, each below the size.
        domain: uint32 ``[3]``: the result of `domain_of`, or of `domain` as an array.
        keys: As for `permute`.

    Returns:
        uint32 array of the shape of ``index``.
    """
    size, a, b = domain
    return _walk(_network(index, a, b, keys), size, a, b, keys)


def _network(x: jax.Array, a: Any, b: Any, keys: jax.Array) -> jax.Array:
    """Applies the Feistel network, a bijection of ``range(a * b)``, to indices `x`."""
    left, right = x // jnp.uint32(b), x % jnp.uint32(b)
    for i in range(0, NUM_ROUNDS, 2):
        left = (left + _mix(right, keys[..., i]) % jnp.uint32(a)) % jnp.uint32(a)
        right = (right + _mix(left, keys[..., i + 1]) % jnp.uint32(b)) % jnp.uint32(b)
    return left * jnp.uint32(b) + right


def _walk(out: jax.Array, size: Any, a: Any, b: Any, keys: jax.Array) -> jax.Array:
    """Applies the permutation again to indices outside of ``range(size)``, until all are inside."""
    return jax.lax.while_loop(
        lambda x: jnp.any(x >= size), lambda x: jnp.where(x >= size, _network(x, a, b, keys), x), out
    )
