"""Statistics of a run for its display (steps, durations, mean returns), and functions that format them as text."""

from __future__ import annotations

import collections
import math
from collections.abc import Mapping
from typing import Any

from jaxrl_stack.runs.agent_returns import returns_of_agents

_SPEED_WINDOW = 5.0
"""Seconds over which the displayed speed is averaged."""


class RunStatistics:
    """Numbers of iterations and steps, durations and latest mean returns of a run. `update` adds the result of an
    iteration.

    Args:
        before: Numbers of the earlier run that this run continues, by path in the result.

    Attributes:
        before: Numbers of the earlier run.
        iteration: Iterations so far.
        steps: Environment steps so far.
        seconds: Time spent in iterations, evaluation included.
        compile_seconds: Time spent on compilation.
        episode_return: Mean return of the last episodes; NaN if unknown.
        evaluation_return: Mean return of the last evaluation; NaN if unknown.
        agent_returns: Parts of `episode_return`, by the names of `returns_of_agents`.
    """

    def __init__(self, before: Mapping[str, float] | None = None) -> None:
        self.before = before or {}
        self.iteration = int(self.before.get("training_iteration", 0))
        self.steps = self._steps_before = int(self.before.get("num_env_steps_sampled_lifetime", 0))
        self.seconds = 0.0
        self.compile_seconds = 0.0
        self.episode_return = math.nan
        self.evaluation_return = math.nan
        self.agent_returns: dict[str, float] = {}
        self._recent: collections.deque[tuple[int, float]] = collections.deque()
        self._recent_seconds = 0.0

    def update(self, result: Mapping[str, Any]) -> None:
        """Adds the steps and durations of an iteration to the totals of the run, and stores the mean returns in the
        iteration's result as the latest returns.
        """
        seconds, compiling = result["time_this_iter_s"], result["timers"]["compile_s"]
        steps = result["num_env_steps_sampled_lifetime"] - self.steps
        self.iteration = result["training_iteration"]
        self.steps += steps
        self.seconds += seconds
        self.compile_seconds += compiling
        self.episode_return = result["env_runners"]["episode_return_mean"]
        self.agent_returns = returns_of_agents(result)
        evaluated = result.get("evaluation", {}).get("env_runners", {}).get("episode_return_mean", math.nan)
        if not math.isnan(evaluated):
            self.evaluation_return = evaluated
        self._recent.append((steps, seconds - compiling))
        self._recent_seconds += seconds - compiling
        while len(self._recent) > 1 and self._recent_seconds - self._recent[0][1] > _SPEED_WINDOW:
            self._recent_seconds -= self._recent.popleft()[1]

    @property
    def steady_seconds(self) -> float:
        """Total seconds of all iterations of this run, without the time for compilation."""
        return max(0.0, self.seconds - self.compile_seconds)

    @property
    def steps_per_second(self) -> float:
        """Environment steps per second, averaged over the last n iterations.

        n is the smallest number for which the last n iterations took more than five seconds together; in a shorter run,
        all iterations count. The time for compilation does not count.
        """
        return sum(steps for steps, _ in self._recent) / max(self._recent_seconds, 1e-9)

    @property
    def steps_per_second_overall(self) -> float:
        """Environment steps per second, averaged over all iterations of this run, without the earlier run that it
        continues. The time for compilation does not count.
        """
        return (self.steps - self._steps_before) / max(self.steady_seconds, 1e-9)


def duration(seconds: float) -> str:
    """Readable duration: "4.1 s", "3:07", "1:00:00"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def return_text(value: float) -> str:
    """A mean return as text; "–" if unknown."""
    return "–" if math.isnan(value) else f"{value:,.1f}"


def returns_text(statistics: RunStatistics) -> str:
    """Formats the mean return of the last episodes.

    If the run has several agents, the mean return of each agent (or of each policy if there are many agents) follows in
    brackets: "3.0 (a: 1.0, b: 2.0)".
    """
    parts = ", ".join(f"{name}: {return_text(value)}" for name, value in statistics.agent_returns.items())
    return return_text(statistics.episode_return) + (f" ({parts})" if parts else "")


def counted(number: int, noun: str) -> str:
    """Number with its noun: "1 iteration", "1,000 iterations"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
