"""Named streams of random numbers: each consumer has a separate PRNG key.

Keys have two levels. Each key that is derived from a config's seed has a number, `Stream`; integer seeds for code
outside of JAX are in `seeds.py`. Within one step, consumers (connectors, the module, final observations) have names,
`named`. Actions are drawn from the key of the step itself, because one more derivation per step is measurable in a
small rollout.
"""

from __future__ import annotations

import enum
import zlib

import jax
import numpy as np


class Stream(enum.IntEnum):
    """Indices of the random streams, one per consumer of random numbers, such as the learner.

    `stream_key` derives a PRNG key from a seed and an index. For one seed, the keys of different indices are
    independent. Do not change an index: every seed would give other results.
    """

    LEARNER = 1
    ROLLOUT = 2
    SAMPLE = 3
    EVALUATION = 4
    SINGLE_ACTION = 5
    SERVED_POLICY = 6
    OPPONENTS = 7


def stream_key(seed: int, stream: Stream) -> jax.Array:
    """PRNG key of the random stream `stream`, derived from `seed`; the keys of different streams are independent."""
    return jax.random.fold_in(jax.random.key(seed), int(stream))


def named(key: jax.Array, name: str) -> jax.Array:
    """Derives a separate PRNG key for a named consumer of random numbers, such as a connector, from `key`.

    The key itself may be drawn from as well, up to 2**31 numbers: names are folded in above those.
    """
    return jax.random.fold_in(key, np.uint32(1 << 31 | zlib.crc32(name.encode()) >> 1))
