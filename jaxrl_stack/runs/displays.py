"""Choice of the display of a run: notebook, terminal, or plain lines."""

from __future__ import annotations

import sys

from rich.console import Console

from jaxrl_stack.runs.notebook import NotebookDisplay
from jaxrl_stack.runs.progress import LiveDisplay, PlainLines, Silence
from jaxrl_stack.runs.stop import StopCriteria


def make_display(criteria: StopCriteria, *, is_quiet: bool = False, is_plain: bool = False) -> Silence:
    """Creates the display of a run for the current output: a notebook display, a terminal display, or plain lines for
    other outputs, such as a file.

    Args:
        criteria: Stop criteria, for the ETA.
        is_quiet: Whether to show nothing.
        is_plain: Whether to print plain lines in a terminal, too.
    """
    if is_quiet:
        return Silence()
    if is_plain:
        return PlainLines(criteria)
    if is_notebook():
        return NotebookDisplay(criteria)
    return LiveDisplay(Console(), criteria) if sys.stdout.isatty() else PlainLines(criteria)


def is_notebook() -> bool:
    """Whether output goes to a Jupyter notebook, which displays HTML."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")
