"""Learning tests: trains several seeds on an environment until the mean return reaches a target.

    python -m bench.learning --env gymnax/CartPole-v1
    python -m bench.learning --env gymnax/CartPole-v1 --target 490 --within 500000 --seeds 3
    python -m bench.learning --only DQN:gymnax/CartPole-v1,SAC:gymnax/Pendulum-v1,TQC:gymnax/Pendulum-v1
    python -m bench.learning --rllib-settings --env Pendulum-v1
    python -m bench.learning --compare-drivers
    python -m bench.learning --algorithm DQN --env gymnax/CartPole-v1 --hold 400 --from 150000 --until 400000

The algorithm's tuned settings (``jaxrl list tuned``) name settings, targets and steps. `run_seeds` trains the runs: on
JAX environments all seeds are one program, on others they train one after the other.

Option ``--json FILE`` appends each finished run to FILE as a line of JSON, with its commit; runs that FILE contains are
not repeated. The runs behind the tuned settings are in ``bench/learning.jsonl``. Option ``--checkpoints DIR`` keeps the
files of runs in DIR; the same command then continues after a kill.

A seed passes if ``env_runners/episode_return_mean`` reaches the target within the env steps. This is the mean of the
last 100 finished episodes; for SAC, TD3 and TQC of the last 5, as in RLlib's example, which trains for 100 episodes.
If returns are noisy, 100 episodes reach a target by luck. Then the target has a maximum standard error: when the mean
in training is at the target, episodes with exploration are evaluated until their mean has this standard error, and this
mean counts. Exits with 1 if more than one seed fails, or if all fail.

With ``--hold MEAN``, all seeds train for ``--until`` env steps. A seed passes if its mean return is never below MEAN
after ``--from`` env steps. ``--compare-drivers`` trains CartPole-v1 on the device and through gymnasium with the same
settings. It exits with 1 if the mean areas under their learning curves differ by 10 % or more.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import re
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench import harness
from bench.journal import Journal
from jaxrl_stack.algorithms.registry import get_algorithm_config_class, tuned_evidence, tuned_settings
from jaxrl_stack.algorithms.tuned_records import Measured
from jaxrl_stack.runs.curves import RETURN
from jaxrl_stack.runs.run import Run
from jaxrl_stack.runs.seeds import run_seeds

STEPS = "num_env_steps_sampled_lifetime"


@dataclasses.dataclass(frozen=True)
class Criterion:
    """Goal of a seed: a mean return within a number of env steps.

    Args:
        target: The mean return.
        within: The env steps.
        standard_error: Maximum standard error of an evaluated mean return. None counts the mean in training.
    """

    target: float
    within: int
    standard_error: float | None = None
    passed = "reached"

    @property
    def identity(self) -> dict[str, Any]:
        """Part of a journal's line that identifies the goal."""
        certain = {} if self.standard_error is None else {"standard_error": self.standard_error}
        return {"target": self.target, "within": self.within, **certain}

    def __str__(self) -> str:
        return f"reach {self.target:g} within {self.within:,} steps"

    def prepared(self, config: Any) -> Any:
        """The config with the evaluations that the goal needs."""
        if self.standard_error is None:
            return config
        certain = CertainReturn(self.target, self.standard_error)
        return config.copy(copy_frozen=False).update_from_dict(EVALUATION).callbacks(on_train_result=certain)

    def train(self, config: Any, seeds: Sequence[int], path: Path | None = None) -> list[dict[str, Any]]:
        """Trains seeds until each has reached the target or the limit.

        Args:
            config: Config of all seeds, without the evaluations that the goal needs.
            seeds: The seeds.
            path: Folder of the runs. None keeps no files.

        Returns:
            Numbers of each seed up to its end; see `end_of`.
        """
        runs = train_seeds(self.prepared(config), seeds, {self._key: self.target, STEPS: self.within}, path)
        return [self.end_of(run, len(runs)) for run in runs]

    @property
    def _key(self) -> str:
        """Name of the mean return."""
        return RETURN if self.standard_error is None else CERTAIN_RETURN

    def end_of(self, run: Run, num_runs: int = 1) -> dict[str, Any]:
        """Numbers of a run up to the iteration in which it reaches the target or the limit.

        Args:
            run: The run; members of a population continue to train after that iteration.
            num_runs: Number of runs that are one program.

        Returns:
            Whether it reached the target, its best mean return, env steps and seconds.
        """
        means, steps = numbers(run, self._key), numbers(run, STEPS)
        # A member that has diverged has neither.
        ends = np.flatnonzero((means >= self.target) | (steps >= self.within))
        end = int(ends[0]) if len(ends) else len(steps) - 1
        best = float(np.fmax.reduce(means[: end + 1], initial=-np.inf))
        return {
            "reached": best >= self.target and bool(steps[end] <= self.within),
            "best_return": round(best, 2),
            "env_steps": int(steps[end]),
            "seconds": seconds_of(run, end, num_runs),
        }


@dataclasses.dataclass(frozen=True)
class Hold:
    """Goal of a seed: a mean return that stays above a bound.

    Args:
        mean: The bound.
        first: Env steps after which it counts.
        until: Env steps to train.
    """

    mean: float
    first: int
    until: int
    passed = "held"

    @property
    def identity(self) -> dict[str, Any]:
        """Part of a journal's line that identifies the goal."""
        return {"hold": self.mean, "from": self.first, "until": self.until}

    def __str__(self) -> str:
        return f"hold {self.mean:g} from {self.first:,} to {self.until:,} steps"

    def prepared(self, config: Any) -> Any:
        """The config itself: the goal needs no evaluations."""
        return config

    def train(self, config: Any, seeds: Sequence[int], path: Path | None = None) -> list[dict[str, Any]]:
        """Trains seeds to the end; see `Criterion.train`.

        Returns:
            Numbers of each seed: whether its mean return held, the lowest one, env steps and seconds.
        """
        runs = train_seeds(config, seeds, {STEPS: self.until}, path)
        return [self.end_of(run, len(runs)) for run in runs]

    def end_of(self, run: Run, num_runs: int = 1) -> dict[str, Any]:
        """Numbers of a finished run; see `Criterion.end_of`. Iterations without a mean return do not hold."""
        steps, means = numbers(run, STEPS), np.nan_to_num(numbers(run, RETURN), nan=-np.inf)
        least = float(means[steps >= self.first].min())
        measured = {"held": least >= self.mean, "least_return": round(least, 2), "env_steps": int(steps[-1])}
        return {**measured, "seconds": seconds_of(run, -1, num_runs)}


def criteria(algorithm: str) -> dict[str, Criterion]:
    """Environment -> goal, of all measured tuned settings of an algorithm."""
    found = tuned_evidence(algorithm).items()
    return {env: Criterion(of.target, of.within, of.standard_error) for env, of in found if isinstance(of, Measured)}


CRITERIA = {
    algorithm: criteria(algorithm) for algorithm in ("PPO", "DQN", "SAC", "TD3", "TQC", "IMPALA", "APPO", "PQN")
}
"""Algorithm -> environment -> goal."""
RLLIB_CRITERIA = {"CartPole-v1": Criterion(450.0, 300_000), "Pendulum-v1": Criterion(-300.0, 400_000)}
"""Environment -> goal with `rllib_settings`."""
# RLlib's example averages the last 5 episodes; an iteration of SAC would take a second, however fast it is.
_LAST_FIVE = {"metrics_num_episodes_for_smoothing": 5, "min_time_s_per_iteration": 0}
REPORTING: dict[str, dict[str, Any]] = {name: {} for name in CRITERIA} | dict.fromkeys(
    ("SAC", "TD3", "TQC"), _LAST_FIVE
)
EVALUATION = {
    "evaluation_duration": 1_000,
    "evaluation_duration_unit": "episodes",
    "evaluation_config": {"explore": True},
}
"""Settings of runs with a maximum standard error."""
_LEAST_EVALUATIONS = 8
DRIVERS = ("gymnax/CartPole-v1", "CartPole-v1")
# Over 300,000 steps the area of one seed varies by 4 %, so the means of five seeds tell 10 % apart.
DRIVERS_WITHIN, LARGEST_DIFFERENCE = 300_000, 0.10


def rllib_settings() -> dict[str, dict[str, Any]]:
    """Environment -> settings of RLlib's examples, in addition to PPO's defaults."""
    from jaxrl_stack.algorithms.ppo.tuned import mean_std_filter

    return {
        "CartPole-v1": {
            "num_env_runners": 2,
            "lr": 3e-4,
            "num_epochs": 6,
            "vf_loss_coeff": 0.01,
            "model_config": {"fcnet_hiddens": [32], "fcnet_activation": "linear", "vf_share_layers": True},
        },
        "Pendulum-v1": {
            "num_env_runners": 2,
            "num_envs_per_env_runner": 20,
            "env_to_module_connector": mean_std_filter,
            "train_batch_size_per_learner": 1024,
            "minibatch_size": 128,
            "lr": 2e-4,
            "gamma": 0.95,
            "lambda_": 0.5,
            "model_config": {"fcnet_activation": "relu"},
        },
    }


def settings_of(env: str, algorithm: str = "PPO", rllib: bool = False) -> dict[str, Any]:
    """Returns the settings for training in an environment.

    Args:
        env: Its id.
        algorithm: Its name.
        rllib: Whether to take `rllib_settings` instead of the tuned ones.

    Raises:
        SystemExit: There are none.
    """
    known_settings = rllib_settings() if rllib else tuned_settings(algorithm)
    settings = known_settings.get(env)
    if settings is None:
        known = ", ".join(known_settings)
        raise SystemExit(f"--env {env}: there are no settings of {algorithm} for it. Choose one of {known}.")
    return {**settings, **REPORTING[algorithm]}


def config_of(env: str, settings: Mapping[str, Any], algorithm: str = "PPO") -> Any:
    """Creates the config of an algorithm for an environment."""
    return get_algorithm_config_class(algorithm)().environment(env).update_from_dict(dict(settings))


def train_seeds(config: Any, seeds: Sequence[int], until: Mapping[str, float], path: Path | None) -> list[Run]:
    """Trains seeds of a config until a goal, or continues their training.

    Args:
        config: Config of all seeds.
        seeds: The seeds.
        until: Goal of each seed, see `run_seeds`.
        path: Folder of the runs and their checkpoints. None keeps no files.

    Raises:
        KeyboardInterrupt: Ctrl-C has ended the training.
    """
    with tempfile.TemporaryDirectory() as temporary:
        own = config.copy(copy_frozen=False).reporting(results_dir=path or temporary)
        runs = run_seeds(own, seeds, until, checkpoint_seconds=300.0).runs
    if len(runs) < len(seeds):
        raise KeyboardInterrupt
    return list(runs)


def run_folder(path: Path | None, *parts: str, seeds: Sequence[int]) -> Path | None:
    """Folder of the runs of some seeds below `path`, such as ``PPO-CartPole-v1-0``; None for None."""
    words = [word for part in (*parts, *map(str, seeds)) for word in re.findall(r"[\w.]+", part)]
    return None if path is None else path / "-".join(words)


def numbers(run: Run, name: str) -> np.ndarray:
    """Returns a number that a run reported, by iteration, ``float64[iterations]``; NaN if it was not reported."""
    history = run.history
    return history[name] if name in history else np.full(len(history), np.nan)


def seconds_of(run: Run, iteration: int, num_runs: int) -> float:
    """Seconds of a run up to an iteration. Runs that are one program share its time."""
    return round(float(numbers(run, "time_total_s")[iteration]) / num_runs, 2)


CERTAIN_RETURN = "certain_return_mean"
"""Name of the number that `CertainReturn` adds to results."""


@dataclasses.dataclass(frozen=True)
class CertainReturn:
    """Callback that adds the mean return to results, evaluated if the mean in training is at the target.

    Args:
        target: Mean return.
        standard_error: Maximum standard error of evaluated means.
    """

    target: float
    standard_error: float

    def __call__(self, *, algorithm: Any, result: dict[str, Any], **kwargs: Any) -> None:
        mean = float(result["env_runners"]["episode_return_mean"])
        result[CERTAIN_RETURN] = evaluated_mean(algorithm, self.standard_error) if mean >= self.target else mean


def evaluated_mean(algo: Any, standard_error: float) -> float:
    """The mean return of as many episodes as this standard error of the mean requires."""
    means: list[float] = []
    while len(means) < _LEAST_EVALUATIONS or statistics.stdev(means) > standard_error * math.sqrt(len(means)):
        means.append(float(algo.evaluate()["env_runners"]["episode_return_mean"]))
    return statistics.mean(means)


def area(points: Sequence[tuple[int, float]], within: int) -> float:
    """Mean of a learning curve up to `within` steps: the integral by trapezoids, constant before the first point.

    Raises:
        ValueError: The curve ends earlier.
    """
    if not points or points[-1][0] < within:
        reached = points[-1][0] if points else 0
        raise ValueError(f"within={within}: the curve ends after {reached} steps")
    total, (last_x, last_y) = 0.0, (0, points[0][1])
    for x, y in points:
        if x >= within:
            y = last_y + (y - last_y) * (within - last_x) / (x - last_x)
            return (total + (within - last_x) * (last_y + y) / 2) / within
        total, last_x, last_y = total + (x - last_x) * (last_y + y) / 2, x, y
    raise AssertionError("unreachable: the last point lies at or after `within`")


def areas(config: Any, seeds: Sequence[int], within: int, path: Path | None = None) -> list[dict[str, float]]:
    """Area under the learning curve of each seed up to `within` env steps."""
    curves = [run.history.curve() for run in train_seeds(config, seeds, {STEPS: within}, path)]
    return [{"area": area(list(zip(curve.x.tolist(), curve.y.tolist(), strict=True)), within)} for curve in curves]


def compare_drivers(
    seeds: int,
    settings: Mapping[str, Any],
    within: int,
    journal: Journal,
    run: Mapping[str, Any] = {},
    path: Path | None = None,
) -> dict[str, Any]:
    """Compares the areas under the learning curves of both drivers.

    Args:
        seeds: Number of seeds.
        settings: Settings of both drivers.
        within: Env steps.
        journal: Journal of the areas.
        run: Additional identity of these areas in the journal.
        path: Folder of the runs. None keeps no files.

    Returns:
        ``{"areas": {env: [area of each seed]}, "difference": relative difference of the means}``.
    """
    found: dict[str, list[float]] = {}
    for env in DRIVERS:
        config = config_of(env, settings)
        runs = [{"env": env, "seed": seed, "within": within, "of": "area", **run} for seed in range(seeds)]

        def measure(chosen: list[int], env: str = env, config: Any = config) -> list[dict[str, float]]:
            return areas(config, chosen, within, run_folder(path, "areas", env, seeds=chosen))

        lines = journal.once_each(runs, measure, together=config.why_no_population() is None)
        found[env] = [line["area"] for line in lines]
        print({env: [round(each, 2) for each in found[env]]}, flush=True)
    device, host = (statistics.mean(found[env]) for env in DRIVERS)
    return {"areas": found, "difference": abs(host - device) / abs(device)}


@contextlib.contextmanager
def ray_for(settings: Mapping[str, Any]) -> Iterator[None]:
    """Runs Ray in the context if the settings have env runner actors: all seeds share one start."""
    if not (num_env_runners := settings.get("num_env_runners", 0)):
        yield
        return
    import ray

    ray.init(num_cpus=num_env_runners + 2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        yield
    finally:
        ray.shutdown()


def run_all_seeds(
    algorithm: str, env: str, args: argparse.Namespace, settings: Mapping[str, Any], journal: Journal
) -> bool:
    """Trains all seeds that the journal does not contain.

    Returns:
        Whether enough seeds pass.
    """
    goal = hold_of(args) if args.hold is not None else criterion_of(algorithm, env, args)
    identity = goal.identity | overrides(args) | ({"settings": "rllib"} if args.rllib_settings else {})
    runs = [{"algorithm": algorithm, "env": env, "seed": seed, **identity} for seed in range(args.seeds)]
    config = config_of(env, settings, algorithm)

    def measure(seeds: list[int]) -> list[dict[str, Any]]:
        return goal.train(config, seeds, run_folder(args.checkpoints, algorithm, env, seeds=seeds))

    together = goal.prepared(config).why_no_population() is None
    lines = journal.once_each(runs, measure, together=together)
    for line in lines:
        print(line, flush=True)
    num_passed = sum(line[goal.passed] for line in lines)
    print(f"{algorithm} on {env}: {num_passed} of {args.seeds} seeds {goal}")
    return num_passed >= max(1, args.seeds - 1)


def criterion_of(algorithm: str, env: str, args: argparse.Namespace) -> Criterion:
    """Returns the goal of the command line; by default the goal of the environment.

    Raises:
        SystemExit: One is missing.
    """
    known = (RLLIB_CRITERIA if args.rllib_settings else CRITERIA[algorithm]).get(env)
    target = args.target if args.target is not None else known.target if known else None
    within = args.within or (known.within if known else None)
    if target is None or within is None:
        raise SystemExit(f"--env {env}: give --target and --within.")
    return Criterion(target, within, known.standard_error if known else None)


def hold_of(args: argparse.Namespace) -> Hold:
    """Returns the goal of the option ``--hold``.

    Raises:
        SystemExit: Its env steps are missing.
    """
    if args.first is None or args.until is None or not 0 <= args.first < args.until:
        raise SystemExit(f"--hold {args.hold:g}: give --from and --until, which is more.")
    return Hold(args.hold, args.first, args.until)


def run_criteria(criteria: Sequence[tuple[str, str]], args: argparse.Namespace, journal: Journal) -> bool:
    """Tests several algorithms and environments in sequence.

    Returns:
        Whether all pass.
    """
    all_passed = True
    for algorithm, env in criteria:
        settings = {**settings_of(env, algorithm, args.rllib_settings), **overrides(args)}
        with ray_for(settings):
            all_passed &= run_all_seeds(algorithm, env, args, settings, journal)
    return all_passed


def run_comparison(args: argparse.Namespace, journal: Journal) -> bool:
    """Compares both drivers.

    Returns:
        Whether their areas agree.
    """
    settings = (
        settings_of("CartPole-v1", rllib=True) | {"num_env_runners": 0, "num_envs_per_env_runner": 8} | overrides(args)
    )
    within = args.within or DRIVERS_WITHIN
    with ray_for(settings):
        results = compare_drivers(args.seeds, settings, within, journal, overrides(args), args.checkpoints)
    means = ", ".join(f"{env} {statistics.mean(areas):.1f}" for env, areas in results["areas"].items())
    print(
        f"mean return over the first {within:,} steps, {args.seeds} seeds: {means}; "
        f"they differ by {results['difference']:.1%}"
    )
    return results["difference"] < LARGEST_DIFFERENCE


def overrides(args: argparse.Namespace) -> dict[str, int]:
    """Returns the settings that options of the command line change."""
    given = {"num_env_runners": args.env_runners, "num_envs_per_env_runner": args.envs}
    return {name: value for name, value in given.items() if value is not None}


def criterion_names(text: str) -> list[tuple[str, str]]:
    """``ALGORITHM:ENV,...`` as pairs.

    Raises:
        argparse.ArgumentTypeError: There is no such criterion.
    """
    names = [tuple(part.split(":", 1)) for part in text.split(",") if part]
    known = [(algorithm, env) for algorithm, mine in CRITERIA.items() for env in mine]
    if unknown := [":".join(name) for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"no criterion {unknown[0]!r}; choose from {', '.join(map(':'.join, known))}")
    return [(algorithm, env) for algorithm, env in names]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", choices=list(CRITERIA), default="PPO")
    parser.add_argument("--env", help="default: the algorithm's first")
    parser.add_argument(
        "--only",
        type=criterion_names,
        metavar="NAMES",
        help="ALGORITHM:ENV, comma-separated: several criteria instead of --algorithm and --env",
    )
    parser.add_argument("--target", type=float, help="mean return (default: the environment's)")
    parser.add_argument("--within", type=int, help="env steps (default: the environment's)")
    parser.add_argument("--hold", type=float, metavar="MEAN", help="mean return that must hold, instead of a target")
    parser.add_argument("--from", type=int, dest="first", metavar="STEPS", help="env steps from which on it must hold")
    parser.add_argument("--until", type=int, metavar="STEPS", help="env steps until which it must hold")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rllib-settings", action="store_true", help="PPO with those of RLlib's own examples")
    parser.add_argument("--compare-drivers", action="store_true", help="compare " + " and ".join(DRIVERS) + " instead")
    parser.add_argument("--env-runners", type=int, metavar="N", help="override num_env_runners")
    parser.add_argument("--envs", type=int, metavar="N", help="override num_envs_per_env_runner")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append each run to FILE; skip runs that it has")
    parser.add_argument(
        "--checkpoints", type=Path, metavar="DIR", help="keep files of runs in DIR; continue them after a kill"
    )
    args = parser.parse_args(arguments)

    journal = Journal(args.json, harness.commit())
    if args.compare_drivers:
        passed = run_comparison(args, journal)
    else:
        alone = (args.algorithm, args.env or next(iter(CRITERIA[args.algorithm])))
        passed = run_criteria(args.only or [alone], args, journal)
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
