"""Updates per second of CQL and IQL: this project, a single-file loop, RLlib, and what the matrix unit would allow.

    python -m bench.offline_data --out data --only pendulum-replay
    python -m bench.offline_q_throughput --data data/pendulum-replay
    python -m bench.offline_q_throughput --data data/pendulum-replay --rllib-python ENV/bin/python --json out.json

All have RLlib's networks and settings, and batches of 256. This project keeps the data on the device, as the loops do
(`bench.baselines.cql_loop`, `bench.baselines.iql_loop`); RLlib reads it with Ray Data, in one process. The peak is that
of a product of two matrices, divided by the floating point operations that XLA counts in an update of the loop.

Exits with 1 if this project is below `LOOP_BAR` of a loop's rate; if CQL is below `PEAK_BAR` of the peak or `RLLIB_BAR`
times RLlib's; or if IQL is below the lower one of these two.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench import harness
from bench.baselines import cql_loop, iql_loop
from bench.offline_throughput import write_table
from bench.peers.protocol import Peer
from jaxrl_stack.algorithms.registry import get_algorithm_config_class
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.datasets.opening import open_dataset
from jaxrl_stack.datasets.read_options import ReadOptions
from jaxrl_stack.datasets.steps import Steps

LOOP_BAR, PEAK_BAR, RLLIB_BAR = 0.97, 0.5, 10.0
BATCH = 256
LOOPS = {"CQL": cql_loop.make_loop, "IQL": iql_loop.make_loop}


def columns_of(steps: Steps) -> dict[str, np.ndarray]:
    """Returns the columns of transitions for the hand-written loops."""
    rows = np.flatnonzero(~steps.is_final)
    obs = np.asarray(steps.columns[Columns.OBS], np.float32)
    return {
        "obs": obs[rows],
        "next_obs": obs[rows + 1],
        "actions": np.asarray(steps.columns[Columns.ACTIONS], np.float32)[rows],
        "rewards": np.asarray(steps.columns[Columns.REWARDS], np.float32)[rows],
        "terminateds": np.asarray(steps.columns[Columns.TERMINATEDS])[rows],
    }


@dataclasses.dataclass(frozen=True)
class Ours:
    """Contender that uses this project's API.

    Args:
        step: `Algorithm.train`.
        steps_per_iteration: Updates that it makes.
    """

    step: Callable[[], Mapping[str, Any]]
    steps_per_iteration: int


def make_ours(algorithm: str, data: Path, num_updates: int) -> Ours:
    """Creates the contender: an algorithm with its default settings."""
    config = get_algorithm_config_class(algorithm)().environment("Pendulum-v1")
    algo = (
        config.offline_data(input_=[str(data)], dataset_num_iters_per_learner=num_updates)
        .training(train_batch_size_per_learner=BATCH)
        .reporting(min_time_s_per_iteration=None, min_train_timesteps_per_iteration=0)
        .build_algo()
    )
    return Ours(algo.train, num_updates)


def measure_rllib(python: str, algorithm: str, table: Path, seconds: float) -> float:
    """Measures RLlib's updates per second in a separate process, the median of its iterations."""
    settings = {"warmup": 1, "algorithm": algorithm, "data": str(table), "batch_size": BATCH, "num_iters": 10}
    with Peer([python, "-m", "bench.peers.rllib_offline_q"], settings) as peer:
        return statistics.median(own["steps"] / own["seconds"] for own in peer.measure(seconds))


def measure(algorithm: str, args: argparse.Namespace, data: Mapping[str, np.ndarray], table: Path) -> dict[str, Any]:
    """Measures all rates of one algorithm, and whether it reaches its bars."""
    loop = LOOPS[algorithm](data, batch_size=BATCH, num_updates=args.updates)
    # Before and after: the peak of a machine that was busy in between would be too high a bar.
    contenders: dict[str, Any] = {"loop": loop, "jaxrl": make_ours(algorithm, args.data, loop.steps_per_iteration)}
    before = harness.matrix_peak()
    timings = harness.interleave(contenders, args.rounds, args.seconds, warmup=1)
    peak = min(before, harness.matrix_peak()) / loop.flops
    ours, to_loop = timings["jaxrl"].rate, timings["jaxrl"].ratio_to(timings["loop"])
    found: dict[str, Any] = {
        "algorithm": algorithm,
        "gflop": loop.flops / 1e9,
        "jaxrl": ours,
        "loop": timings["loop"].rate,
        "to_loop": to_loop,
        "peak": peak,
        "to_peak": ours / peak,
        "rllib": None,
        "to_rllib": None,
    }
    of_peak, of_rllib = ours >= PEAK_BAR * peak, True
    if args.rllib_python:
        found["rllib"] = measure_rllib(args.rllib_python, algorithm, table, args.seconds)
        found["to_rllib"] = ours / found["rllib"]
        of_rllib = found["to_rllib"] >= RLLIB_BAR
    needs_both = algorithm == "CQL" or not args.rllib_python
    found["met"] = to_loop >= LOOP_BAR and (of_peak and of_rllib if needs_both else of_peak or of_rllib)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="pendulum-replay of bench.offline_data")
    parser.add_argument("--only", default="CQL,IQL", help="comma-separated")
    parser.add_argument("--rllib-python", metavar="PATH", help="interpreter that has ray[rllib] and torch")
    parser.add_argument("--updates", type=int, default=50, help="of a call, at least: whole epochs of the loop")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each turn, at least")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args(arguments)
    names = args.only.split(",")
    if unknown := sorted(set(names) - LOOPS.keys()):
        parser.error(f"--only {','.join(unknown)}: there are {', '.join(LOOPS)}")
    steps = open_dataset([str(args.data)], options=ReadOptions()).read_all()
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "steps.parquet"
        write_table(steps, table)
        rows = [measure(name, args, columns_of(steps), table) for name in names]
    columns = list(rows[0])
    harness.print_table(
        f"Updates per second, batches of {BATCH}", columns, [[row[name] for name in columns] for row in rows]
    )
    if args.json:
        harness.write_json(args.json, {"machine": harness.machine(), "commit": harness.commit(), "rows": rows})
    return 0 if all(row["met"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
