"""PPO with an LSTM: on gymnax CartPole beside a hand-written loop, on a gymnasium environment beside RLlib; in turns.

    python -m bench.memory --envs 64,512 --json out.json
    python -m bench.memory --envs "" --rllib-python ENV/bin/python

On the device all contenders have the same settings: 128 steps, 4 epochs, 4 minibatches, a dense layer and an LSTM of 64
that policy and value share. The loop's minibatches are whole environments; "api 128" has chunks as long as that, so
that its gradients flow as far, and "api 32" has chunks of 32 steps, four times as many side by side. On the host:
CartPole that shows no velocities, 8 environments in one process, batches of 4,000, 4 epochs, minibatches of 128,
`max_seq_len` 20.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import sys
from typing import Any

from bench import harness
from bench.host_throughput import OURS, RLLIB, Comparison, compare, per_core
from bench.throughput import NUM_EPOCHS, NUM_MINIBATCHES, NUM_STEPS, STAGES, Task, integers, make_api

WIDTH = 64
LENGTHS = (128, 32)
BASELINE = "recurrent loop"
DEVICE_BAR, HOST_BAR = 1.3, 10.0
STATELESS = "{}.examples.envs.classes.stateless_cartpole:StatelessCartPole"
HOST = Comparison("training", 4000, lambda name, size: HOST_BAR if name == RLLIB else None)


def task(max_seq_len: int) -> Task:
    """Returns the task: CartPole with a dense layer and an LSTM, which policy and value share."""
    return Task("CartPole-v1", (WIDTH,), max_seq_len=max_seq_len)


def measure_device(num_envs: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measures all contenders on the device, in turns."""
    from bench.baselines.recurrent_loop import make_loop

    makers = {BASELINE: functools.partial(make_loop, num_envs, NUM_STEPS, NUM_EPOCHS, NUM_MINIBATCHES, WIDTH)}
    makers |= {
        f"api {length}": functools.partial(make_api, task(length), num_envs, 1, STAGES[-1]) for length in args.lengths
    }
    loops: dict[str, Any] = {name: make() for name, make in makers.items()}
    timings = harness.interleave(loops, args.rounds, args.seconds)
    return [
        {
            "contender": name,
            "num_envs": num_envs,
            "steps_per_s": timing.rate,
            "steps_per_s_min": min(timing.rates),
            "steps_per_s_max": max(timing.rates),
            "cores": sorted(timing.cores)[len(timing.cores) // 2],
            "ratio": None if name == BASELINE else timing.ratio_to(timings[BASELINE]),
            "ratio_per_core": None if name == BASELINE else per_core(timing).ratio_to(per_core(timings[BASELINE])),
            "bar": None if name == BASELINE else DEVICE_BAR,
            "compile_s": loops[name].compile_s,
        }
        for name, timing in timings.items()
    ]


def measure_host(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measures RLlib and this project on the host, in turns."""
    settings = {
        "job": "train",
        "warmup": 2,
        "env_runners": {"num_env_runners": 0, "num_envs_per_env_runner": 8},
        "training": {"train_batch_size_per_learner": 4000, "minibatch_size": 128, "num_epochs": 4, "lr": 3e-4},
        "reporting": {},
        "model": task(20).model_config,
        "seed": 0,
        "torch_threads": args.torch_threads,
    }
    packages = {OURS: "jaxrl_stack", RLLIB: "ray.rllib"}
    pythons = {OURS: sys.executable, RLLIB: args.rllib_python}
    rows = compare(
        {name: [pythons[name], "-m", f"bench.peers.{name}_ppo"] for name in packages},
        {name: {**settings, "env": STATELESS.format(package)} for name, package in packages.items()},
        "0x8",
        HOST,
        args.rounds,
        args.seconds,
    )
    return [{**dataclasses.asdict(row), "met": row.met} for row in rows]


def print_device(rows: list[dict[str, Any]], args: argparse.Namespace) -> None:
    columns = ["contender", "num_envs", "steps_per_s", "steps_per_s_min", "steps_per_s_max", "cores"]
    columns += ["ratio", "ratio_per_core", "bar", "compile_s"]
    harness.print_table(
        f"PPO with an LSTM, gymnax CartPole-v1, {NUM_STEPS} steps, {NUM_EPOCHS} epochs, {NUM_MINIBATCHES} minibatches",
        ["contender", "envs", "steps/s", "min", "max", "cores", "÷ loop", "÷ loop per core", "bar", "compile s"],
        [[row[name] for name in columns] for row in rows],
        caption=f"medians of {args.rounds} interleaved rounds; one device",
    )


def print_host(rows: list[dict[str, Any]], args: argparse.Namespace) -> None:
    columns = ["contender", "rate", "rate_min", "rate_max", "cores", "ratio", "ratio_per_core", "bar"]
    harness.print_table(
        "PPO with an LSTM, CartPole without velocities on gymnasium, 8 environments in the process",
        ["contender", "steps/s", "min", "max", "cores", "jaxrl ÷", "÷ per core", "bar"],
        [[row[name] for name in columns] for row in rows],
        caption=f"medians; {args.rounds} rounds in turns; torch on {args.torch_threads} thread(s)",
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--envs", type=integers, default=[64, 512], help="numbers of environments on the device")
    parser.add_argument("--lengths", type=integers, default=list(LENGTHS), help="max_seq_len on the device")
    parser.add_argument("--rllib-python", metavar="PATH", help="interpreter that has ray[rllib] and torch")
    parser.add_argument("--torch-threads", type=int, default=1, help="of RLlib")
    parser.add_argument("--rounds", type=int, default=5, help="turns of every contender")
    parser.add_argument("--seconds", type=float, default=0.5, help="least length of a turn")
    parser.add_argument(
        "--json", metavar="PATH", help='where to write the report ("-": stdout, in place of the tables)'
    )
    args = parser.parse_args()

    device = [row for num_envs in args.envs for row in measure_device(num_envs, args)]
    host = measure_host(args) if args.rllib_python else []
    if args.json != "-":
        if device:
            print_device(device, args)
        if host:
            print_host(host, args)
    harness.write_json(args.json, {"machine": harness.machine(), "device": device, "host": host})


if __name__ == "__main__":
    main()
