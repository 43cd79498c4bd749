"""64-bit counters, which neither overflow nor lose exactness, for example of all env steps of a run.

A counter is ``uint32[..., 2]``: (high word, low word) of a 64-bit unsigned integer. JAX has no 64-bit
integers by default, and a single int32 of environment steps is full after minutes on an accelerator. Two
counters are subtracted exactly before the difference becomes a float, so schedules stay right at any age of
a run.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.ops import two_words

_WORD = 1 << 32
_LIMIT = 1 << 64


def zero() -> np.ndarray:
    """Creates a counter with the value 0 on the host: a NumPy array ``uint32[2]``."""
    return np.zeros(2, np.uint32)


def from_int(n: int) -> np.ndarray:
    """Converts a Python integer to a counter on the host: a NumPy array ``uint32[2]``.

    Args:
        n: Integer in [0, 2**64).

    Returns:
        ``uint32[2]``: (high word, low word).

    Raises:
        ValueError: If `n` is outside of [0, 2**64).
    """
    n = int(n)
    if not 0 <= n < _LIMIT:
        raise ValueError(f"from_int({n}): a counter holds integers in [0, 2**64). Pass such an integer.")
    return np.array([n // _WORD, n % _WORD], np.uint32)


def of_steps(num_steps: Any) -> jax.Array:
    """Converts a number of env steps to a counter ``uint32[2]``. The number is a scalar, a counter, or None for 0."""
    steps = jnp.asarray(0 if num_steps is None else num_steps)
    if jnp.issubdtype(steps.dtype, jnp.floating):
        return _from_float(steps)
    steps = steps.astype(jnp.uint32)
    return steps if steps.ndim else jnp.stack([jnp.zeros_like(steps), steps])


def to_int(counter: Any) -> int:
    """Converts a counter (``uint32[2]``, on host or device) to a Python integer."""
    high, low = np.asarray(counter)
    return int(high) * _WORD + int(low)


def add(counter: Any, n: Any) -> Any:
    """Adds `n` to a counter exactly.

    If the counter is a NumPy array ``uint32[2]`` and `n` is a Python int, the sum is a NumPy array; else it is a JAX
    array.

    Args:
        counter: ``uint32[..., 2]``.
        n: Non-negative integer below 2**32: a Python int or an integer array that broadcasts to ``[...]``.

    Returns:
        ``uint32[..., 2]``; wraps at 2**64.

    Raises:
        ValueError: If `n` is a Python integer outside of [0, 2**32).
    """
    if isinstance(n, int) and not 0 <= n < _WORD:
        advice = "Use a counter only for numbers that grow" if n < 0 else "Add a larger number in several calls"
        raise ValueError(f"add(counter, n={n}): n must be in [0, 2**32). {advice}.")
    if isinstance(n, int) and isinstance(counter, np.ndarray) and counter.shape == (2,):
        return from_int((to_int(counter) + n) % _LIMIT)
    # A Python int above 2**31 has no int32 form: give it its dtype on the host.
    n = jnp.asarray(np.uint32(n) if isinstance(n, int) else n).astype(jnp.uint32)
    return two_words.add(jnp.asarray(counter), jnp.stack([jnp.zeros_like(n), n], axis=-1))


def as_float(counter: Any) -> jax.Array:
    """Converts a counter, ``uint32[..., 2]``, to its nearest float32 ``[...]``."""
    return difference(counter, zero())


def as_floats(counter: Any) -> tuple[jax.Array, jax.Array]:
    """Splits a counter into two float32 numbers whose float64 sum is the counter: its nearest float32, and the
    remainder.

    Args:
        counter: ``uint32[..., 2]``, below 2**48.

    Returns:
        ``(float32[...], float32[...])``.
    """
    nearest = as_float(counter)
    return nearest, difference(counter, _from_float(nearest))


def _from_float(n: jax.Array) -> jax.Array:
    """Converts whole float32 numbers ``[...]`` in [0, 2**64) to counters ``uint32[..., 2]``."""
    high = jnp.floor(n / jnp.float32(_WORD))
    return jnp.stack([high, n - high * jnp.float32(_WORD)], axis=-1).astype(jnp.uint32)


def difference(a: Any, b: Any) -> jax.Array:
    """`a` - `b` as float32, computed exactly before rounding.

    Args:
        a: ``uint32[..., 2]``.
        b: ``uint32[..., 2]``; may be larger than `a` (then the result is negative).

    Returns:
        ``float32[...]``. Correct for |a - b| < 2**63.
    """
    words = two_words.subtract(jnp.asarray(a), jnp.asarray(b))
    negative = words[..., 0] >= jnp.uint32(1 << 31)
    # Two's complement: negate before the conversion, else -1 would round like 2**64 - 1.
    magnitude = two_words.as_float(
        jnp.where(negative[..., None], two_words.subtract(jnp.asarray(zero()), words), words)
    )
    return jnp.where(negative, -magnitude, magnitude)


def bounded_difference(a: Any, b: Any, most: int) -> Any:
    """Returns ``a - b``, clipped to the range from 0 to `most`: an int for ints, and an int32 array for arrays.

    Args:
        a: An int; or the lower word of a counter, uint32.
        b: Likewise. Lower words may wrap, if the difference is below 2**31.
        most: The upper bound.
    """
    if isinstance(a, int) and isinstance(b, int):
        return min(max(0, a - b), most)
    return jnp.clip((a - b).astype(jnp.int32), 0, most)
