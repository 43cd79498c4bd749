"""Stop criteria: what in the result ends a run."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any

from jaxrl_stack.utils.results import flatten_result, get_nested, no_number

Until = Mapping[Any, Any] | Callable[[Mapping[str, Any]], Any] | int | None
"""Path in the result → value at which to stop, as Tune has it; a function of the result; a number of iterations; None
for Ctrl-C alone."""


class StopError(ValueError):
    """A stop criterion that cannot be. The message names it and the remedy."""


class StopCriteria:
    """What ends a run: the first criterion that is reached does.

    Args:
        until: ``{"env_runners/episode_return_mean": 475}``, where nested dicts and tuples are paths, too; a function
            of the result that says whether to stop; a number of iterations, counted from `iteration`; None for none.
        source: What they were given as, for messages.
        iteration: Iterations so far.

    Raises:
        StopError: If it is none of these, or a value is no number.
    """

    def __init__(self, until: Until, source: str = "until", *, iteration: int = 0):
        self.source = source
        self.targets: dict[str, float] = {}
        self.function = until if callable(until) else None
        if isinstance(until, int) and not isinstance(until, bool):
            until = {"training_iteration": iteration + until}
        if not (until is None or callable(until) or isinstance(until, Mapping)):
            raise StopError(
                f"{source}={until!r}: must be a dict of path in the result → value, a number of iterations, or a "
                f'function of the result: {source}={{"env_runners/episode_return_mean": 475}}.'
            )
        given = until if isinstance(until, Mapping) else {}
        paths = {"/".join(key) if isinstance(key, tuple) else key: value for key, value in given.items()}
        for path, value in flatten_result(paths).items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
                raise StopError(
                    f"{source}: {path!r} has the bound {value!r}, which must be a number: {{{path!r}: 475}}."
                )
            self.targets[path] = value

    def add(self, path: str, target: float) -> None:
        """One more criterion; of two with the same path, the one that comes first counts."""
        self.targets[path] = min(target, self.targets.get(path, target))

    def check_evaluation(
        self, interval: int | None, remedy: str = "Set evaluation(evaluation_interval=10) in the config."
    ) -> None:
        """Checks that there will be evaluations if a criterion waits for one.

        Args:
            interval: Iterations between evaluations; None or 0 for never.
            remedy: How to get some, for the message.

        Raises:
            StopError: If there will be none.
        """
        waiting = [path for path in self.targets if path.startswith("evaluation/")]
        if waiting and not interval:
            raise StopError(f"{self.source}: {waiting[0]!r} needs evaluations, and none are set. {remedy}")

    def check_names(self, known: Mapping[str, Any] | None) -> None:
        """Checks paths before there is a result.

        Args:
            known: A result with all its numbers, but for those of timers and replay buffers, which only a run has;
                None if they are not known.

        Raises:
            StopError: If a path leads nowhere in it; names near matches.
        """
        if known is not None:
            later = ("timers/", "replay_buffer/")
            self._check(known, {path: goal for path, goal in self.targets.items() if not path.startswith(later)})

    def reached(self, result: Mapping[str, Any]) -> str | None:
        """The criterion that `result` fulfils, in words; None if it fulfils none.

        Raises:
            StopError: If a path leads nowhere; on the first result already, as results have all keys from the start.
        """
        if self.function is not None:
            return f"{self.source} is true of the result" if self.function(result) else None
        # Most results hold no evaluation.
        present = {
            path: target
            for path, target in self.targets.items()
            if "evaluation" in result or not path.startswith("evaluation/")
        }
        return self._check(result, present)

    def _check(self, result: Mapping[str, Any], targets: Mapping[str, Any]) -> str | None:
        """The first of these criteria that is reached, in words; all of them have to be numbers of the result."""
        reached = None
        for path, target in targets.items():
            try:
                value = get_nested(result, path)
            except KeyError as error:
                raise StopError(f"{self.source}: {error.args[0]}") from error
            if not isinstance(value, numbers.Real):
                raise StopError(f"{self.source}: {no_number(path, result)} It holds a {type(value).__name__}.")
            # What is not yet known, NaN, has not reached its bound.
            if reached is None and value >= target:
                reached = f"{path} = {value:g} has reached {target:g}"
        return reached

    def eta(
        self, result: Mapping[str, Any], before: Mapping[str, float], steady_seconds: float
    ) -> tuple[float | None, bool]:
        """When the run will end, as far as that can be foreseen: a return cannot, a number of steps can.

        Args:
            result: The last result.
            before: Numbers of an earlier run, by path, that this one goes on from.
            steady_seconds: Time that the run has taken so far, without compilation.

        Returns:
            Seconds from now, None if unknown; and whether other criteria may end the run earlier.
        """
        remaining = []
        for path, value in self._foreseeable(result).items():
            missing = max(0.0, self.targets[path] - value)
            done = value - before.get(path, 0.0)
            if path == "time_total_s":
                remaining.append(missing)
            elif done > 0:
                remaining.append(missing * steady_seconds / done)
        num_criteria = len(self.targets) + (self.function is not None)
        return (min(remaining) if remaining else None), len(remaining) < num_criteria

    def fraction(self, result: Mapping[str, Any], before: Mapping[str, float] | None = None) -> float | None:
        """How much of the run since `before` is done, by the foreseeable criterion that is furthest, if any."""
        done = []
        for path, value in self._foreseeable(result).items():
            start = (before or {}).get(path, 0.0)
            done.append((value - start) / max(self.targets[path] - start, 1e-9))
        return min(1.0, max(done)) if done else None

    def _foreseeable(self, result: Mapping[str, Any]) -> dict[str, float]:
        """The present values of the criteria that grow steadily."""
        steady = [
            path
            for path in self.targets
            if path in ("training_iteration", "time_total_s") or path.endswith("_lifetime")
        ]
        values = flatten_result(result) if steady else {}
        return {path: float(values[path]) for path in steady if path in values}

    def __str__(self) -> str:
        if self.function is not None:
            return f"{self.source} is true of the result"
        if not self.targets:
            return "Ctrl-C"
        return " or ".join(f"{path} reaches {target:,.10g}" for path, target in self.targets.items())
