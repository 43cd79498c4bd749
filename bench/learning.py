"""Does it learn? Runs several seeds of an environment with its settings until the mean return reaches a target.

    python -m bench.learning --env gymnax/CartPole-v1
    python -m bench.learning --env gymnax/CartPole-v1 --target 490 --within 500000 --seeds 3
    python -m bench.learning --only DQN:gymnax/CartPole-v1,SAC:gymnax/Pendulum-v1,TQC:Pendulum-v1
    python -m bench.learning --rllib-settings --env Pendulum-v1
    python -m bench.learning --compare-drivers
    python -m bench.learning --algorithm DQN --env gymnax/CartPole-v1 --hold 400 --from 150000 --until 400000

Settings are the tuned ones of the algorithm, targets and steps those that stand beside them (``jaxrl list tuned``).
With ``--json FILE`` every run is appended to FILE as a line of JSON, with its commit, as soon as it is done; runs
that stand there already are not run again, so that a later day goes on where this one stopped. Those that the tuned
settings' results come from are in ``bench/learning.jsonl``. With ``--checkpoints DIR`` a run of hours is kept in DIR
while it lasts, and goes on from there when the same command is given again.

A seed passes if ``env_runners/episode_return_mean`` (the last 100 finished episodes; for SAC and TQC the last 5, as in
RLlib's example: all of its training is 100 episodes) reaches the target within that many env steps. Where returns are
noisy, 100 episodes reach it by luck: beside the target of such an environment stands the largest standard error, and
whenever the mean in training is at the target, as many episodes as it takes are evaluated, with exploration; their
mean counts. Exits with 1 unless all but one seed pass (one must).

With ``--hold MEAN`` a seed passes if the mean return is never below MEAN, from the env steps ``--from`` on to those of
``--until``, to which all seeds train. ``--compare-drivers`` trains CartPole-v1 compiled on the device and through
gymnasium with the same settings, and exits with 1 if the areas under their learning curves, means over the seeds,
differ by 10 % or more.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import math
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import harness
from jaxrl_stack.algorithms.registry import tuned_evidence, tuned_settings
from jaxrl_stack.algorithms.tuned_records import Measured


@dataclasses.dataclass(frozen=True)
class Criterion:
    """What counts as solved: a mean return within so many env steps.

    Args:
        target: The mean return.
        within: The env steps.
        standard_error: Of the mean, at most, where the last episodes of training are too few; None where they do.
    """

    target: float
    within: int
    standard_error: float | None = None


@dataclasses.dataclass(frozen=True)
class Hold:
    """What counts as holding: a mean return that is not fallen below any more.

    Args:
        mean: The mean return.
        first: Env steps from which on it counts.
        until: Env steps to train.
    """

    mean: float
    first: int
    until: int


def criteria(algorithm: str) -> dict[str, Criterion]:
    """Environment → what counts as solved, of all that was measured with an algorithm's tuned settings."""
    found = tuned_evidence(algorithm).items()
    return {env: Criterion(of.target, of.within, of.standard_error) for env, of in found if isinstance(of, Measured)}


CRITERIA = {algorithm: criteria(algorithm) for algorithm in ("PPO", "DQN", "SAC", "TQC", "IMPALA", "APPO", "PQN")}
"""Algorithm → environment → what counts as solved."""
RLLIB_CRITERIA = {"CartPole-v1": Criterion(450.0, 300_000), "Pendulum-v1": Criterion(-300.0, 400_000)}
"""The same for `rllib_settings`."""
# RLlib's example averages the last 5 episodes; an iteration of SAC would take a second, however fast it is.
_LAST_FIVE = {"metrics_num_episodes_for_smoothing": 5, "min_time_s_per_iteration": 0}
REPORTING: dict[str, dict[str, Any]] = {name: {} for name in CRITERIA} | {"SAC": _LAST_FIVE, "TQC": _LAST_FIVE}
EVALUATION = {
    "evaluation_duration": 1_000,
    "evaluation_duration_unit": "episodes",
    "evaluation_config": {"explore": True},
}
"""Settings of runs that evaluate, until the mean return is known well enough."""
_LEAST_EVALUATIONS = 8
DRIVERS = ("gymnax/CartPole-v1", "CartPole-v1")
# Over 300,000 steps the area of one seed varies by 4 %, so the means of five seeds tell 10 % apart.
DRIVERS_WITHIN, LARGEST_DIFFERENCE = 300_000, 0.10


@dataclasses.dataclass(frozen=True)
class Journal:
    """Runs that are done, a line of JSON each.

    Args:
        path: The file; None keeps nothing.
        commit: What runs are made with from now on.
    """

    path: Path | None = None
    commit: str | None = None

    def once(self, run: Mapping[str, Any], measure: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """What a run measured, from the file if it stands there.

        Args:
            run: What tells it from other runs; JSON.
            measure: Makes it.
        """
        return self.find(run) or self.append(run, measure())

    def find(self, run: Mapping[str, Any]) -> dict[str, Any] | None:
        """What stands in the file of a run, or None."""
        for line in self.path.read_text().splitlines() if self.path and self.path.exists() else ():
            done = json.loads(line)
            if done["run"] == run:
                return {**run, **done["measured"], "commit": done["commit"]}
        return None

    def append(self, run: Mapping[str, Any], measured: Mapping[str, Any]) -> dict[str, Any]:
        """Write what a run measured into the file.

        Returns:
            What `find` returns from now on.
        """
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as file:
                file.write(json.dumps({"commit": self.commit, "run": run, "measured": measured}) + "\n")
        return {**run, **measured, "commit": self.commit}


@dataclasses.dataclass(frozen=True)
class Unfinished:
    """Runs that are not done yet, a folder each: a checkpoint, and in ``progress.json`` how far it got.

    Args:
        path: Their folder; None keeps nothing.
        every_s: Seconds from one checkpoint of a run to the next.
    """

    path: Path | None = None
    every_s: float = 300.0

    def resume(self, run: Mapping[str, Any], algo: Any) -> dict[str, Any]:
        """How far a run got, from its start if it is not there; `algo` takes over its checkpoint.

        Raises:
            SystemExit: What is there is another run of this algorithm, environment and seed.
        """
        progress = {"run": dict(run), "best": float("-inf"), "steps": 0, "seconds": 0.0, "curve": []}
        if not self.path or not (path := self._folder(run) / "progress.json").exists():
            return progress
        progress = json.loads(path.read_text())
        if progress["run"] != run:
            raise SystemExit(
                f"--checkpoints {self.path}: {path} is of the run {progress['run']}; choose another folder."
            )
        algo.restore_from_path(path.parent / str(progress["steps"]))
        return progress

    def save(self, algo: Any, progress: Mapping[str, Any]) -> None:
        """Keep a run as it is now. An interruption meanwhile leaves what was kept before."""
        if not self.path:
            return
        folder = self._folder(progress["run"])
        algo.save_to_path(folder / str(progress["steps"]))
        (folder / "progress.new").write_text(json.dumps(progress))
        (folder / "progress.new").replace(folder / "progress.json")
        for old in folder.iterdir():
            if old.is_dir() and old.name != str(progress["steps"]):
                shutil.rmtree(old)
        print({name: progress[name] for name in ("steps", "best", "seconds")}, flush=True)

    def remove(self, run: Mapping[str, Any]) -> None:
        """A run is done."""
        if self.path:
            shutil.rmtree(self._folder(run), ignore_errors=True)

    def _folder(self, run: Mapping[str, Any]) -> Path:
        assert self.path
        return self.path / "-".join((run["algorithm"], run["env"].replace("/", "-"), str(run["seed"])))


def rllib_settings() -> dict[str, dict[str, Any]]:
    """What RLlib's own examples train these environments with; everything else is PPO's default."""
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
    """The settings to train an environment with.

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


@contextlib.contextmanager
def building(env: str, seed: int, settings: Mapping[str, Any], algorithm: str = "PPO") -> Iterator[Any]:
    """An algorithm on an environment, stopped at the end."""
    from jaxrl_stack.algorithms.registry import get_algorithm_config_class

    config = get_algorithm_config_class(algorithm)().environment(env).debugging(seed=seed)
    algo = config.update_from_dict(dict(settings)).build_algo()
    try:
        yield algo
    finally:
        algo.stop()


def run_seed(
    env: str,
    seed: int,
    settings: Mapping[str, Any],
    target: float,
    within: int,
    algorithm: str = "PPO",
    unfinished: Unfinished = Unfinished(),
    run: Mapping[str, Any] = {},
    standard_error: float | None = None,
) -> dict[str, Any]:
    """Train one seed until the target or the limit, whichever comes first; `run` says which one, to `unfinished`."""
    if standard_error is not None:
        settings = {**settings, **EVALUATION}
    started = time.perf_counter()
    with building(env, seed, settings, algorithm) as algo:
        return train(algo, target, within, unfinished, run, standard_error, started)


def train(
    algo: Any,
    target: float,
    within: int,
    unfinished: Unfinished = Unfinished(),
    run: Mapping[str, Any] = {},
    standard_error: float | None = None,
    started: float | None = None,
) -> dict[str, Any]:
    """Train an algorithm until the target or the limit, whichever comes first.

    Args:
        algo: The algorithm, newly built.
        target: Mean return.
        within: Env steps.
        unfinished: Keeps checkpoints of the run.
        run: What tells it from other runs there.
        standard_error: Of the mean, at most; see `Criterion`.
        started: `time.perf_counter()` from which the seconds count; None: now.
    """
    started = time.perf_counter() if started is None else started
    saved = started
    progress = unfinished.resume(run, algo)
    before = progress["seconds"]
    while progress["best"] < target and progress["steps"] < within:
        result = algo.train()
        mean = float(result["env_runners"]["episode_return_mean"])
        if standard_error is not None and mean >= target:
            mean = evaluated_mean(algo, standard_error)
        progress["best"] = max(progress["best"], mean) if mean == mean else progress["best"]
        progress["steps"] = int(result["num_env_steps_sampled_lifetime"])
        progress["seconds"] = before + time.perf_counter() - started
        if time.perf_counter() - saved > unfinished.every_s:
            progress["curve"].append((progress["steps"], round(mean, 2)))
            unfinished.save(algo, progress)
            saved = time.perf_counter()
    return {
        "reached": progress["best"] >= target and progress["steps"] <= within,
        "best_return": round(progress["best"], 2),
        "env_steps": progress["steps"],
        "seconds": round(before + time.perf_counter() - started, 2),
    }


def evaluated_mean(algo: Any, standard_error: float) -> float:
    """The mean return of so many episodes that its standard error is at most this."""
    means: list[float] = []
    while len(means) < _LEAST_EVALUATIONS or statistics.stdev(means) > standard_error * math.sqrt(len(means)):
        means.append(float(algo.evaluate()["env_runners"]["episode_return_mean"]))
    return statistics.mean(means)


def hold_seed(env: str, seed: int, settings: Mapping[str, Any], hold: Hold, algorithm: str) -> dict[str, Any]:
    """Train one seed to the end, and see whether its mean return holds."""
    started, least, steps = time.perf_counter(), float("inf"), 0
    with building(env, seed, settings, algorithm) as algo:
        while steps < hold.until:
            result = algo.train()
            steps = int(result["num_env_steps_sampled_lifetime"])
            mean = float(result["env_runners"]["episode_return_mean"])
            if steps >= hold.first:
                least = min(least, mean if mean == mean else float("-inf"))
    return {
        "held": least >= hold.mean,
        "least_return": round(least, 2),
        "env_steps": steps,
        "seconds": round(time.perf_counter() - started, 2),
    }


def curve(env: str, seed: int, settings: Mapping[str, Any], within: int) -> list[tuple[int, float]]:
    """A learning curve: (env steps, mean return) of each iteration that has finished episodes."""
    points: list[tuple[int, float]] = []
    with building(env, seed, settings) as algo:
        steps = 0
        while steps < within:
            result = algo.train()
            steps = int(result["num_env_steps_sampled_lifetime"])
            mean = result["env_runners"]["episode_return_mean"]
            if mean == mean:
                points.append((steps, float(mean)))
    return points


def area(points: Sequence[tuple[int, float]], within: int) -> float:
    """The mean height of a curve up to `within` steps (trapezoids; level before its first point).

    Raises:
        ValueError: The curve ends before.
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


def area_of(env: str, seed: int, settings: Mapping[str, Any], within: int) -> dict[str, float]:
    """The area under the learning curve of a seed."""
    return {"area": area(curve(env, seed, settings, within), within)}


def compare_drivers(
    seeds: int, settings: Mapping[str, Any], within: int, journal: Journal = Journal(), run: Mapping[str, Any] = {}
) -> dict[str, Any]:
    """Areas under the learning curves of both drivers, and how much their means over the seeds differ.

    Args:
        seeds: Number of seeds.
        settings: Of both.
        within: Env steps.
        journal: Where each area is kept.
        run: What tells these areas from others there.

    Returns:
        ``{"areas": {env: [area of each seed]}, "difference": of the means, relative to the device driver's}``.
    """
    areas: dict[str, list[float]] = {env: [] for env in DRIVERS}
    for seed in range(seeds):
        for env, mine in areas.items():
            key = {"env": env, "seed": seed, "within": within, "of": "area", **run}
            mine.append(journal.once(key, functools.partial(area_of, env, seed, settings, within))["area"])
        print({"seed": seed, **{env: round(mine[-1], 2) for env, mine in areas.items()}}, flush=True)
    device, host = (statistics.mean(areas[env]) for env in DRIVERS)
    return {"areas": areas, "difference": abs(host - device) / abs(device)}


@contextlib.contextmanager
def ray_for(settings: Mapping[str, Any]) -> Iterator[None]:
    """Ray while the context lasts, if the settings have env runner actors: one start for all the seeds."""
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
    """Every seed against the criterion: whether enough of them pass."""
    if args.hold is not None:
        return hold_all_seeds(algorithm, env, args, settings, journal)
    criterion = (RLLIB_CRITERIA if args.rllib_settings else CRITERIA[algorithm]).get(env)
    target = args.target if args.target is not None else criterion.target if criterion else None
    within = args.within or (criterion.within if criterion else None)
    if target is None or within is None:
        raise SystemExit(f"--env {env}: give --target and --within.")
    standard_error = criterion.standard_error if criterion else None
    passed, unfinished = 0, Unfinished(args.checkpoints)
    for seed in range(args.seeds):
        run = {"algorithm": algorithm, "env": env, "seed": seed, "target": target, "within": within}
        run |= overrides(args) | ({"settings": "rllib"} if args.rllib_settings else {})
        run |= {} if standard_error is None else {"standard_error": standard_error}
        trained = functools.partial(
            run_seed, env, seed, settings, target, within, algorithm, unfinished, run, standard_error
        )
        result = journal.once(run, trained)
        unfinished.remove(run)
        print(result, flush=True)
        passed += result["reached"]
    print(f"{algorithm} on {env}: {passed} of {args.seeds} seeds reach {target:g} within {within:,} steps")
    return passed >= max(1, args.seeds - 1)


def hold_all_seeds(
    algorithm: str, env: str, args: argparse.Namespace, settings: Mapping[str, Any], journal: Journal
) -> bool:
    """Every seed to the end: whether enough of them hold."""
    if args.first is None or args.until is None or not 0 <= args.first < args.until:
        raise SystemExit(f"--hold {args.hold:g}: give --from and --until, which is more.")
    hold, passed = Hold(args.hold, args.first, args.until), 0
    for seed in range(args.seeds):
        run = {"algorithm": algorithm, "env": env, "seed": seed, "hold": hold.mean, "from": hold.first}
        run |= {"until": hold.until, **overrides(args)} | ({"settings": "rllib"} if args.rllib_settings else {})
        result = journal.once(run, functools.partial(hold_seed, env, seed, settings, hold, algorithm))
        print(result, flush=True)
        passed += result["held"]
    print(
        f"{algorithm} on {env}: {passed} of {args.seeds} seeds hold {hold.mean:g} from {hold.first:,} to "
        f"{hold.until:,} steps"
    )
    return passed >= max(1, args.seeds - 1)


def run_criteria(criteria: Sequence[tuple[str, str]], args: argparse.Namespace, journal: Journal) -> bool:
    """Several criteria, one after the other: whether all of them are met."""
    all_passed = True
    for algorithm, env in criteria:
        settings = {**settings_of(env, algorithm, args.rllib_settings), **overrides(args)}
        with ray_for(settings):
            all_passed &= run_all_seeds(algorithm, env, args, settings, journal)
    return all_passed


def run_comparison(args: argparse.Namespace, journal: Journal) -> bool:
    """Both drivers: whether their areas agree."""
    settings = (
        settings_of("CartPole-v1", rllib=True) | {"num_env_runners": 0, "num_envs_per_env_runner": 8} | overrides(args)
    )
    within = args.within or DRIVERS_WITHIN
    with ray_for(settings):
        results = compare_drivers(args.seeds, settings, within, journal, overrides(args))
    means = ", ".join(f"{env} {statistics.mean(areas):.1f}" for env, areas in results["areas"].items())
    print(
        f"mean return over the first {within:,} steps, {args.seeds} seeds: {means}; "
        f"they differ by {results['difference']:.1%}"
    )
    return results["difference"] < LARGEST_DIFFERENCE


def overrides(args: argparse.Namespace) -> dict[str, int]:
    """Settings of the command line."""
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
    """Run the command line."""
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
    parser.add_argument("--json", type=Path, metavar="FILE", help="append every run to FILE; skip those that it holds")
    parser.add_argument(
        "--checkpoints", type=Path, metavar="DIR", help="keep runs in DIR until they are done; go on there"
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
