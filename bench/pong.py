"""Frames of Pong per second: ale-py's vector environment alone, PPO on it, and PPO on wrapped games, ours and RLlib's.

    python -m bench.pong --rllib-python ENV/bin/python --json out.json

Every contender is a process of its own (`bench.peers`); the others wait while one is measured. A step is an action, of
four frames of the game each. All see 84 x 84 gray images, four stacked, and PPO has the network of Mnih et al. (2015).
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

from bench import harness, host_throughput
from bench.host_throughput import Row

BARE, VECTOR, WRAPPED, RLLIB = "ale vector", "jaxrl, ale vector", "jaxrl, wrapped", "rllib, wrapped"
TRAINING = {"num_epochs": 4, "lr": 2.5e-4, "clip_param": 0.1, "entropy_coeff": 0.01, "grad_clip": 0.5}
MODEL = {
    "conv_filters": [[32, 8, 4], [64, 4, 2], [64, 3, 1]],
    "conv_activation": "relu",
    "head_fcnet_hiddens": [512],
    "head_fcnet_activation": "relu",
    "vf_share_layers": True,
}
GAME = {"id": "ALE/Pong-v5", "frameskip": 1, "repeat_action_probability": 0.0}


def settings_of(contender: str, args: argparse.Namespace) -> dict[str, Any]:
    """Returns the settings of a contender; see `bench.peers.new_stack`."""
    runners: dict[str, Any] = {"num_env_runners": 0, "num_envs_per_env_runner": args.num_envs}
    env, env_config = "wrapped", GAME
    if contender == VECTOR:
        runners["gym_env_vectorize_mode"] = "vector_entry_point"
        env, env_config = "ALE/Pong-v5", {"repeat_action_probability": 0.0}
    return {
        "job": "train",
        "warmup": args.warmup,
        "env": env,
        "environment": {"env_config": env_config},
        "env_runners": runners,
        "training": {**TRAINING, "train_batch_size_per_learner": args.batch, "minibatch_size": args.batch // 4},
        "reporting": {},
        "model": MODEL,
        "seed": 0,
        "torch_threads": args.threads,
    }


def commands(args: argparse.Namespace) -> dict[str, list[str]]:
    """Returns ``{contender: command of its process}`` for the contenders whose interpreter is given."""
    found = {
        VECTOR: (args.python, "jaxrl_atari"),
        WRAPPED: (args.python, "jaxrl_atari"),
        RLLIB: (args.rllib_python, "rllib_atari"),
        BARE: (args.python, "ale_vector"),
    }
    return {name: [python, "-m", f"bench.peers.{module}"] for name, (python, module) in found.items() if python}


def measure(args: argparse.Namespace) -> list[Row]:
    """Measures all contenders in turns; returns a row for each."""
    peers = commands(args)
    table = host_throughput.Comparison("pong", args.batch, lambda name, size: None)
    settings = {name: settings_of(name, args) for name in peers}
    return host_throughput.compare(peers, settings, f"0x{args.num_envs}", table, args.rounds, args.seconds, ours=VECTOR)


def print_rows(rows: Sequence[Row], args: argparse.Namespace) -> None:
    """Prints the table."""
    harness.print_table(
        f"Pong, {args.num_envs} environments, batches of {args.batch}: steps/s, of four frames each",
        ["contender", "steps/s", "min", "max", "cores", "sampling alone", f"{VECTOR} ÷"],
        [
            [
                row.contender,
                row.rate,
                row.rate_min,
                row.rate_max,
                row.cores,
                args.batch / row.parts["sample"] if "sample" in row.parts else None,
                row.ratio,
            ]
            for row in rows
        ],
        caption=f"medians; {args.rounds} rounds in turns; torch and ale-py on {args.threads} threads",
    )


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.pong", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rllib-python", metavar="PATH", help="interpreter that has ray[rllib], torch, ale-py and cv2")
    parser.add_argument("--python", metavar="PATH", default=sys.executable, help="interpreter for this project")
    parser.add_argument("--num-envs", type=int, default=8, help="environments")
    parser.add_argument("--batch", type=int, default=1024, help="steps of an iteration; a minibatch is a quarter")
    parser.add_argument("--rounds", type=int, default=3, help="turns of every contender")
    parser.add_argument("--seconds", type=float, default=3.0, help="least length of a turn")
    parser.add_argument("--warmup", type=int, default=1, help="iterations before the first turn")
    parser.add_argument("--threads", type=int, default=2, help="of torch, and of the bare vector environment")
    parser.add_argument("--json", metavar="PATH", help='where to write the report ("-": stdout, in place of the table)')
    return parser.parse_args(arguments)


def main() -> None:
    """Runs the benchmark with the options of the command line."""
    args = parse()
    rows = measure(args)
    if args.json != "-":
        print_rows(rows, args)
    harness.write_json(
        args.json, {"machine": harness.machine(), "results": [{**dataclasses.asdict(row), "met": None} for row in rows]}
    )


if __name__ == "__main__":
    main()
