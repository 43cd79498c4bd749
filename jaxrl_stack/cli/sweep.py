"""``jaxrl sweep``: trains every combination of some settings, with several seeds each."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrl_stack.cli.common import CliError, wrong_input
from jaxrl_stack.cli.experiment import algo_name, experiment, swept
from jaxrl_stack.cli.train import results_directory
from jaxrl_stack.runs.curves import ITERATIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jaxrl_stack.runs.stop import StopCriteria
    from jaxrl_stack.runs.tune_schedulers import Schedule


def run(arguments: argparse.Namespace) -> int:
    """Trains all combinations of the swept settings, and prints a table of their final performance. With ``--out``,
    also writes a figure of the learning curves.

    Raises:
        CliError: If an option, a setting or a file is invalid.
    """
    from jaxrl_stack.algorithms.settings_display import env_name
    from jaxrl_stack.runs.budget import Budget
    from jaxrl_stack.runs.figures import checked_figure_path
    from jaxrl_stack.runs.lineage import LINEAGE_FILE
    from jaxrl_stack.runs.sweep import run_sweep

    space, arguments.assignments = swept(arguments.assignments or [])
    if not space:
        raise CliError("--set with several values is missing. List the values to try: --set lr=1e-4,3e-4,1e-3.")
    config, criteria, origin = experiment(
        arguments, lambda config: config.reporting(results_dir=str(results_directory(arguments, config, "sweep_")))
    )
    directory = Path(str(config.results_dir))
    if arguments.scheduler == "asha" and not criteria.targets:
        criteria.add(ITERATIONS, _MAX_T)
    if not criteria.targets:
        raise CliError("--stop is missing. Say when each run ends: --stop '{\"training_iteration\": 100}'.")
    scheduler, budget = _scheduler(arguments, space, criteria), _budget(arguments.budget)
    with wrong_input(f"--budget {arguments.budget}"):
        if budget is not None:
            Budget.read(budget, "run_sweep")
    for name, values in space.items():
        with wrong_input(f"--set {name}={values}"):
            for value in values if isinstance(values, list) else ():
                config.with_settings({name: value})
    with wrong_input("--out"):
        if arguments.out is not None:
            checked_figure_path(arguments.out)
    print(f"{algo_name(config)} in {env_name(config.env)}: {origin}")
    print(f"Each until {criteria}. Results in {directory}.", flush=True)
    with wrong_input():
        sweep = run_sweep(
            config,
            space,
            seeds=arguments.seeds,
            until=criteria.targets,
            num_samples=arguments.num_samples,
            progress=not arguments.quiet,
            scheduler=scheduler,
            budget=budget,
        )
    print(f"\n{sweep}\n\nCurves:     jaxrl plot {directory}")
    if sweep.lineage is not None:
        print(f"Lineage:    {len(sweep.lineage.copies)} members were replaced: {directory / LINEAGE_FILE}")
    if arguments.out is not None:
        sweep.plot(arguments.out)
        print(f"Figure:     {arguments.out}")
    return 0


def _budget(text: str | None) -> Any:
    """Converts the text of ``--budget`` to the argument `budget` of `run_sweep`.

    JSON (seconds or a dict) is parsed; other text, such as ``"5 min"``, does not change. None without the option.
    """
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return text


_MAX_T = 100
"""Iterations of a sweep with ``--scheduler asha`` and no other end, as in Ray Tune."""


def _scheduler(arguments: argparse.Namespace, space: Mapping[str, Any], criteria: StopCriteria) -> Schedule | None:
    """Creates the scheduler of trials (ASHA or population-based training) that the options describe; None without
    ``--scheduler``.

    Raises:
        CliError: If an option belongs to another scheduler, or a run has no length.
    """
    from jaxrl_stack.runs.halving import Halving
    from jaxrl_stack.runs.pbt import PBT
    from jaxrl_stack.runs.stop import is_steady

    for option, value, needed in (
        ("--grace-period", arguments.grace_period, "asha"),
        ("--perturbation-interval", arguments.perturbation_interval, "pbt"),
    ):
        if value is not None and arguments.scheduler != needed:
            raise CliError(f"{option} belongs to --scheduler {needed}. Leave it out, or set --scheduler {needed}.")
    if arguments.scheduler == "asha":
        steady = sorted(filter(is_steady, criteria.targets), key=lambda path: path != ITERATIONS)
        if not steady:
            raise CliError(
                "--scheduler asha needs a limit on the length of a run, but --stop has none. Add --num-iterations 100."
            )
        time_attr, max_t = steady[0], criteria.targets[steady[0]]
        grace_period = arguments.grace_period or max(1, int(max_t) // 16)
        if grace_period > max_t:
            raise CliError(
                f"--grace-period {grace_period}: exceeds the length of a run, {time_attr}={max_t:g}. "
                "Lower --grace-period, or raise the limit of the runs in --stop or --num-iterations."
            )
        return Halving(max_t=max_t, grace_period=grace_period, time_attr=time_attr)
    if arguments.scheduler == "pbt":
        return PBT(space, arguments.perturbation_interval or 5)
    return None
