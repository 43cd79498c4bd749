"""Kills `jaxrl benchmark` at random moments, continues it, and compares its files with an uninterrupted run's.

    python -m bench.killed_benchmark --json bench/killed_benchmark.jsonl

The benchmark trains a small PPO with three seeds on JAX environments. SIGKILL ends it ``--kills`` times, then it runs
to its end. Tables, scores and files of both folders must be equal, except times. Exits with 1 if they differ; the names
of the differing files and numbers are printed. The result is appended to the JSON file as a line.
"""

from __future__ import annotations

import argparse
import collections
import csv
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import harness
from bench.journal import Journal
from jaxrl_stack.rewind.verification import CLOCK_COLUMNS
from jaxrl_stack.runs.benchmark import BENCHMARK_FILE, Benchmark
from jaxrl_stack.utils.results import flatten_result

TASKS = tuple(
    f"gymnax/{name}"
    for name in (
        "CartPole-v1",
        "Acrobot-v1",
        "MountainCar-v0",
        "Catch-bsuite",
        "DeepSea-bsuite",
        "UmbrellaChain-bsuite",
    )
)
LABEL = "small"
EXPERIMENT = """
from jaxrl_stack import PPOConfig

config = PPOConfig().update_from_dict(
    {
        "num_envs_per_env_runner": 8,
        "train_batch_size_per_learner": 128,
        "minibatch_size": 64,
        "num_epochs": 1,
        "model_config": {"fcnet_hiddens": [8]},
    }
)
"""
"""File with the config of the small PPO."""
NOT_COMPARED = re.compile(rf"{CLOCK_COLUMNS.pattern}|^command$|^started$|^git/|results_dir$")
"""Names of numbers and settings that depend on the clock, the process, the folder or the checkout."""


def command(folder: Path, experiment: Path, args: argparse.Namespace) -> list[str]:
    """Command line of the benchmark with its results in a folder."""
    options = {
        "--steps": args.steps,
        "--seeds": args.seeds,
        "--results-dir": folder,
        "--checkpoint-seconds": args.checkpoint_seconds,
    }
    jaxrl = Path(sys.executable).with_name("jaxrl")
    return [str(each) for each in (jaxrl, "benchmark", f"{LABEL}={experiment}", *args.tasks, *sum(options.items(), ()))]


def run(arguments: Sequence[str], cache: Path, kill_after: float | None = None) -> float | None:
    """Runs the benchmark.

    Args:
        arguments: Its command line.
        cache: Folder of compiled programs, as users set it to start fast.
        kill_after: Seconds after which SIGKILL ends it. None waits for its end.

    Returns:
        Seconds until its end; None if it was killed.

    Raises:
        CalledProcessError: It fails; its errors have been printed.
    """
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(cache)}
    started = time.perf_counter()
    with subprocess.Popen(
        arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as it:
        try:
            printed, _ = it.communicate(timeout=kill_after)
        except subprocess.TimeoutExpired:
            it.kill()
            it.communicate()
            return None
    if it.returncode:
        raise RuntimeError(f"{' '.join(arguments)} ends with {it.returncode}:\n{printed}")
    return time.perf_counter() - started


def stage(folder: Path) -> str:
    """Progress of a killed benchmark, by the files in its folder."""
    if not (folder / BENCHMARK_FILE).exists():
        return "before benchmark.json"
    waves = [json.loads(file.read_text()) for file in folder.glob("*/*/state/[0-9]*.json")]
    running = [file for file in folder.glob("*/*/state/[0-9]*") if file.is_dir()]
    if any(wave["trained_until"] is not None and not wave["is_finished"] for wave in waves):
        return "scoring"
    return "training, with a checkpoint" if running else "between tasks or before a checkpoint"


def content(file: Path) -> Mapping[str, Any]:
    """Name -> value or values of a file, without those that `NOT_COMPARED` names."""
    if file.suffix == ".csv":
        with file.open(newline="") as opened:
            header, *rows = csv.reader(opened)
        found: dict[str, Any] = {name: [row[i] for row in rows] for i, name in enumerate(header)}
    elif file.name == "result.json":
        found = {}
        for line in file.read_text().splitlines():
            for name, value in flatten_result(json.loads(line)).items():
                found.setdefault(name, []).append(value)
    else:
        found = dict(flatten_result(json.loads(file.read_text())))
    # NaN is equal to NaN as text.
    return {name: repr(value) for name, value in found.items() if not NOT_COMPARED.search(name)}


def differences(whole: Path, killed: Path) -> list[str]:
    """Names of files and of their numbers in which two folders of a benchmark differ, except times."""
    names = [sorted(str(file.relative_to(path)) for file in path.rglob("*")) for path in (whole, killed)]
    found = [f"{name}: only in one folder" for name in sorted(set(names[0]) ^ set(names[1]))]
    for name in sorted(set(names[0]) & set(names[1])):
        if (whole / name).is_file():
            own, other = content(whole / name), content(killed / name)
            found += [f"{name}: {key}" for key in sorted({*own, *other}) if own.get(key) != other.get(key)]
    tables = [Benchmark.read(path).table("json") for path in (whole, killed)]
    return found + ["the table"] * (tables[0] != tables[1])


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Runs the benchmark with and without kills.

    Raises:
        SystemExit: The benchmark ends before it was killed often enough.
    """
    experiment, cache = folder / "small.py", folder / "cache"
    experiment.write_text(EXPERIMENT)
    whole, killed = folder / "whole", folder / "killed"
    run(command(folder / "first", experiment, args), cache)
    seconds = run(command(whole, experiment, args), cache)
    start = run(command(whole, experiment, args), cache)
    assert seconds is not None and start is not None
    print(f"Uninterrupted: {seconds:.1f} s with compiled programs, {start:.1f} s of them to start", flush=True)
    moments, stages = random.Random(args.seed), collections.Counter()
    for number in range(args.kills):
        moment = moments.uniform(0.0, start + args.longest)
        if run(command(killed, experiment, args), cache, moment) is not None:
            raise SystemExit(f"The benchmark ended after {number} kills. Raise --steps {args.steps}.")
        stages[stage(killed)] += 1
        print(f"Kill {number + 1} after {moment:.1f} s: {stage(killed)}", flush=True)
    run(command(killed, experiment, args), cache)
    found = differences(whole, killed)
    print("\n".join(["Differences:", *found] if found else ["No differences"]), flush=True)
    table = Benchmark.read(killed).table("json")
    scores = {cell["task"]: [round(score, 2) for score in cell["scores"]] for cell in json.loads(table)["cells"]}
    return {"equal": not found, "differences": found[:20], "kills": dict(stages), "scores": scores}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), metavar="TASK")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=200_000, help="env steps of each run")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--checkpoint-seconds", type=float, default=0.5)
    parser.add_argument("--longest", type=float, default=10.0, help="seconds from the start to the latest kill")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random times")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append the result to FILE")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="new folder (default: a temporary one)")
    args = parser.parse_args(arguments)
    identity = {name: vars(args)[name] for name in ("tasks", "kills", "steps", "seeds", "checkpoint_seconds", "seed")}
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        done = Journal(args.json, harness.commit()).append(identity, measure(args, folder))
    return 0 if done["equal"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
