"""PPO with an LSTM, this project beside RLlib: how much is learned from as many env steps, with the same settings.

    python -m bench.recurrent_learning --rllib-python ENV/bin/python --json bench/recurrent_learning.jsonl
    python -m bench.recurrent_learning --contenders jaxrl --seeds 2

The same settings are not the same number of gradient steps: of an LSTM's batch RLlib counts sequences where
`minibatch_size` says steps, so that a minibatch of 1,024 is more than the whole batch, and an iteration has 2 or 3
steps of gradient; this project makes 24, of 51 sequences each.

CartPole without velocities (RLlib's example class and this project's), 16 environments in the process, a dense layer
and an LSTM of 64 that policy and value share. Measured is the area under the curve of the mean return of the last 100
episodes, per env step; an episode counts 500 at most, since these classes have no time limit. Every run is appended to
the JSON file as a line, with its commit; runs that stand there already are not run again. Exits with 1 if this
project's mean area over the seeds is below RLlib's by more than one standard error of their difference.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import harness
from bench.host_throughput import OURS, RLLIB
from bench.journal import Journal
from bench.learning import area
from bench.memory import STATELESS, task
from bench.peers.protocol import Peer

PACKAGES = {OURS: "jaxrl_stack", RLLIB: "ray.rllib"}
TRAINING = {
    "train_batch_size_per_learner": 4096,
    "minibatch_size": 1024,
    "num_epochs": 6,
    "lr": 1e-3,
    "vf_loss_coeff": 0.05,
}
WITHIN, LONGEST, SMOOTHING, REPORTED = 200_000, 500.0, 100, 350.0


def settings_of(contender: str, seed: int, training: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a contender; see `bench.peers.new_stack`."""
    return {
        "job": "episodes",
        "warmup": 0,
        "env": STATELESS.format(PACKAGES[contender]),
        "env_runners": {"num_env_runners": 0, "num_envs_per_env_runner": 16},
        "training": dict(training),
        "reporting": {},
        "model": task(20).model_config,
        "mean_std_filter": True,
        "seed": seed,
        "torch_threads": 1,
    }


def run_seed(command: Sequence[str], settings: Mapping[str, Any], within: int) -> dict[str, Any]:
    """Trains one seed in a separate process.

    Args:
        command: Of the contender.
        settings: Sent to it.
        within: Env steps.

    Returns:
        ``curve``: per iteration, env steps and the mean of the last 100 returns; ``area``: the mean height of it;
        ``area_without_limit``: where episodes count what they returned; ``reached_350``: env steps after which the
        mean that the implementation reports itself was first there, or None.
    """
    last: deque[float] = deque(maxlen=SMOOTHING)
    curve: list[tuple[int, float]] = []
    without_limit: list[tuple[int, float]] = []
    reached: int | None = None
    with Peer(command, settings) as peer:
        while not curve or curve[-1][0] < within:
            (iteration,) = peer.measure(0.0)
            last.extend(iteration["result"]["returns"])
            if (iteration["result"]["reported"] or 0.0) >= REPORTED and reached is None:
                reached = iteration["steps"]
            if last:
                curve.append((iteration["steps"], round(statistics.fmean(min(each, LONGEST) for each in last), 1)))
                without_limit.append((iteration["steps"], statistics.fmean(last)))
                print(curve[-1], iteration["result"]["reported"], flush=True)
        versions = peer.versions
    return {
        "area": round(area(curve, within), 2),
        "area_without_limit": round(area(without_limit, within), 2),
        "reached_350": reached,
        "curve": curve,
        "versions": versions,
    }


def compare(areas: Mapping[str, Sequence[float]]) -> tuple[float, float]:
    """This project's mean area minus RLlib's, and the standard error of this difference."""
    difference = statistics.mean(areas[OURS]) - statistics.mean(areas[RLLIB])
    return difference, sum(statistics.variance(mine) / len(mine) for mine in areas.values()) ** 0.5


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rllib-python", metavar="PATH", help="interpreter that has ray[rllib] and torch")
    parser.add_argument("--contenders", default=f"{OURS},{RLLIB}", help="comma-separated")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--within", type=int, default=WITHIN, help="env steps")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append every run to FILE; skip those that it holds")
    args = parser.parse_args(arguments)
    pythons = {OURS: sys.executable, RLLIB: args.rllib_python}
    names = args.contenders.split(",")
    journal = Journal(args.json, harness.commit())
    areas: dict[str, list[float]] = {name: [] for name in names}
    for seed in range(args.seeds):
        for name in names:
            command = [pythons[name], "-m", f"bench.peers.{name}_ppo"]
            run = {"contender": name, "seed": seed, "within": args.within, **TRAINING}
            train = functools.partial(run_seed, command, settings_of(name, seed, TRAINING), args.within)
            areas[name].append(journal.once(run, train)["area"])
            print(name, areas[name], flush=True)
    if set(names) != {OURS, RLLIB}:
        return 0
    difference, error = compare(areas)
    print(f"area of {OURS} minus area of {RLLIB}: {difference:.1f} +- {error:.1f}")
    return 0 if difference >= -error else 1


if __name__ == "__main__":
    raise SystemExit(main())
