"""Rows per second of behaviour cloning: this project, a single-file loop, and RLlib, from one file and in turns.

    python -m bench.offline_data --out data --only cartpole-expert
    python -m bench.offline_throughput --data data/cartpole-expert
    python -m bench.offline_throughput --data data/cartpole-expert --rllib-python ENV/bin/python --json out.json

All have two layers of 64, batches of 1,024 and Adam. The file is a table in RLlib's columns, made of the data set. This
project keeps it on the device, as the loop does (`bench.baselines.bc_loop`); RLlib reads it with Ray Data, in one
process and with its mapped data kept in memory. Reading the file into steps is set beside `pyarrow.parquet.read_table`
and the conversion of the same columns. Exits with 1 if this project is below `LOOP_BAR` of the loop's rate, `RLLIB_BAR`
times RLlib's, or `READING_BAR` of pyarrow's.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench import harness
from bench.baselines.bc_loop import make_loop
from bench.peers.protocol import Peer
from jaxrl_stack.algorithms.bc import BCConfig
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.datasets.opening import open_dataset
from jaxrl_stack.datasets.read_options import ReadOptions
from jaxrl_stack.datasets.steps import Steps

LOOP_BAR, RLLIB_BAR, READING_BAR = 0.97, 30.0, 0.5
COPIES = 10
"""How often the data set is in the file of which reading is timed."""
BATCH, NUM_UPDATES, LR, HIDDENS = 1024, 500, 1e-3, [64, 64]


def write_table(steps: Steps, path: Path) -> None:
    """Writes steps as a table with RLlib's columns; each row has a step and its next observation."""
    rows = np.flatnonzero(~steps.is_final)
    obs = steps.columns[Columns.OBS]
    columns = {
        "eps_id": [steps.episode_ids[i] for i in steps.episode[rows]],
        "obs": list(obs[rows]),
        "new_obs": list(obs[rows + 1]),
        "actions": list(steps.columns["actions"][rows]),
        **{name: steps.columns[name][rows] for name in ("rewards", "terminateds", "truncateds")},
    }
    pq.write_table(pa.table(columns), path)


@dataclasses.dataclass(frozen=True)
class Ours:
    """Contender that uses this project's API.

    Args:
        step: `Algorithm.train`.
        steps_per_iteration: Rows that it trains on.
    """

    step: Callable[[], Mapping[str, Any]]
    steps_per_iteration: int


def make_ours(path: Path) -> Ours:
    """Creates the contender: BC with the data of a file."""
    algo = (
        BCConfig()
        .environment("CartPole-v1")
        .offline_data(input_=[str(path)], dataset_num_iters_per_learner=NUM_UPDATES)
        .training(train_batch_size_per_learner=BATCH, lr=LR)
        .rl_module(model_config={"fcnet_hiddens": HIDDENS})
        .build_algo()
    )
    return Ours(algo.train, NUM_UPDATES * BATCH)


def reading_rates(table: Path, rounds: int) -> tuple[float, float]:
    """Measures rows per second of reading a table: into this project's steps, and by pyarrow into arrays of the same
    columns.

    Args:
        table: In RLlib's columns, as `write_table` makes it.
        rounds: Of turns; the fastest of each counts.
    """

    def by_pyarrow() -> None:
        for name, column in zip((read := pq.read_table(table)).column_names, read.columns, strict=True):
            own = column.combine_chunks()
            if name in ("obs", "new_obs"):
                own.flatten().to_numpy(zero_copy_only=False).reshape(len(own), -1)
            else:
                own.to_numpy(zero_copy_only=False)

    def by_us() -> None:
        open_dataset([str(table)], options=ReadOptions()).read_all()

    num_rows = pq.read_metadata(table).num_rows
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for read, own in zip((by_us, by_pyarrow), times, strict=True):
            started = time.perf_counter()
            read()
            own.append(time.perf_counter() - started)
    ours, theirs = (num_rows / min(own) for own in times)
    return ours, theirs


def measure_rllib(python: str, path: Path, num_rows: int, seconds: float) -> float:
    """Measures RLlib's rows per second in a separate process, the median of its iterations."""
    settings = {
        "warmup": 2,
        "data": str(path),
        "batch_size": BATCH,
        "num_iters": max(1, num_rows // BATCH),
        "lr": LR,
        "hiddens": HIDDENS,
    }
    with Peer([python, "-m", "bench.peers.rllib_offline"], settings) as peer:
        return statistics.median(own["steps"] / own["seconds"] for own in peer.measure(seconds))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="cartpole-expert of bench.offline_data")
    parser.add_argument("--rllib-python", metavar="PATH", help="interpreter that has ray[rllib] and torch")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each turn")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args(arguments)
    steps = open_dataset([str(args.data)], options=ReadOptions()).read_all()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "steps.parquet"
        write_table(steps, path)
        kept = ~steps.is_final
        obs, actions = (jnp.asarray(steps.columns[name][kept]) for name in (Columns.OBS, Columns.ACTIONS))
        loop = functools.partial(make_loop, batch_size=BATCH, num_updates=NUM_UPDATES, hiddens=tuple(HIDDENS), lr=LR)
        contenders: dict[str, Any] = {"loop": loop(obs, actions.astype(jnp.int32)), "jaxrl": make_ours(path)}
        timings = harness.interleave(contenders, args.rounds, args.seconds)
        to_loop = timings["jaxrl"].ratio_to(timings["loop"])
        rows = [["loop", timings["loop"].rate, 1.0, None], ["jaxrl", timings["jaxrl"].rate, to_loop, LOOP_BAR]]
        met = to_loop >= LOOP_BAR
        if args.rllib_python:
            rate = measure_rllib(args.rllib_python, path, int(kept.sum()), args.seconds)
            ratio = timings["jaxrl"].rate / rate
            rows.append(["rllib (jaxrl ÷)", rate, ratio, RLLIB_BAR])
            met &= ratio >= RLLIB_BAR
        large = Path(folder) / "large.parquet"
        pq.write_table(pa.concat_tables([pq.read_table(path)] * COPIES), large)
        ours, theirs = reading_rates(large, args.rounds)
        rows.append(["reading (jaxrl ÷ pyarrow)", ours, ours / theirs, READING_BAR])
        met &= ours / theirs >= READING_BAR
    columns = ["contender", "rows/s", "ratio", "bar"]
    harness.print_table(f"Behaviour cloning, batches of {BATCH}", columns, rows)
    if args.json:
        harness.write_json(args.json, {"rows": [dict(zip(columns, row, strict=True)) for row in rows]})
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
