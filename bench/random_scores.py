"""Mean returns of random actions, the low references of `jaxrl_stack.runs.score_references`.

    python -m bench.random_scores gymnax/Breakout-MinAtar Pendulum-v1 --json bench/random_scores.jsonl

Actions are uniform over the action space. Each task is a line of the JSON file, with the standard error of the mean;
tasks that the file contains are not measured again.
"""

from __future__ import annotations

import argparse
import functools
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import harness
from bench.journal import Journal

_NUM_EVALUATIONS = 20


def random_actions(env: Any, spaces: Any) -> Any:
    """The connector that replaces all actions by uniform ones."""
    from jaxrl_stack.connectors.module_to_env import RandomActions

    return RandomActions(epsilon=1.0)


def measure(task: str, num_episodes: int) -> dict[str, float]:
    """Mean return of random episodes and its standard error.

    Args:
        task: Name of the environment.
        num_episodes: Number of episodes, a multiple of 20.
    """
    from jaxrl_stack import PPOConfig

    duration = num_episodes // _NUM_EVALUATIONS
    config = PPOConfig().environment(task).rl_module(model_config={"fcnet_hiddens": [8]})
    config.evaluation(
        evaluation_duration=duration,
        evaluation_duration_unit="episodes",
        evaluation_sample_timeout_s=None,
        evaluation_config={
            "explore": True,
            "num_envs_per_env_runner": duration,
            "module_to_env_connector": random_actions,
        },
    )
    algo = config.build_algo()
    try:
        found = [algo.evaluate()["env_runners"] for _ in range(_NUM_EVALUATIONS)]
    finally:
        algo.stop()
    assert all(one["num_episodes"] == duration for one in found)
    means = [float(one["episode_return_mean"]) for one in found]
    error = statistics.stdev(means) / len(means) ** 0.5
    return {"mean": round(statistics.mean(means), 4), "standard_error": round(error, 4)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", metavar="TASK")
    parser.add_argument("--episodes", type=int, default=1_000, help="a multiple of 20")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append every task to FILE; skip those that it has")
    args = parser.parse_args(arguments)
    journal = Journal(args.json, harness.commit())
    for task in args.tasks:
        key = {"env": task, "episodes": args.episodes}
        print(journal.once(key, functools.partial(measure, task, args.episodes)), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
