"""Integer seeds for what is not JAX: environments, replay buffers on the host."""

from __future__ import annotations

import hashlib

NUM_SEEDS = 2**31 - 2**20
"""Derived seeds are below: counting on from one, one up per environment, stays in int32, too."""


def derived_seed(stream: str, *numbers: int) -> int:
    """A seed that follows from a name and integers and from nothing else, in any process.

    Sums such as ``seed + index`` overlap: seeds 0 and 1 would share all environments but one. Here other numbers mean
    another seed, but for the one in 2**31 that every hash has.

    Args:
        stream: What the seed is for.
        *numbers: Integers of any size: the config's seed, an index, a count.

    Returns:
        An int in ``[0, NUM_SEEDS)``.
    """
    text = ",".join([stream, *(str(int(number)) for number in numbers)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") % NUM_SEEDS
