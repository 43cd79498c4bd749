"""``jaxrl benchmark``: trains algorithms on tasks, each with the same seeds."""

from __future__ import annotations

import argparse
import pathlib
from typing import TYPE_CHECKING

from jaxrl_stack.cli.common import CliError, json_object, wrong_input
from jaxrl_stack.cli.experiment import in_any_case, python_experiment

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig


def run(arguments: argparse.Namespace) -> int:
    """Runs a benchmark or continues it: trains each algorithm on each task, then prints the table of scores.

    Returns:
        0 if all runs are finished, with a score or without one; 130 after Ctrl-C.

    Raises:
        CliError: If an option, a name or the folder is invalid.
    """
    from jaxrl_stack.algorithms.benchmark import run_benchmark
    from jaxrl_stack.runs.figures import checked_figure_path

    until = {} if arguments.stop is None else json_object("--stop", arguments.stop)
    if arguments.steps is not None:
        until["num_env_steps_sampled_lifetime"] = arguments.steps
    if not until:
        raise CliError("--steps is missing. Say when each run ends: --steps 1e6.")
    algorithms = _algorithms(arguments.algorithms)
    if arguments.baseline is not None and arguments.baseline not in algorithms:
        raise CliError(f"--baseline {arguments.baseline}: must be one of {', '.join(algorithms)}.")
    with wrong_input("--out"):
        if arguments.out is not None:
            checked_figure_path(arguments.out)
    with wrong_input():
        done = run_benchmark(
            algorithms,
            arguments.tasks,
            seeds=arguments.seeds,
            until=until,
            results_dir=arguments.results_dir,
            score=arguments.score,
            checkpoint_seconds=arguments.checkpoint_seconds,
            jobs=arguments.jobs,
            progress=not arguments.quiet,
        )
    print(f"\n{done.table(baseline=arguments.baseline)}\n\nTable:      jaxrl compare {arguments.results_dir}")
    if arguments.out is not None:
        done.plot(arguments.out)
        print(f"Figure:     {arguments.out}")
    return 0 if done.is_finished else 130


def _algorithms(text: str) -> dict[str, AlgorithmConfig | None]:
    """Parses the argument ALGOS, such as ``PPO,mine=my_experiment.py``, to ``{label: config}``; None in place of a
    config stands for the tuned settings of that algorithm.
    """
    found: dict[str, AlgorithmConfig | None] = {}
    for part in filter(None, text.split(",")):
        label, sign, file = part.partition("=")
        if sign:
            found[label] = python_experiment(pathlib.Path(file), part)[0]
        else:
            found[in_any_case(label)] = None
    if not found:
        raise CliError("ALGOS is empty. Give names such as PPO,IMPALA; `jaxrl list algorithms` prints all names.")
    return found
