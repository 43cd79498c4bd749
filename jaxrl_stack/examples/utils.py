"""Command-line options of RLlib's example scripts, and functions that train a config with these options."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_stack.utils.metrics import (
    ENV_RUNNER_RESULTS,
    EPISODE_MODULE_RETURN_MEAN,
    EPISODE_RETURN_MEAN,
    EVALUATION_RESULTS,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
)
from jaxrl_stack.utils.serialization import convert_numpy_to_python_primitives
from jaxrl_stack.utils.test_utils import check_learning_achieved

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig

_ITERATION = "training_iteration"
_RETURN = f"{ENV_RUNNER_RESULTS}/{EPISODE_RETURN_MEAN}"
_MODULE_RETURNS = f"{ENV_RUNNER_RESULTS}/{EPISODE_MODULE_RETURN_MEAN}"
_STEPS = f"{ENV_RUNNER_RESULTS}/{NUM_ENV_STEPS_SAMPLED_LIFETIME}"


def _duration(text: str) -> int | str:
    return text if text == "auto" else int(text)


# fmt: off
_OPTIONS: tuple[tuple[str, Any, Any, str], ...] = (
    ("--algo", str, "PPO", "name of the algorithm"),
    ("--framework", ("jax", "torch", "tf", "tf2"), "jax", "'torch' is understood as 'jax'"),
    ("--env", str, None, "name of the environment, where the script sets none"),
    ("--num-env-runners", int, None, "actors that sample; None: the config's"),
    ("--num-envs-per-env-runner", int, None, "environments of each; None: the config's"),
    ("--num-agents", int, 0, "agents of the environment, for scripts that have several; 0: one, without policies"),
    ("--evaluation-num-env-runners", int, 0, "actors that evaluate"),
    ("--evaluation-interval", int, 0, "evaluate every so many iterations; 0: never"),
    ("--evaluation-duration", _duration, 10, "how much, or 'auto': as long as the training step takes"),
    ("--evaluation-duration-unit", ("episodes", "timesteps"), "episodes", "unit of that"),
    ("--evaluation-parallel-to-training", bool, False, "evaluate while the next training step runs"),
    ("--output", str, None, "folder for the sampled episodes"),
    ("--log-level", ("INFO", "DEBUG", "WARN", "ERROR"), None, "level of the loggers; None: the config's"),
    ("--no-tune", bool, False, "call train() in a loop instead of using a tuner"),
    ("--num-samples", int, 1, "trials of the tuner"),
    ("--max-concurrent-trials", int, None, "trials at the same time; None: as many as fit"),
    ("--verbose", int, 2, "how much the tuner prints"),
    ("--checkpoint-freq", int, 0, "checkpoint every so many iterations; 0: never"),
    ("--checkpoint-at-end", bool, False, "checkpoint at the end"),
    ("--tune-max-report-freq", int, 5, "seconds between the tuner's reports"),
    ("--wandb-key", str, None, "key for Weights & Biases"),
    ("--wandb-project", str, None, "project there"),
    ("--wandb-run-name", str, None, "name of the run there"),
    ("--as-test", bool, False, "fail if the reward is not reached"),
    ("--as-release-test", bool, False, "likewise, and write a summary to the file that TEST_OUTPUT_JSON names"),
    ("--num-learners", int, None, "Learner actors; None: the config's"),
    ("--num-cpus-per-learner", float, None, "CPUs of each; None: the config's"),
    ("--num-gpus-per-learner", float, None, "GPUs of each; None: the config's, or the accelerator that there is"),
    ("--num-aggregator-actors-per-learner", int, None, "aggregator actors of each; None: the config's"),
    ("--num-cpus", int, 0, "CPUs of the Ray that is started; 0: all"),
    ("--num-gpus", int, None, "of the old API stack: use --num-gpus-per-learner"),
    ("--old-api-stack", bool, False, "there is one API stack, the new one"),
    ("--enable-new-api-stack", bool, False, argparse.SUPPRESS),
    ("--local-mode", bool, False, argparse.SUPPRESS),
)
# fmt: on
"""Option, type (bool: a flag; a tuple: choices), default, help."""

_REFUSED = {
    "num_gpus": "use --num-gpus-per-learner=1 and --num-learners",
    "old_api_stack": "there is one API stack, the new one; leave it out",
    "enable_new_api_stack": "there is no other API stack; leave it out",
    "local_mode": "Ray has no local mode any more; use --num-env-runners=0 --num-learners=0 to debug",
}


def add_rllib_example_script_args(
    parser: argparse.ArgumentParser | None = None,
    default_reward: float = 100.0,
    default_iters: int = 200,
    default_timesteps: int = 100000,
) -> argparse.ArgumentParser:
    """Adds the options that all example scripts share to an argument parser.

    Args:
        parser: The parser; None makes one.
        default_reward: Default of ``--stop-reward``, the mean return at which to stop.
        default_iters: Default of ``--stop-iters``.
        default_timesteps: Default of ``--stop-timesteps``, in environment steps.

    Returns:
        The parser.
    """
    parser = argparse.ArgumentParser() if parser is None else parser
    stops = (
        ("--stop-reward", float, default_reward, "stop when the mean return reaches this"),
        ("--stop-iters", int, default_iters, "stop after so many iterations"),
        ("--stop-timesteps", int, default_timesteps, "stop after so many environment steps"),
    )
    for option, kind, default, help in (*_OPTIONS, *stops):
        if kind is bool:
            parser.add_argument(option, action="store_true", help=help)
        elif isinstance(kind, tuple):
            parser.add_argument(option, choices=kind, default=default, help=help)
        else:
            parser.add_argument(option, type=kind, default=default, help=help)
    return parser


def should_stop(stop: Mapping[str, Any], results: Mapping[str, Any], keep_ray_up: bool = False) -> bool:
    """Checks stop criteria. If one criterion is reached, prints the criterion, shuts Ray down and returns True; else
    returns False.

    Args:
        stop: Result key -> value; training ends when the result is at least this value. A "/" separates the keys of
            nested dicts.
        results: Result of ``Algorithm.train()``.
        keep_ray_up: Do not shut Ray down.
    """
    for key, threshold in stop.items():
        value: Any = results
        for part in key.split("/"):
            value = value.get(part.strip()) if isinstance(value, Mapping) else None
        # NaN reaches nothing.
        if isinstance(value, int | float | np.number) and value >= threshold:
            print(f"Stop criterion ({key}={threshold}) fulfilled!")
            _shut_ray_down(keep_ray_up)
            return True
    return False


def run_rllib_example_script_experiment(
    base_config: AlgorithmConfig,
    args: argparse.Namespace | None = None,
    *,
    stop: dict[str, Any] | None = None,
    success_metric: dict[str, Any] | None = None,
    trainable: Any = None,
    tune_callbacks: list[Any] | None = None,
    keep_config: bool = False,
    keep_ray_up: bool = False,
    scheduler: Any = None,
    progress_reporter: Any = None,
) -> Any:
    """Applies command-line options to a config, then trains an algorithm with this config.

    If `keep_config` is set, does not apply the options. Trains with Ray Tune, or in a loop in this process if
    ``--no-tune`` is set.

    Args:
        base_config: The config. The options are set on it.
        args: Arguments from the parser of `add_rllib_example_script_args`; None reads the command line.
        stop: Keys of results -> values that end training; None: the three ``--stop-...`` options.
        success_metric: With ``--as-test``: one key of results, and the value that some trial has to reach. None: the
            mean return of `stop` (that of evaluation first), or ``--stop-reward``.
        trainable: Trainable for the tuner; None: the config's algorithm.
        tune_callbacks: Callbacks of the tuner.
        keep_config: Leave the config as it is.
        keep_ray_up: Do not shut Ray down at the end.
        scheduler: The tuner's scheduler.
        progress_reporter: The tuner's reporter; None: `table_columns` on the console.

    Returns:
        The tuner's ``ResultGrid``, or the last result of the loop.

    Raises:
        ValueError: An option that is not possible here, or the reward was not reached (``--as-test``).
        Exception: Error that made a trial fail.
    """
    if args is None:
        args = add_rllib_example_script_args().parse_args()
    for name, instead in _REFUSED.items():
        if getattr(args, name, None):
            raise ValueError(f"--{name.replace('_', '-')}={getattr(args, name)}: {instead}.")
    is_test = args.as_test or args.as_release_test
    if args.no_tune and is_test:
        raise ValueError(
            "--no-tune with --as-test: the test reads its reward from a tuner's results. Leave --no-tune out."
        )
    if stop is None:
        stop = {_RETURN: args.stop_reward, _STEPS: args.stop_timesteps, _ITERATION: args.stop_iters}
    if not keep_config:
        _apply(args, base_config)
    if args.no_tune:
        return _train(base_config, stop, args.stop_iters, keep_ray_up)

    import ray
    from ray import tune

    if not ray.is_initialized():
        ray.init(num_cpus=args.num_cpus or None)
    start = time.time()
    callbacks = [*(tune_callbacks or []), *_wandb(args, base_config)]
    if progress_reporter is None:
        progress_reporter = _reporter(30 if is_test else args.tune_max_report_freq, table_columns(base_config, args))
    tuner = tune.Tuner(
        trainable or base_config.algo_class,
        param_space=base_config,  # type: ignore[arg-type]
        run_config=tune.RunConfig(
            failure_config=tune.FailureConfig(max_failures=0, fail_fast=True),
            stop=stop,
            verbose=1 if is_test else args.verbose,
            callbacks=callbacks,
            checkpoint_config=tune.CheckpointConfig(
                checkpoint_frequency=args.checkpoint_freq, checkpoint_at_end=args.checkpoint_at_end
            ),
            progress_reporter=progress_reporter,
        ),
        tune_config=tune.TuneConfig(
            num_samples=args.num_samples, max_concurrent_trials=args.max_concurrent_trials, scheduler=scheduler
        ),
    )
    results = tuner.fit()
    seconds = time.time() - start
    _shut_ray_down(keep_ray_up)
    if results.errors:
        raise results.errors[0]
    if is_test:
        _check_success(args, results, stop, success_metric, seconds)
    return results


def _apply(args: argparse.Namespace, config: AlgorithmConfig) -> None:
    """Applies command-line options to a config."""
    config.framework(args.framework)
    if args.env is not None and config.env is None:
        config.environment(args.env)
    sections = {
        "env_runners": ("num_env_runners", "num_envs_per_env_runner"),
        "learners": (
            "num_learners",
            "num_cpus_per_learner",
            "num_gpus_per_learner",
            "num_aggregator_actors_per_learner",
        ),
        "debugging": ("log_level",),
        "offline_data": ("output",),
    }
    if args.evaluation_interval > 0:
        names = ("num_env_runners", "interval", "duration", "duration_unit", "parallel_to_training")
        sections["evaluation"] = tuple(f"evaluation_{name}" for name in names)
    for section, names in sections.items():
        given = {name: getattr(args, name) for name in names if getattr(args, name, None) is not None}
        if given:
            getattr(config, section)(**given)


def _train(config: AlgorithmConfig, stop: dict[str, Any], iterations: int, keep_ray_up: bool) -> Any:
    """Trains in this process until a stop criterion is reached; returns the last result."""
    algorithm, results = config.build_algo(), None
    try:
        for iteration in range(stop.get(_ITERATION, iterations)):
            results = algorithm.train()
            line = f"iter={iteration} R={results.get(ENV_RUNNER_RESULTS, {}).get(EPISODE_RETURN_MEAN, np.nan)}"
            evaluated = results.get(EVALUATION_RESULTS, {}).get(ENV_RUNNER_RESULTS)
            print(line if evaluated is None else f"{line} R(eval)={evaluated.get(EPISODE_RETURN_MEAN, np.nan)}")
            if should_stop(stop, results, keep_ray_up=True):
                break
    finally:
        algorithm.stop()
    _shut_ray_down(keep_ray_up)
    return results


def table_columns(config: AlgorithmConfig, args: argparse.Namespace) -> dict[str, str]:
    """Returns the columns of Ray Tune's table of trials: ``{result key: column heading}``."""
    policies = sorted(config.policies) if args.num_agents else ()
    return {
        _ITERATION: "iter",
        "time_total_s": "total time (s)",
        _STEPS: "ts",
        _RETURN: "combined return" if policies else "episode return mean",
        **{f"{_MODULE_RETURNS}/{policy}": f"return {policy}" for policy in policies},
    }


def _reporter(max_report_frequency: int, columns: dict[str, str]) -> Any:
    from ray import tune

    # The tuner's newer output takes no reporters.
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"
    return tune.CLIReporter(metric_columns=columns, max_report_frequency=max_report_frequency)


def _wandb(args: argparse.Namespace, config: AlgorithmConfig) -> list[Any]:
    key = getattr(args, "wandb_key", None) or os.environ.get("WANDB_API_KEY")
    if key is None:
        return []
    from ray.air.integrations.wandb import WandbLoggerCallback

    project = args.wandb_project or f"{args.algo.lower()}-{re.sub(r'[^a-z0-9_]+', '-', str(config.env).lower())}"
    name = {"name": args.wandb_run_name} if args.wandb_run_name else {}
    return [WandbLoggerCallback(api_key=key, project=project, upload_checkpoints=True, **name)]


def _check_success(
    args: argparse.Namespace, results: Any, stop: dict[str, Any], metric: dict[str, Any] | None, seconds: float
) -> None:
    """Raises an error if no trial has reached the required value of the success metric.

    With ``--as-release-test``, first writes a summary to the JSON file named in the environment variable
    TEST_OUTPUT_JSON. If the variable is not set, writes no file.
    """
    in_evaluation = f"{EVALUATION_RESULTS}/{_RETURN}"
    default = next((key for key in (in_evaluation, _RETURN) if key in stop), None)
    metric = metric or ({default: stop[default]} if default else {_RETURN: args.stop_reward})
    key, value = next(iter(metric.items()))
    error = None
    try:
        check_learning_achieved(results, value, evaluation=False, metric=key)
    except ValueError as reason:
        error = reason
    if args.as_release_test and (file := os.environ.get("TEST_OUTPUT_JSON")):
        stats = {name: part for name, part in results[0].metrics.items() if name != "config"}
        summary = {"time_taken": seconds, "last_update": time.time(), "passed": error is None, "stats": stats}
        with open(file, "w") as stream:
            json.dump(convert_numpy_to_python_primitives(summary), stream, default=str)
    if error is not None:
        raise error


def _shut_ray_down(keep_ray_up: bool) -> None:
    ray: Any = sys.modules.get("ray")
    if ray is not None and not keep_ray_up and ray.is_initialized():
        ray.shutdown()


__all__ = ["add_rllib_example_script_args", "run_rllib_example_script_experiment", "should_stop"]
