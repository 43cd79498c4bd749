"""Display of a training run: live on a terminal or in a notebook, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from jaxrl_stack.runs.agent_returns import columns_of_agents
from jaxrl_stack.runs.curves import RETURN
from jaxrl_stack.runs.statistics import RunStatistics, duration, return_text, returns_text
from jaxrl_stack.runs.stop import StopCriteria
from jaxrl_stack.utils.waiting import listeners, waiting_lines

if TYPE_CHECKING:
    from jaxrl_stack.runs.history import History

_DRAWS = 4
"""Of the live display, per second."""
_SPARKS = 60


def eta_text(criteria: StopCriteria, result: Mapping[str, Any], statistics: RunStatistics) -> str:
    """Remaining time: "ETA 12.0 s", or "ETA 12.0 s at most" if a return may end the run earlier; empty if unknown."""
    seconds, is_bound = criteria.eta(result, statistics.before, statistics.steady_seconds)
    if seconds is None:
        return ""
    return f"ETA {duration(seconds)}" + (" at most" if is_bound else "")


class Silence:
    """A display that shows nothing; base of the other displays."""

    def __enter__(self) -> Silence:
        listeners.append(self.waiting)
        return self

    def __exit__(self, *exception: object) -> None:
        listeners.remove(self.waiting)

    def header(self, line: str) -> None:
        """Displays a line of text before the run; does nothing in this base class."""

    def begin(self, history: History, task: str) -> None:
        """Called before the first iteration, so that a display can start; does nothing in this base class.

        Args:
            history: History to which the run adds its iterations.
            task: Description of the slow first work: "compiling ...".
        """

    def iteration(self, result: Mapping[str, Any], statistics: RunStatistics, is_last: bool) -> None:
        """Called after every iteration, so that a display can show the result; does nothing in this base class."""

    def waiting(self, line: str) -> None:
        """Called with each line of text about actors that do not start yet.

        The actors may wait for Ray resources, for example. A display can show the line; this base class does nothing.
        The caller is the thread that waits for the actors.
        """

    def stopping(self) -> None:
        """Called when Ctrl-C was pressed, so that a display can show that the run stops after the running iteration."""


class PlainLines(Silence):
    """Prints a line of metrics after the first iteration, after the last one, and at intervals in between. The
    intervals grow from two seconds to ten minutes.

    Args:
        criteria: Stop criteria, for the ETA.
    """

    def __init__(self, criteria: StopCriteria):
        self._criteria = criteria
        self._started, self._shown_at = time.monotonic(), -math.inf

    def header(self, line: str) -> None:
        print(line, flush=True)

    def begin(self, history: History, task: str) -> None:
        print(f"{task} ...", flush=True)

    def waiting(self, line: str) -> None:
        print(line, flush=True)

    def stopping(self) -> None:
        print("Ctrl-C: stopping after this iteration; press it again to abort.", file=sys.stderr, flush=True)

    def iteration(self, result: Mapping[str, Any], statistics: RunStatistics, is_last: bool) -> None:
        now = time.monotonic()
        if not is_last and now - self._shown_at < seconds_between_lines(now - self._started):
            return
        self._shown_at = now
        line = (
            f"iteration {statistics.iteration:5d}  steps {statistics.steps:11,d}  "
            f"{statistics.steps_per_second:11,.0f} steps/s  return {returns_text(statistics):>9}  "
        )
        if not math.isnan(statistics.evaluation_return):
            line += f"evaluation {return_text(statistics.evaluation_return):>9}  "
        end = [f"compile {statistics.compile_seconds:.1f} s", eta_text(self._criteria, result, statistics)]
        print(line + "  ".join(filter(None, end)), flush=True)


def seconds_between_lines(elapsed: float) -> float:
    """Seconds between two printed lines of a run without a live display.

    This is 5 % of the `elapsed` seconds since the start, at least 2 s and at most 10 minutes. A run of a day prints
    about 260 lines.
    """
    return min(max(2.0, 0.05 * elapsed), 600.0)


class LiveDisplay(Silence):
    """Lines in the terminal that are redrawn a few times a second: progress bar with ETA, metrics, and the curve of the
    return.

    Args:
        console: A terminal.
        criteria: Stop criteria, for the progress bar and the ETA.
    """

    def __init__(self, console: Console, criteria: StopCriteria):
        self._console, self._criteria = console, criteria
        self._latest: tuple[Mapping[str, Any], RunStatistics] | None = None
        self._history: History | None = None
        self._is_stopping = False
        self._task = "building and compiling the training program"
        self._started = time.monotonic()
        self._spinner = Spinner("dots")
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=_DRAWS, transient=True)

    def __enter__(self) -> LiveDisplay:
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def header(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def begin(self, history: History, task: str) -> None:
        self._task, self._history = task, history

    def iteration(self, result: Mapping[str, Any], statistics: RunStatistics, is_last: bool) -> None:
        self._latest = (result, statistics)

    def stopping(self) -> None:
        # Called by a signal handler: the next redraw shows it.
        self._is_stopping = True

    def _render(self) -> Group:
        elapsed = time.monotonic() - self._started
        line = Table.grid(padding=(0, 1))
        if self._latest is None:
            line.add_row(self._spinner, Text(f"{self._task}, {elapsed:.0f} s"))
            lines: list[Table | Text] = [line]
        else:
            result, statistics = self._latest
            fraction = self._criteria.fraction(result, statistics.before)
            bar = ProgressBar(total=None if fraction is None else 1.0, completed=fraction or 0.0, width=30)
            times = [duration(elapsed), eta_text(self._criteria, result, statistics)]
            line.add_row(self._spinner, bar, Text(", ".join(filter(None, times))))
            lines = [line, Text("  " + " · ".join(numbers_text(statistics)))]
            if self._history is not None and RETURN in self._history:
                lines += _sparklines(self._history)
        lines += [Text(f"  {waiting}", style="yellow") for waiting in waiting_lines()]
        if self._is_stopping:
            lines.append(Text("  stopping after this iteration; Ctrl-C again aborts", style="bold yellow"))
        return Group(*lines)


def _sparklines(history: History) -> list[Text]:
    """Curve of the mean return, drawn as one line of characters.

    With several agents, the result has one line for each agent (or policy, if there are many agents), and a dim line
    for the sum of the agents' returns.
    """
    parts = columns_of_agents(history.columns)
    if not parts:
        return [Text(f"  {history.sparkline(width=_SPARKS)}")]
    width = max(map(len, parts))
    lines = [
        Text(f"  {name:<{width}} {history.sparkline(column, _SPARKS - width - 1)}") for name, column in parts.items()
    ]
    return [*lines, Text(f"  {'sum':<{width}} {history.sparkline(width=_SPARKS - width - 1)}", style="dim")]


def numbers_text(statistics: RunStatistics) -> list[str]:
    """Formats iteration, steps, speed, returns and compile time of a run as a list of texts for its display."""
    evaluated = not math.isnan(statistics.evaluation_return)
    return [
        f"iteration {statistics.iteration:,}",
        f"{statistics.steps:,} steps",
        f"{statistics.steps_per_second:,.0f} steps/s",
        f"return {returns_text(statistics)}",
        *([f"evaluation {return_text(statistics.evaluation_return)}"] if evaluated else []),
        f"compile {statistics.compile_seconds:.1f} s",
    ]
