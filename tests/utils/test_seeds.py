"""Integer seeds: the same in every process, never the same for two purposes, always within int32."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from jaxrl_stack.utils.seeds import NUM_SEEDS, derived_seed, generator_state, set_generator_state


def test_a_seed_follows_from_name_and_numbers_alone():
    code = "from jaxrl_stack.utils.seeds import derived_seed; print(derived_seed('environment', 3, 2**70))"
    environment = {**os.environ, "PYTHONHASHSEED": "5"}
    printed = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert int(printed.stdout) == derived_seed("environment", np.int64(3), 2**70)
    given = [("a",), ("b",), ("a", 0), ("a", 1), ("a", -1), ("a", 0, 1), ("a", 1, 0), ("a", 1, 1), ("a", 11)]
    assert len({derived_seed(*arguments) for arguments in given}) == len(given)


def test_seeds_of_neighbours_do_not_overlap_and_stay_within_int32():
    seeds = {
        derived_seed("environment", seed, runner, restarts, env)
        for seed in (0, 1, 2**32 - 1)
        for runner in range(5)
        for restarts in range(2)
        for env in (*range(16), 10**6, 10**7)
    }
    assert len(seeds) == 3 * 5 * 2 * 18
    assert min(seeds) >= 0 and max(seeds) < NUM_SEEDS
    # A suite that steps a million environments itself counts on from the seed that it gets.
    assert NUM_SEEDS + 2**20 <= 2**31


def test_the_state_of_a_generator_has_no_integers_above_64_bits():
    generator, other = np.random.default_rng(3), np.random.default_rng(4)
    generator.integers(9, dtype=np.uint32)
    state, own = generator_state(generator), generator.bit_generator.state
    assert all(0 <= word < 2**64 for words in state["state"].values() for word in words)
    drawn = generator.random(5)
    # The bit generator's own state is what files have that were written before.
    for taken in (state, own):
        set_generator_state(other, taken)
        assert other.bit_generator.state == own
        np.testing.assert_array_equal(other.random(5), drawn)
    twister, same = (np.random.Generator(np.random.MT19937(seed)) for seed in (0, 1))
    set_generator_state(same, generator_state(twister))
    assert same.random() == twister.random()
    with pytest.raises(ValueError, match="bit generator PCG64, not of MT19937"):
        set_generator_state(np.random.Generator(np.random.MT19937(0)), state)
