"""What a training run shows while it goes on: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import collections
import math
import sys
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from jaxrl_stack.cli.stop import StopCriteria

# Seconds that the shown speed is a mean of, and between two plain lines.
_SPEED_WINDOW = 5.0
_LINE_EVERY = 2.0


class RunStatistics:
    """Sums over the results of a run.

    Args:
        iteration: Iterations that an earlier run has made.
        steps: Its environment steps.

    Attributes:
        iteration: Iterations so far.
        steps: Environment steps so far.
        seconds: Time spent in iterations, evaluation included.
        compile_seconds: The part of it that went into compiling.
        episode_return: Mean return of the last episodes; NaN if unknown.
        evaluation_return: Mean return of the last evaluation; NaN if unknown.
    """

    def __init__(self, iteration: int = 0, steps: int = 0) -> None:
        self.iteration = iteration
        self.steps = self._steps_before = steps
        self.seconds = 0.0
        self.compile_seconds = 0.0
        self.episode_return = math.nan
        self.evaluation_return = math.nan
        self._recent: collections.deque[tuple[int, float]] = collections.deque()
        self._recent_seconds = 0.0

    def update(self, result: Mapping[str, Any]) -> None:
        """Takes in the result of one more iteration."""
        seconds, compiling = result["time_this_iter_s"], result["timers"]["compile_s"]
        steps = result["num_env_steps_sampled_lifetime"] - self.steps
        self.iteration = result["training_iteration"]
        self.steps += steps
        self.seconds += seconds
        self.compile_seconds += compiling
        self.episode_return = result["env_runners"]["episode_return_mean"]
        evaluated = result.get("evaluation", {}).get("env_runners", {}).get("episode_return_mean", math.nan)
        if not math.isnan(evaluated):
            self.evaluation_return = evaluated
        self._recent.append((steps, seconds - compiling))
        self._recent_seconds += seconds - compiling
        while len(self._recent) > 1 and self._recent_seconds - self._recent[0][1] > _SPEED_WINDOW:
            self._recent_seconds -= self._recent.popleft()[1]

    @property
    def steady_seconds(self) -> float:
        """Time without compilation."""
        return max(0.0, self.seconds - self.compile_seconds)

    @property
    def steps_per_second(self) -> float:
        """Environment steps per second of the last seconds, without compilation."""
        return sum(steps for steps, _ in self._recent) / max(self._recent_seconds, 1e-9)

    @property
    def steps_per_second_overall(self) -> float:
        """Environment steps per second of this run, without compilation."""
        return (self.steps - self._steps_before) / max(self.steady_seconds, 1e-9)


def duration(seconds: float) -> str:
    """Seconds as a person says them: "4.1 s", "3:07", "1:00:00"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def return_text(value: float) -> str:
    """A mean return; "–" if it is not known yet."""
    return "–" if math.isnan(value) else f"{value:,.1f}"


def eta_text(criteria: StopCriteria, result: Mapping[str, Any], statistics: RunStatistics) -> str:
    """When the run ends: "12.0 s", "12.0 s at most" if a return may end it earlier, or "unknown"."""
    seconds, is_bound = criteria.eta(result, statistics.steady_seconds)
    if seconds is None:
        return "unknown"
    return duration(seconds) + (" at most" if is_bound else "")


class Silence:
    """Shows nothing; the other displays add to it."""

    def __enter__(self) -> Silence:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def header(self, line: str) -> None:
        """A line before the run."""

    def iteration(self, result: Mapping[str, Any], statistics: RunStatistics, is_last: bool) -> None:
        """After every iteration."""

    def stopping(self) -> None:
        """Ctrl-C was pressed; the running iteration goes on to its end."""


class PlainLines(Silence):
    """A line after the first and the last iteration, and every two seconds in between.

    Args:
        criteria: For the ETA.
    """

    def __init__(self, criteria: StopCriteria):
        self._criteria = criteria
        self._shown_at = -math.inf

    def header(self, line: str) -> None:
        print(line, flush=True)

    def stopping(self) -> None:
        print("Ctrl-C: stopping after this iteration; press it again to abort.", file=sys.stderr, flush=True)

    def iteration(self, result: Mapping[str, Any], statistics: RunStatistics, is_last: bool) -> None:
        if not is_last and time.monotonic() - self._shown_at < _LINE_EVERY:
            return
        self._shown_at = time.monotonic()
        line = (
            f"iteration {statistics.iteration:5d}  steps {statistics.steps:11,d}  "
            f"{statistics.steps_per_second:11,.0f} steps/s  return {return_text(statistics.episode_return):>9}  "
        )
        if not math.isnan(statistics.evaluation_return):
            line += f"evaluation {return_text(statistics.evaluation_return):>9}  "
        eta = eta_text(self._criteria, result, statistics)
        print(f"{line}compile {statistics.compile_seconds:.1f} s  ETA {eta}", flush=True)


class LiveDisplay(Silence):
    """Two lines that are redrawn a few times a second, at no cost to the run: bar and ETA, and the numbers.

    Args:
        console: A terminal.
        criteria: For the bar and the ETA.
    """

    def __init__(self, console: Console, criteria: StopCriteria):
        self._console, self._criteria = console, criteria
        self._latest: tuple[Mapping[str, Any], RunStatistics] | None = None
        self._is_stopping = False
        self._started = time.monotonic()
        self._spinner = Spinner("dots")
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=8, transient=True)

    def __enter__(self) -> LiveDisplay:
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def header(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def iteration(self, result: Mapping[str, Any], statistics: RunStatistics, is_last: bool) -> None:
        self._latest = (result, statistics)

    def stopping(self) -> None:
        # Called by a signal handler: the next redraw shows it.
        self._is_stopping = True

    def _render(self) -> Group:
        elapsed = time.monotonic() - self._started
        line = Table.grid(padding=(0, 1))
        if self._latest is None:
            line.add_row(self._spinner, Text(f"building and compiling the training program, {elapsed:.0f} s"))
            lines: list[Table | Text] = [line]
        else:
            result, statistics = self._latest
            fraction = self._criteria.fraction(result)
            bar = ProgressBar(total=None if fraction is None else 1.0, completed=fraction or 0.0, width=30)
            eta = eta_text(self._criteria, result, statistics)
            line.add_row(self._spinner, bar, Text(f"{duration(elapsed)}, ETA {eta}"))
            lines = [line, Text("  " + " · ".join(_numbers(statistics)))]
        if self._is_stopping:
            lines.append(Text("  stopping after this iteration; Ctrl-C again aborts", style="bold yellow"))
        return Group(*lines)


def _numbers(statistics: RunStatistics) -> list[str]:
    evaluated = not math.isnan(statistics.evaluation_return)
    return [
        f"iteration {statistics.iteration:,}",
        f"{statistics.steps:,} steps",
        f"{statistics.steps_per_second:,.0f} steps/s",
        f"return {return_text(statistics.episode_return)}",
        *([f"evaluation {return_text(statistics.evaluation_return)}"] if evaluated else []),
        f"compile {statistics.compile_seconds:.1f} s",
    ]


def make_display(criteria: StopCriteria, *, is_quiet: bool, is_plain: bool) -> Silence:
    """The display that fits the terminal and the options."""
    if is_quiet:
        return Silence()
    if is_plain or not sys.stdout.isatty():
        return PlainLines(criteria)
    return LiveDisplay(Console(), criteria)
