"""``jaxrl plot`` and ``jaxrl compare``: curves of runs, and how they ended."""

from __future__ import annotations

import argparse
from typing import Any

from jaxrl_stack.cli.common import CliError, wrong_input


def run(arguments: argparse.Namespace) -> int:
    """Prints curves, or a table of their ends; with ``--out`` writes a figure, too.

    Raises:
        CliError: If there is no such run, or no such number in it.
    """
    from jaxrl_stack.runs.axes import AxisOptions
    from jaxrl_stack.runs.curves import RETURN
    from jaxrl_stack.runs.plots import compare, comparison_text, plot_runs, runs_as_text

    what = {"runs": arguments.runs, "key": arguments.key or RETURN, "x": arguments.x, "aggregate": arguments.aggregate}
    given = {name: getattr(arguments, name) for name in AxisOptions.__annotations__}
    options: Any = {name: value for name, value in given.items() if value is not None}
    if options and arguments.out is None:
        raise CliError(f"--{next(iter(options))}: is of a figure. Name one: --out curves.png.")
    with wrong_input():
        if arguments.command == "compare":
            print(comparison_text(compare(**what, band=arguments.band), arguments.x))
        elif arguments.out is None:
            print(runs_as_text(**what))
        if arguments.out is not None:
            plot_runs(**what, out=arguments.out, band=arguments.band, **options)
            print(f"Figure: {arguments.out}")
    return 0
