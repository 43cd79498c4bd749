"""Final scores: trains algorithms with their tuned settings, and writes the scores of the final policies as JSON lines.

    python -m bench.scores run --tier A --results-dir results/scores
    python -m bench.scores run --only PPO:HalfCheetah-v5,DQN:CartPole-v1 --results-dir results/scores
    python -m bench.scores factors --results-dir results/factors

The same command continues after a kill: runs are those of `run_benchmark`. Finished runs are lines of
``bench/scores.jsonl`` (``--json``), with their commit, and are not trained again.

``factors`` repeats PPO's runs on MuJoCo tasks with one setting changed at a time.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import harness
from bench.journal import Journal
from bench.learning import run_folder
from jaxrl_stack.algorithms.ppo.tuned import normalized_rewards, returns_and_mean_std_filter
from jaxrl_stack.runs.origin import installed_versions

JOURNAL = Path(__file__).with_name("scores.jsonl")
_PACKAGES = ("jax", "flax", "optax", "gymnasium", "gymnax", "mujoco", "box2d")


@dataclasses.dataclass(frozen=True)
class Cell:
    """Runs of an algorithm on a task.

    Args:
        algorithm: Its name.
        task: The environment.
        steps: Env steps of each run.
        seeds: Their number.
        minutes: CPU minutes of a run.
        tier: "A" or "B".
    """

    algorithm: str
    task: str
    steps: int
    seeds: int
    minutes: float
    tier: str = "A"

    @property
    def name(self) -> str:
        return f"{self.algorithm}:{self.task}"


_MILLION = 1_000_000
CELLS = (
    Cell("PPO", "HalfCheetah-v5", _MILLION, 3, 6),
    Cell("PPO", "Hopper-v5", _MILLION, 3, 6),
    Cell("PPO", "Walker2d-v5", _MILLION, 3, 6),
    Cell("PPO", "InvertedPendulum-v5", _MILLION, 3, 6),
    Cell("PPO", "InvertedDoublePendulum-v5", _MILLION, 3, 6),
    Cell("PPO", "Reacher-v5", _MILLION, 3, 6),
    Cell("PPO", "Swimmer-v5", _MILLION, 3, 6),
    Cell("DQN", "CartPole-v1", 60_000, 5, 2),
    Cell("SAC", "Pendulum-v1", 20_000, 5, 2),
    Cell("TQC", "Pendulum-v1", 20_000, 5, 2),
    Cell("DQN", "MountainCar-v0", 120_000, 5, 3),
    Cell("DQN", "LunarLander-v3", 150_000, 5, 5),
    Cell("PPO", "LunarLander-v3", 700_000, 5, 3),
    Cell("SAC", "HalfCheetah-v5", 300_000, 3, 36),
    Cell("SAC", "Hopper-v5", 300_000, 3, 34),
    Cell("SAC", "LunarLanderContinuous-v3", 200_000, 3, 20),
    Cell("PPO", "gymnax/Freeway-MinAtar", 5 * _MILLION, 3, 10),
    Cell("PPO", "gymnax/SpaceInvaders-MinAtar", 5 * _MILLION, 3, 10),
    Cell("TQC", "HalfCheetah-v5", 300_000, 3, 40, "B"),
    Cell("SAC", "BipedalWalker-v3", 500_000, 3, 45, "B"),
    Cell("TQC", "BipedalWalker-v3", 500_000, 3, 60, "B"),
    Cell("PPO", "BipedalWalker-v3", 5 * _MILLION, 3, 20, "B"),
    Cell("SAC", "Walker2d-v5", 300_000, 3, 36, "B"),
    Cell("SAC", "Ant-v5", 300_000, 3, 36, "B"),
)
"""All cells, in the order in which they are trained."""

GREEDY = ("DQN", "SAC", "TQC")
"""Algorithms whose final policies act without exploration, as in the published scores."""


FACTORS: dict[str, Mapping[str, Any]] = {
    "rewards are normalised": {
        "env_to_module_connector": returns_and_mean_std_filter,
        "learner_connector": normalized_rewards,
    },
    "observations are not normalised": {"env_to_module_connector": None},
    "learning rate stays at 3e-4": {"lr": 3e-4},
    "standard deviation depends on the observation": {"model_config": {"free_log_std": False}},
    "gradients are not clipped": {"grad_clip": None},
    "initial weights of PyTorch": {
        "model_config": {
            "fcnet_kernel_initializer": None,
            "fcnet_kernel_initializer_kwargs": None,
            "fcnet_bias_initializer": None,
            "head_fcnet_kernel_initializer": None,
            "head_fcnet_kernel_initializer_kwargs": None,
            "head_fcnet_bias_initializer": None,
        }
    },
    "squared errors of values are clipped at 10": {"vf_clip_param": 10.0},
}
"""One change at a time of PPO's settings for MuJoCo -> the settings that it changes."""
FACTOR_TASKS = ("HalfCheetah-v5", "Hopper-v5")


class CpuSeconds:
    """Adds the CPU seconds of this process since the iteration before to each result."""

    def __init__(self):
        self._before = time.process_time()

    def __call__(self, *, result: dict[str, Any], **kwargs: Any) -> None:
        now = time.process_time()
        result["cpu_seconds"], self._before = now - self._before, now


def config_of(cell: Cell, changed: Mapping[str, Any] = {}) -> Any:
    """Returns the tuned config of a cell, with changed settings."""
    from jaxrl_stack.algorithms.registry import get_algorithm_config_class, tuned_settings

    settings = dict(tuned_settings(cell.algorithm).get(cell.task, {}))
    for name, value in changed.items():
        settings[name] = {**settings[name], **value} if isinstance(value, Mapping) else value
    config = get_algorithm_config_class(cell.algorithm)().environment(cell.task).update_from_dict(settings)
    acting = {"explore": False} if cell.algorithm in GREEDY else {}
    config.evaluation(evaluation_config={"num_envs_per_env_runner": 10, **acting})
    return config.callbacks(on_train_result=CpuSeconds())


def run_cell(cell: Cell, results: Path, journal: Journal, factor: str | None = None) -> None:
    """Trains the runs of a cell that the journal does not contain, and appends their scores."""
    from jaxrl_stack import run_benchmark

    config = config_of(cell, FACTORS[factor] if factor else {})

    def measure(seeds: list[int]) -> list[dict[str, Any]]:
        folder: Any = run_folder(results, factor or cell.algorithm, cell.task, seeds=seeds)
        done = run_benchmark(
            {cell.algorithm: config},
            cell.task,
            seeds=seeds,
            until={"num_env_steps_sampled_lifetime": cell.steps},
            results_dir=folder,
        )
        if not done.is_finished:
            raise KeyboardInterrupt
        pairs = zip(done.cells[0].runs, done.cells[0].scores, strict=True)
        return [measured(run, float(score), len(seeds)) for run, score in pairs]

    keys = [key_of(cell, seed, factor) for seed in range(cell.seeds)]
    for line in journal.once_each(keys, measure, together=config.why_no_population() is None):
        print(line, flush=True)


def key_of(cell: Cell, seed: int, factor: str | None = None) -> dict[str, Any]:
    """Returns the entries of a journal line that identify a run."""
    key = {"algorithm": cell.algorithm, "env": cell.task, "seed": seed, "steps": cell.steps}
    return key | ({"changed": factor} if factor else {})


def measured(run: Any, score: float, num_runs: int = 1) -> dict[str, Any]:
    """Returns the numbers of a finished run for the journal.

    Args:
        run: A `Run`.
        score: Mean return of evaluation episodes of its final policy.
        num_runs: Number of runs that were one program: the seconds are divided by it.
    """
    from jaxrl_stack.runs.plots import mean_of_end

    curve = run.history.curve()
    seconds = {name: float(run.history.curve(name).y.sum()) for name in ("cpu_seconds", "time_this_iter_s")}
    return {
        "score": _rounded(score),
        "end_of_curve": _rounded(mean_of_end(curve)),
        "best_of_curve": _rounded(float(curve.y.max())),
        "env_steps": int(run.history.last["num_env_steps_sampled_lifetime"]),
        "cpu_seconds": _rounded(seconds["cpu_seconds"] / num_runs),
        "seconds": _rounded(seconds["time_this_iter_s"] / num_runs),
        "versions": installed_versions(_PACKAGES),
    }


def _rounded(value: float) -> float | None:
    return round(value, 2) if math.isfinite(value) else None


def chosen_cells(args: argparse.Namespace) -> list[Cell]:
    """Returns the cells that the command line selects.

    Raises:
        SystemExit: There is no such cell.
    """
    names = args.only.split(",") if args.only else []
    known = {cell.name: cell for cell in CELLS}
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"--only {unknown[0]}: choose from {', '.join(known)}")
    return [known[name] for name in names] or [cell for cell in CELLS if cell.tier in args.tier]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["run", "factors"])
    parser.add_argument("--tier", default="A", help="A, B or AB")
    parser.add_argument("--only", metavar="NAMES", help="ALGORITHM:TASK, comma-separated, instead of a tier")
    parser.add_argument("--results-dir", type=Path, default=Path("results/scores"))
    parser.add_argument("--json", type=Path, default=JOURNAL, metavar="FILE")
    args = parser.parse_args(arguments)
    journal = Journal(args.json, harness.commit())
    if args.command == "run":
        for cell in chosen_cells(args):
            run_cell(cell, args.results_dir, journal)
    else:
        known = {cell.name: cell for cell in CELLS}
        for factor in FACTORS:
            for task in FACTOR_TASKS:
                cell = dataclasses.replace(known[f"PPO:{task}"], seeds=1)
                run_cell(cell, args.results_dir, journal, factor)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
