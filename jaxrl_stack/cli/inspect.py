"""``jaxrl inspect``: runs a training iteration of a run again, and shows the losses, gradients and episodes of this
iteration.
"""

from __future__ import annotations

import argparse
import pathlib

from jaxrl_stack.cli.common import CliError, wrong_input
from jaxrl_stack.cli.rewind import code_of


def run(arguments: argparse.Namespace) -> int:
    """Runs a training iteration of a run again. Prints the losses, gradients and episodes of this iteration, or writes
    them to a file.

    Raises:
        CliError: If the run or the iteration does not exist, or cannot be run again.
    """
    from jaxrl_stack.runs.html_pages import write_text
    from jaxrl_stack.runs.run import Run

    end = pathlib.Path(arguments.out or "").suffix.lower()
    form = arguments.format or {".html": "html", ".htm": "html", ".json": "json"}.get(end, "text")
    if form == "html" and not arguments.out:
        raise CliError("--format html: the name of the HTML file is missing. Add --out inspection.html.")
    with wrong_input(f"RUN {arguments.run}"):
        found = Run.read(arguments.run)
    with wrong_input():
        inspection = found.inspect(arguments.iteration, num_rows=arguments.rows, **code_of(arguments))
    text = {"text": inspection.__repr__, "json": inspection.to_json, "html": inspection.to_html}[form]()
    if arguments.out:
        write_text(f"{text}\n", arguments.out)
        print(f"Inspection: {arguments.out}")
    else:
        print(text)
    return 0
