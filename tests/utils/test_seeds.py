"""Integer seeds: the same in every process, never the same for two purposes, always within int32."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np

from jaxrl_stack.utils.seeds import NUM_SEEDS, derived_seed


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
