"""``jaxrl sweep``: every combination of some settings, each with several seeds."""

from __future__ import annotations

import argparse

from jaxrl_stack.cli.common import CliError, wrong_input
from jaxrl_stack.cli.experiment import algo_name, experiment, swept
from jaxrl_stack.cli.train import results_directory


def run(arguments: argparse.Namespace) -> int:
    """Trains all combinations, and prints a table of their final performance; with ``--out`` also draws them.

    Raises:
        CliError: If an option, a setting or a file is invalid.
    """
    from jaxrl_stack.algorithms.settings_display import env_name
    from jaxrl_stack.runs.figures import checked_figure_path
    from jaxrl_stack.runs.sweep import run_sweep

    space, arguments.assignments = swept(arguments.assignments or [])
    if not space:
        raise CliError("--set with several values is missing. List those to try: --set lr=1e-4,3e-4,1e-3.")
    config, criteria, origin = experiment(arguments)
    if not criteria.targets:
        raise CliError("--stop is missing. Say when each run ends: --stop '{\"training_iteration\": 100}'.")
    for name, values in space.items():
        with wrong_input(f"--set {name}={values}"):
            for value in values:
                config.with_settings({name: value})
    with wrong_input("--out"):
        if arguments.out is not None:
            checked_figure_path(arguments.out)
    directory = results_directory(arguments, config, "sweep_")
    config.reporting(results_dir=str(directory))
    print(f"{algo_name(config)} in {env_name(config.env)}: {origin}")
    print(f"Each until {criteria}. Results in {directory}.", flush=True)
    with wrong_input():
        sweep = run_sweep(config, space, seeds=arguments.seeds, until=criteria.targets, progress=not arguments.quiet)
    print(f"\n{sweep}\n\nCurves:     jaxrl plot {directory}")
    if arguments.out is not None:
        sweep.plot(arguments.out)
        print(f"Figure:     {arguments.out}")
    return 0
