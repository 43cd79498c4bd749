"""Env steps per second by number of EnvRunners and environments, with the times of the stages.

    python -m bench.scaling_table
    python -m bench.scaling_table --runners 0,2 --envs 1,64 --environments CartPole

PPO samples and learns in turns, IMPALA at the same time. In both, a train batch has 1,024 steps, and each EnvRunner
samples an equal part. Three environments are measured: CartPole-v1, and CartPole-v1 whose step waits, or computes, for
one millisecond. A run that has a line in bench/scaling_table.jsonl is not repeated.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import harness
from bench.asynchronous import Slow
from bench.cluster import STAGES, add_stages, use_whole_cores
from bench.journal import Journal
from bench.score_page import table as markdown_table

JOURNAL = Path(__file__).with_name("scaling_table.jsonl")
BATCH = 1024
ENVIRONMENTS = {"CartPole": None, "waits 1 ms": "sleeps", "computes 1 ms": "computes"}


def make_config(algorithm: str, environment: str, num_runners: int, num_envs: int) -> Any:
    """Config of one cell."""
    from jaxrl_stack import IMPALAConfig, PPOConfig

    how = ENVIRONMENTS[environment]
    config = {"PPO": PPOConfig, "IMPALA": IMPALAConfig}[algorithm]()
    training = {"PPO": {"minibatch_size": 256, "num_epochs": 4}, "IMPALA": {}}[algorithm]
    config.environment("CartPole-v1") if how is None else config.environment(Slow, env_config={"how": how})
    length = max(1, BATCH // (num_envs * max(1, num_runners)))
    config.env_runners(num_env_runners=num_runners, num_envs_per_env_runner=num_envs, rollout_fragment_length=length)
    config.training(train_batch_size_per_learner=BATCH, **training)
    config.rl_module(model_config={"fcnet_hiddens": [64, 64]})
    return config.reporting(min_time_s_per_iteration=0.5, min_sample_timesteps_per_iteration=BATCH)


def measure(algorithm: str, environment: str, num_runners: int, num_envs: int, seconds: float) -> dict[str, Any]:
    """Trains one cell for some time; returns env steps per second and the shares of the stages."""
    algo = make_config(algorithm, environment, num_runners, num_envs).build_algo()
    try:
        for _ in range(2):
            algo.train()
        before, started = algo.num_env_steps_sampled_lifetime, time.perf_counter()
        stages = dict.fromkeys(STAGES, 0.0)
        while True:
            result = algo.train()
            add_stages(stages, result)
            elapsed = time.perf_counter() - started
            if elapsed >= seconds:
                break
        rate = (algo.num_env_steps_sampled_lifetime - before) / elapsed
        return {
            "steps_per_s": round(rate),
            "stages": {name: round(value / elapsed, 3) for name, value in stages.items()},
            "load_average_1min": round(os.getloadavg()[0], 1),
        }
    finally:
        algo.stop()


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown table of the rates: a row per environment, algorithm and number of EnvRunners."""
    envs = sorted({row["envs"] for row in rows})
    rates: dict[tuple[str, str, int], dict[int, int]] = {}
    for row in rows:
        rates.setdefault((row["environment"], row["algorithm"], row["runners"]), {})[row["envs"]] = row["steps_per_s"]
    header = ["environment", "algorithm", "EnvRunners", *(f"{n} env{'s' * (n > 1)}" for n in envs)]
    cells = [[*map(str, kind), *(f"{own[n]:,}" if n in own else "–" for n in envs)] for kind, own in rates.items()]
    return "\n".join(markdown_table(header, cells, num_right=1 + len(envs)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark with the options of the command line."""

    def numbers(text: str) -> list[int]:
        return [int(each) for each in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runners", type=numbers, default=[0, 1, 2])
    parser.add_argument("--envs", type=numbers, default=[1, 16, 64])
    parser.add_argument("--algorithms", type=lambda text: text.split(","), default=["PPO", "IMPALA"])
    parser.add_argument("--environments", type=lambda text: text.split(","), default=list(ENVIRONMENTS))
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a measurement")
    parser.add_argument("--journal", type=Path, default=JOURNAL)
    args = parser.parse_args(arguments)
    journal = Journal(args.journal, harness.commit())
    rows = []
    with contextlib.ExitStack() as stack:
        if max(args.runners):
            import ray  # pyright: ignore[reportMissingImports]

            use_whole_cores()
            ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, configure_logging=False)
            stack.callback(ray.shutdown)
        for environment in args.environments:
            for algorithm in args.algorithms:
                for runners in args.runners:
                    for envs in args.envs:
                        run = {"environment": environment, "algorithm": algorithm, "runners": runners, "envs": envs}
                        cell = (algorithm, environment, runners, envs, args.seconds)
                        rows.append(journal.once(run, lambda cell=cell: measure(*cell)))
                        print(rows[-1], flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
