"""Cost of fingerprints and of stored checkpoints: ``python -m bench.stored_checkpoints``.

Three runs of each task train in turns in one process, all with results in a folder: without fingerprints and
checkpoints, with fingerprints, and with fingerprints and ``num_to_keep="sparse"``. One JSON line per task has the
ratios of speeds to the first run, per second and per second of CPU time, which other processes disturb less. The script
ends with 1 if the third run reaches less than ``--bar`` times the speed of the first per CPU second.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from bench.harness import interleave

TASKS = ("ppo-64", "ppo-2048", "dqn")


def config_of(task: str) -> Any:
    """Config of a task, on CartPole."""
    from jaxrl_stack.algorithms.dqn import DQNConfig
    from jaxrl_stack.algorithms.ppo import PPOConfig

    if task == "dqn":
        config: Any = DQNConfig().env_runners(num_envs_per_env_runner=16)
        config.training(train_batch_size_per_learner=32, num_steps_sampled_before_learning_starts=1000)
        config.reporting(min_sample_timesteps_per_iteration=1024, min_time_s_per_iteration=None)
    else:
        num_envs = int(task.removeprefix("ppo-"))
        config = PPOConfig().env_runners(num_envs_per_env_runner=num_envs)
        # The sizes of bench/throughput.py: 128 steps, 4 epochs, 4 minibatches.
        config.training(train_batch_size_per_learner=128 * num_envs, minibatch_size=32 * num_envs, num_epochs=4)
        config.rl_module(model_config={"fcnet_hiddens": [64, 64]})
    return config.environment("gymnax/CartPole-v1").learners(num_cpus_per_learner=1).debugging(seed=0)


@dataclasses.dataclass(frozen=True)
class _Contender:
    step: Callable[[], Mapping[str, Any]]
    steps_per_iteration: int


@contextlib.contextmanager
def _contenders(task: str, folder: Path) -> Iterator[tuple[dict[str, _Contender], Any]]:
    stored = {"checkpoint_frequency": 1, "num_to_keep": "sparse"}
    algos = {
        name: config_of(task).reporting(results_dir=folder / name, **settings).build_algo()
        for name, settings in (("without", {}), ("fingerprints", {}), ("checkpoints", stored))
    }
    without = mock.patch("jaxrl_stack.algorithms.algorithm.fingerprint_of", return_value={"low": 0, "high": 0})

    def train_without() -> Mapping[str, Any]:
        with without:
            return algos["without"].train()

    steps = {name: algo.train for name, algo in algos.items()} | {"without": train_without}
    num_steps = {name: int(step()["env_runners"]["num_env_steps_sampled"]) for name, step in steps.items()}
    try:
        yield {name: _Contender(step, num_steps[name]) for name, step in steps.items()}, algos["checkpoints"]
    finally:
        for algo in algos.values():
            algo.stop()


def measure(task: str, rounds: int, seconds: float) -> dict[str, Any]:
    """Speeds of the three runs of a task, and their ratios to the first."""
    with tempfile.TemporaryDirectory() as folder, _contenders(task, Path(folder)) as (contenders, algo):
        timings = interleave(contenders, rounds, seconds)
        first = timings["without"]
        ratios = {}
        for name in ("fingerprints", "checkpoints"):
            own = timings[name]
            pairs = zip(own.rates, own.cores, first.rates, first.cores, strict=True)
            per_core = statistics.median((rate / cores) / (other / busy) for rate, cores, other, busy in pairs)
            ratios[name] = {"per_second": round(own.ratio_to(first), 4), "per_cpu_second": round(per_core, 4)}
        return {
            "task": task,
            "ms_per_iteration": round(1e3 * first.seconds_per_iteration, 3),
            **ratios,
            "num_iterations": algo.iteration,
            "kept": list(algo.stored_checkpoints.paths),
        }


def main(argv: list[str] | None = None) -> int:
    """Measures, and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--rounds", type=int, default=8, help="turns of each run")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a turn")
    parser.add_argument("--bar", type=float, default=0.97, help="lowest ratio of speeds with and without checkpoints")
    arguments = parser.parse_args(argv)
    lowest = 1.0
    for task in arguments.tasks:
        found = measure(task, arguments.rounds, arguments.seconds)
        print(json.dumps(found), flush=True)
        lowest = min(lowest, found["checkpoints"]["per_cpu_second"])
    return int(lowest < arguments.bar)


if __name__ == "__main__":
    raise SystemExit(main())
