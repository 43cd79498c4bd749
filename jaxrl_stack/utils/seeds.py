"""Integer seeds for code outside of JAX (environments, host replay buffers), and states of NumPy's generators."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

NUM_SEEDS = 2**31 - 2**20
"""Derived seeds are below this number, so that a seed plus the index of an environment is in the range of int32."""


def derived_seed(stream: str, *numbers: int) -> int:
    """Derives a seed from `stream`, the name of the seed's purpose, and from integers. The result is the same in all
    processes.

    Sums such as ``seed + index`` overlap: seeds 0 and 1 would share all environments but one. Here, other numbers give
    another seed, except for hash collisions, with a probability of about 1 in 2**31.

    Args:
        stream: Purpose of the seed.
        *numbers: Integers of any size: the config's seed, an index, a count.

    Returns:
        An int in ``[0, NUM_SEEDS)``.
    """
    text = ",".join([stream, *(str(int(number)) for number in numbers)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") % NUM_SEEDS


def generator_state(generator: np.random.Generator) -> dict[str, Any]:
    """State of a NumPy generator as a dict that any file format can store.

    Integers under the key "state", which may have 128 bits, are split into lists of two integers below 2**64, the high
    word first.

    Args:
        generator: The generator; where its kind has an integer as a part of its state, there is a list of two here.
    """
    state = generator.bit_generator.state
    parts = {
        part: list(divmod(value, 2**64)) if isinstance(value, int) else value for part, value in state["state"].items()
    }
    return {**state, "state": parts}


def set_generator_state(generator: np.random.Generator, state: dict[str, Any]) -> None:
    """Sets the state of a NumPy generator to `state`, which is a result of `generator_state` or the attribute
    ``bit_generator.state`` of a generator.

    Raises:
        ValueError: The state is of another kind of generator.
    """
    name = type(generator.bit_generator).__name__
    if state["bit_generator"] != name:
        raise ValueError(
            f"The state is of the bit generator {state['bit_generator']}, not of {name}: load the state into a "
            f"generator with the bit generator {state['bit_generator']}."
        )
    parts = {
        part: value[0] * 2**64 + value[1] if isinstance(value, list) else value
        for part, value in state["state"].items()
    }
    generator.bit_generator.state = {**state, "state": parts}
