"""Compares the full states of recomputed iterations with the states of the run, bit for bit.

    python -m bench.rewind --out rewind.jsonl
    python -m bench.rewind --only ppo-lstm,dqn --iterations 40 --samples 10
    python -m bench.rewind --only faults,diff,alarms,seconds,population

A run is 40 iterations of a toy configuration of `bench/digests.py` with three commands (`change_settings` twice,
`set_weights`) and a checkpoint after every tenth. Ten random iterations are recomputed, and everything that determines
the rest of the run is compared: parameters, optimizers, filters, environments, random streams, replay.

``faults`` changes a finished run (one bit of a checkpoint, one setting, one line of ``commands.jsonl``) and asks
`verify`; ``diff`` compares two runs whose learning rates differ from iteration 17 on; ``alarms`` verifies 100 unchanged
runs while another process keeps a core busy; ``seconds`` times ``jaxrl rewind`` as a process with a warm cache;
``population`` recomputes iterations of a population of 8 with three commands.

The output file is a journal: the same command continues an interrupted one. Exits with 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
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
    from jaxrl_stack.checkpoints.newest import name_of
    from jaxrl_stack.checkpoints.saves import wait_for_saves

    algo = config_of(name).reporting(results_dir=folder).build_algo()
    states, third = {}, iterations // 3
    # SAC, TD3 and DreamerV3 have no lr; they have rates by network.
    changes = {"lr": 1e-4} if algo.config.lr is not None else {"gamma": 0.02}
    try:
        for iteration in range(1, iterations + 1):
            algo.train()
            if iteration % EVERY == 0:
                algo.save_to_path(folder / name_of(iteration))
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


def faults() -> dict[str, Any]:
    """Results of `verify` for a run with one changed bit, setting or command."""
    from jaxrl_stack.rewind.verification import verify
    from jaxrl_stack.runs.run import Run

    def flip(run: Path) -> None:
        file = run / "checkpoint_000020" / "env_runner" / "arrays.safetensors"
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)

    def set_gamma(run: Path) -> None:
        file = run / "params.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"gamma": 0.9}))

    def change_line(run: Path) -> None:
        file = run / "commands.jsonl"
        lines = file.read_text().splitlines()
        file.write_text("\n".join([lines[0].replace('"lr": ', '"lr": 1'), *lines[1:]]) + "\n")

    found = {}
    with folder_of_run() as folder:
        trained("ppo-mlp-device-1", folder, 40, set())
        found["none"] = verify(Run.read(folder)).exit_code
        for fault in (flip, set_gamma, change_line):
            changed = folder.parent / fault.__name__
            shutil.copytree(folder, changed)
            fault(changed)
            result = verify(Run.read(changed))
            found[fault.__name__] = result.exit_code
            print(result, file=sys.stderr)
    return {"exit_codes": found, "is_met": found.pop("none") == 0 and set(found.values()) == {1}}


def first_difference() -> dict[str, Any]:
    """Result of `diff` for two runs whose learning rates differ from iteration 17 on."""
    from jaxrl_stack.rewind.verification import diff
    from jaxrl_stack.runs.run import Run

    with folder_of_run() as folder:
        for name, lr in (("a", 1e-3), ("b", 1e-4)):
            algo = config_of("ppo-mlp-device-1").reporting(results_dir=folder / name, checkpoint_frequency=10)
            algo = algo.build_algo()
            for iteration in range(1, 31):
                algo.train()
                if iteration == 16:
                    algo.change_settings(lr=lr)
            algo.stop()
        found = diff(Run.read(folder / "a"), Run.read(folder / "b"))
    leaf = None if found.difference is None else str(found.difference)
    return {"iteration": found.iteration, "leaf": leaf, "is_met": found.iteration == 17 and leaf is not None}


def alarms(number: int = 100) -> dict[str, Any]:
    """Exit codes of `verify` for unchanged runs with different seeds, next to a busy process."""
    from jaxrl_stack.rewind.verification import verify
    from jaxrl_stack.runs.run import Run

    load = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    codes = []
    try:
        with folder_of_run() as folder:
            configs = [
                config_of("ppo-mlp-device-1").debugging(seed=seed).reporting(results_dir=folder / f"{seed}")
                for seed in range(number)
            ]
            algo = configs[0].copy().build_algo()
            for seed, config in enumerate(configs):
                assert not seed or algo.reset(config)
                for _ in range(5):
                    algo.train()
                    if algo.iteration == 3:
                        algo.save_to_path(folder / f"{seed}" / "checkpoint_000003")
                        algo.change_settings(lr=1e-4)
            algo.stop()
            codes = [verify(Run.read(folder / f"{seed}")).exit_code for seed in range(number)]
    finally:
        load.kill()
    return {"runs": number, "alarms": sum(code != 0 for code in codes), "is_met": not any(codes)}


def seconds() -> dict[str, Any]:
    """Time of ``jaxrl rewind`` as a process, and of the iterations that it recomputes."""
    from jaxrl_stack.runs.run import Run

    with folder_of_run() as folder:
        config = config_of("ppo-mlp-device-1").environment("gymnax/CartPole-v1")
        config.env_runners(num_envs_per_env_runner=64).rl_module(model_config={"fcnet_hiddens": [64, 64]})
        config.training(train_batch_size_per_learner=65_536, minibatch_size=4096, num_epochs=10)
        algo = config.reporting(results_dir=folder, checkpoint_frequency=10).build_algo()
        for _ in range(20):
            algo.train()
        algo.stop()
        command = [sys.executable, "-m", "jaxrl_stack.cli", "rewind", str(folder), "--to"]
        times = []
        for iteration in (11, 19):  # the first one fills the compilation cache
            started = time.perf_counter()
            subprocess.run([*command, str(iteration)], check=True, stdout=subprocess.DEVNULL)
            times.append(time.perf_counter() - started)
        recomputed = float(Run.read(folder).history["time_this_iter_s"][11:19].sum())
    limit = 5.0 + 1.2 * recomputed
    measured = {"process_s": times[-1], "iterations_s": recomputed, "limit_s": limit}
    return {**{name: round(value, 2) for name, value in measured.items()}, "is_met": times[-1] <= limit}


def population(iterations: int = 40, samples: int = 10) -> dict[str, Any]:
    """Random iterations of a population of 8 with three commands, and what `verify` says about all."""
    from jaxrl_stack.rewind.populations import population_at
    from jaxrl_stack.rewind.verification import verify
    from jaxrl_stack.runs.state_comparison import compared_leaves, differences

    wanted = sorted(random.Random(0).sample(range(1, iterations + 1), samples))
    with folder_of_run() as folder:
        config = config_of("ppo-mlp-device-1").reporting(results_dir=folder, checkpoint_frequency=EVERY)
        trained, states, third = config.build_population(seeds=8), {}, iterations // 3
        for iteration in range(1, iterations + 1):
            trained.train()
            if iteration in wanted:
                states[iteration] = trained.get_state("driver")
            if iteration == third:
                trained.copy([0, 1], [6, 7])
            if iteration == third + 1:
                trained.change_settings({6: {"lr": 1e-4}})
            if iteration == 2 * third:
                trained.keep([0, 2, 4, 5, 6, 7])
        trained.stop()
        differing = {}
        for iteration in wanted:
            again = population_at(folder / "population", iteration)
            differing[iteration] = [str(own) for own in differences(states[iteration], again.get_state("driver"))]
            again.stop()
        code = verify(folder / "population").exit_code
    found = {iteration: own[:3] for iteration, own in differing.items() if own}
    num_leaves = len(compared_leaves(states[wanted[0]]))
    return {
        **{"recomputed": wanted, "num_leaves": num_leaves, "differing": found, "exit_code": code},
        "is_met": not found and code == 0,
    }


MORE = {"faults": faults, "diff": first_difference, "alarms": alarms, "seconds": seconds, "population": population}


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
    for name, measure in MORE.items():
        if not parts or name in parts:
            line = journal.once({"run": name}, measure)
            print(json.dumps(line), flush=True)
            is_equal = is_equal and line["is_met"]
    return 0 if is_equal else 1


if __name__ == "__main__":
    sys.exit(main())
