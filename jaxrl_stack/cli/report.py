"""``jaxrl report``: writes a report of a run."""

from __future__ import annotations

import argparse
import pathlib
from typing import TYPE_CHECKING, Any

from jaxrl_stack.cli.common import wrong_input

if TYPE_CHECKING:
    from jaxrl_stack.runs.run import Run


def run(arguments: argparse.Namespace) -> int:
    """Writes the HTML report of a run and prints its path.

    Raises:
        CliError: If the run does not exist.
    """
    from jaxrl_stack.runs.report import write_report
    from jaxrl_stack.runs.run import find_runs

    with wrong_input():
        runs = find_runs(arguments.runs)
        out = arguments.out or (runs[0].folder or pathlib.Path()) / "report.html"
        write_report(runs, out, defaults=_defaults(runs[0]))
    print(f"Report: {out}")
    return 0


def _defaults(run: Run) -> dict[str, Any] | None:
    """Default settings of a run's algorithm; None for an unknown algorithm or a run that did not record its origin
    (command and versions).
    """
    from jaxrl_stack.algorithms.registry import ALGORITHMS, get_algorithm_config_class
    from jaxrl_stack.runs.writers import as_json

    if not run.origin or run.algorithm not in ALGORITHMS:
        return None
    return as_json(get_algorithm_config_class(run.algorithm)().to_dict())
