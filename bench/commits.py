"""Compares the training throughput of an older commit with the present one, in processes that take turns.

    python -m bench.commits --old v0.3
    python -m bench.commits --old HEAD~5 --only ppo-device-4,dqn-host --pairs 3 --processes 5 --json out.json

A pair is a window of the one commit and a window of the other, one after the other; the order changes with every
pair. A comparison has ``--processes`` times ``--pairs`` of them: each process has memory and caches of its own, which
make one a few percent faster than another. What counts is the median of the pairs' ratios, new ÷ old. Exits with 1 if
a median is below ``--bar``.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import asynchronous, harness, host_throughput, multi_agent_host, off_policy_throughput
from bench.checkouts import checkout
from bench.peers.protocol import Peer

NUM_STEPS, NUM_MINIBATCHES = 128, 4


@dataclasses.dataclass(frozen=True)
class Job:
    """Training run that the benchmark compares.

    Args:
        peer: Module of `bench.peers` that trains.
        settings: What it is told.
    """

    peer: str
    settings: Mapping[str, Any]


def ppo_device(num_envs: int) -> Job:
    """PPO on gymnax's CartPole, 128 steps, 4 epochs of 4 minibatches."""
    rows = num_envs * NUM_STEPS
    return Job(
        "jaxrl_ppo",
        {
            "job": "train",
            "env": "gymnax/CartPole-v1",
            "seed": 0,
            "env_runners": {"num_env_runners": 0, "num_envs_per_env_runner": num_envs},
            "training": {
                "train_batch_size_per_learner": rows,
                "minibatch_size": rows // NUM_MINIBATCHES,
                "num_epochs": 4,
                "lr": 2.5e-4,
            },
            "reporting": {"min_sample_timesteps_per_iteration": max(rows, 8192), "min_time_s_per_iteration": 0},
            "model": {"fcnet_hiddens": [64, 64], "fcnet_activation": "tanh", "vf_share_layers": False},
        },
    )


def ppo_host(size: str) -> Job:
    """PPO on gymnasium's CartPole, 4,000 steps an iteration; `size` is ``RUNNERSxENVS``."""
    parsed = host_throughput.Size.parse(size)
    settings = host_throughput.settings_of(parsed, "train", 0, host_throughput.parse([]))
    return Job("jaxrl_ppo", settings)


def off_policy(job: str) -> Job:
    """Returns the job of a comparison of `bench.off_policy_throughput`."""
    return Job("jaxrl_off_policy", off_policy_throughput.settings_of(job, off_policy_throughput.parse([])))


def impala() -> Job:
    """IMPALA with two EnvRunners of 16 environments and a local Learner; an iteration takes a second."""
    return Job("jaxrl_asynchronous", asynchronous.settings_of("IMPALA", num_learners=0, seconds=1.0))


def ppo_multi_agent() -> Job:
    """PPO with two policies on 8 host environments of two agents."""
    return Job("jaxrl_multi_agent", multi_agent_host.settings())


JOBS: dict[str, Job] = {
    **{f"ppo-device-{num_envs}": ppo_device(num_envs) for num_envs in (4, 64, 512)},
    **{f"ppo-host-{size}": ppo_host(size) for size in ("0x1", "0x8", "2x8")},
    "ppo-agents-host": ppo_multi_agent(),
    "impala-host-2x16": impala(),
    **{f"{job.split('-')[1]}-{job.split('-')[0]}": off_policy(job) for job in off_policy_throughput.JOBS},
}
DEFAULT_JOBS = "ppo-device-4,ppo-device-64,ppo-device-512,ppo-host-0x8,dqn-device,dqn-host,sac-device,sac-host"


def ratios(job: Job, folders: Sequence[Path], processes: int, pairs: int, seconds: float) -> Iterator[float]:
    """New rate ÷ old rate of each pair of windows; `folders` are the old and the new checkout."""
    command, settings = [sys.executable, "-m", f"bench.peers.{job.peer}"], {**job.settings, "warmup": 3}
    for process in range(processes):
        old, new = (Peer(command, settings, folder=folder) for folder in folders)
        with old, new:
            for pair in range(pairs):
                turns = (old, new) if (process + pair) % 2 == 0 else (new, old)
                rates = {peer: rate_of(peer.measure(seconds)) for peer in turns}
                yield rates[new] / rates[old]


def rate_of(iterations: Sequence[Mapping[str, Any]]) -> float:
    """Env steps per second of a window: the median over its iterations."""
    return statistics.median(each["steps"] / each["seconds"] for each in iterations)


def line_of(name: str, pairs: Sequence[float]) -> str:
    """Formats the ratios of a comparison as a line of text."""
    median, least, most = statistics.median(pairs), min(pairs), max(pairs)
    return f"{name:16} new ÷ old {median:.3f}  ({len(pairs)} pairs, {least:.3f} to {most:.3f})"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", required=True, help="commit to compare with")
    parser.add_argument("--only", default=DEFAULT_JOBS, help=f"comma-separated, of {', '.join(JOBS)}")
    parser.add_argument("--processes", type=int, default=3, help="processes of each commit, one after the other")
    parser.add_argument("--pairs", type=int, default=3, help="pairs of windows of each two processes")
    parser.add_argument("--seconds", type=float, default=2.0, help="least length of a window")
    parser.add_argument("--bar", type=float, default=0.97, help="least median ratio")
    parser.add_argument("--json", metavar="PATH", help='where to write the report ("-": stdout)')
    args = parser.parse_args(arguments)
    for name in ("processes", "pairs"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} {getattr(args, name)}: at least 1")
    if unknown := [name for name in args.only.split(",") if name not in JOBS]:
        parser.error(f"--only {unknown[0]}: there are {', '.join(JOBS)}")
    return args


def main() -> None:
    args = parse()
    measured: dict[str, list[float]] = {}
    with checkout(args.old) as old, checkout(".") as new:
        for name in args.only.split(","):
            measured[name] = list(ratios(JOBS[name], (old, new), args.processes, args.pairs, args.seconds))
            print(line_of(name, measured[name]), flush=True, file=sys.stderr if args.json == "-" else sys.stdout)
    medians = {name: statistics.median(each) for name, each in measured.items()}
    harness.write_json(
        args.json,
        {
            "machine": harness.machine(),
            "commit": harness.commit(),
            "old": args.old,
            "medians": medians,
            "ratios": measured,
        },
    )
    sys.exit(1 if min(medians.values()) < args.bar else 0)


if __name__ == "__main__":
    main()
