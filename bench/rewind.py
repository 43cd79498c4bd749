"""Is a rewound iteration the iteration? Full states of recomputed iterations beside those of the run, bit for bit.

    python -m bench.rewind --out rewind.jsonl
    python -m bench.rewind --only ppo-lstm,dqn --iterations 40 --samples 10

A run is 40 iterations of a toy configuration of `bench/digests.py` with three commands (`change_settings` twice,
`set_weights`) and a checkpoint after every tenth. Ten random iterations are recomputed, and everything that determines
the rest of the run is compared: parameters, optimizers, filters, environments, random streams, replay. The file is a
journal: the same command goes on where it stopped. Exits with 1 if a leaf differs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.digests import config_of
from bench.journal import Journal

RUNS = (
    *("ppo-mlp-device-1", "ppo-lstm-device-1", "ppo-connectors-device-2", "ppo-agents-device-1"),
    *("impala-mlp-device-1", "dqn-mlp-device-1", "sac-mlp-device-1", "td3-mlp-device-1", "dreamerv3-mlp-device-1"),
    *("bc-mlp-resident-1", "bc-mlp-streamed-1", "pqn-mlp-device-1"),
)
EVERY = 10
"""Iterations between checkpoints."""


def trained(name: str, folder: Path, iterations: int, wanted: set[int]) -> dict[int, dict[str, Any]]:
    """Trains a run with commands and checkpoints; returns the states after some iterations."""
    from jaxrl_stack.checkpoints.saves import wait_for_saves

    algo = config_of(name).reporting(results_dir=folder).build_algo()
    states, third = {}, iterations // 3
    # SAC, TD3 and DreamerV3 have no lr; they have rates by network.
    changes = {"lr": 1e-4} if algo.config.lr is not None else {"gamma": 0.02}
    try:
        for iteration in range(1, iterations + 1):
            algo.train()
            if iteration % EVERY == 0:
                algo.save_to_path(folder / f"checkpoint_{iteration:06d}")
            if iteration in wanted:
                states[iteration] = algo.get_state()
            if iteration in (third, 2 * third):
                algo.change_settings(**{setting: value * iteration for setting, value in changes.items()})
            if iteration == third + 1:
                own = algo.get_weights()
                algo.set_weights({mid: {n: _halved(leaf) for n, leaf in each.items()} for mid, each in own.items()})
    finally:
        algo.stop()
        wait_for_saves()
    return states


def _halved(leaf: Any) -> Any:
    return leaf * leaf.dtype.type(0.5) if np.issubdtype(leaf.dtype, np.floating) else leaf


@contextlib.contextmanager
def folder_of_run() -> Iterator[Path]:
    """Folder for a run, which is removed."""
    with tempfile.TemporaryDirectory(prefix="rewind_") as folder:
        yield Path(folder, "run")


def compare(name: str, iterations: int, samples: int) -> dict[str, Any]:
    """Recomputes random iterations of a run, and compares their whole states."""
    from jaxrl_stack.runs.run import Run
    from jaxrl_stack.runs.state_comparison import compared_leaves, differences

    wanted = sorted(random.Random(0).sample(range(1, iterations + 1), samples))
    with folder_of_run() as folder:
        states = trained(name, folder, iterations, {*wanted})
        run, found = Run.read(folder), {}
        for iteration in wanted:
            algo = run.at(iteration, config=config_of(name))
            try:
                found[iteration] = [str(own) for own in differences(states[iteration], algo.get_state())]
            finally:
                algo.stop()
    return {
        "recomputed": wanted,
        "num_leaves": len(compared_leaves(states[wanted[0]])),
        "differing": {iteration: own[:3] for iteration, own in found.items() if own},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="parts of names of runs, separated by commas")
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--samples", type=int, default=10, help="iterations to recompute of each run")
    parser.add_argument("--out", type=Path, help="journal of finished comparisons, JSON lines")
    arguments = parser.parse_args()
    os.environ.setdefault("JAX_NUM_CPU_DEVICES", "2")  # before anything starts JAX's backend
    parts = [part for part in arguments.only.split(",") if part]
    journal, is_equal = Journal(arguments.out), True
    for name in RUNS:
        if parts and not any(part in name for part in parts):
            continue
        identity = {"run": name, "iterations": arguments.iterations, "samples": arguments.samples}
        line = journal.once(identity, lambda name=name: compare(name, arguments.iterations, arguments.samples))
        print(json.dumps(line), flush=True)
        is_equal = is_equal and not line["differing"]
    return 0 if is_equal else 1


if __name__ == "__main__":
    sys.exit(main())
