"""Stop criteria: values in the result that end a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from jaxrl_stack.cli.common import CliError
from jaxrl_stack.utils.results import check_stop, flatten_result


class StopCriteria:
    """Paths in the result with the values that end the run: the first one reached does.

    Args:
        criteria: Path ("env_runners/episode_return_mean") → number; nested dicts are paths, too.
        option: The option that they come from, for messages.

    Raises:
        CliError: If a value is no number.
    """

    def __init__(self, criteria: Mapping[str, Any], option: str = "--stop"):
        self.option = option
        self.targets: dict[str, float] = {}
        for path, value in flatten_result(criteria).items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
                raise CliError(
                    f"{option}: {path!r} has the bound {value!r}, which must be a number: {{{path!r}: 475}}."
                )
            self.targets[path] = value

    def add(self, path: str, target: float) -> None:
        """One more criterion; of two with the same path, the one that comes first counts."""
        self.targets[path] = min(target, self.targets.get(path, target))

    def check_evaluation(self, interval: int | None) -> None:
        """Checks that there will be evaluations if a criterion waits for one.

        Args:
            interval: Iterations between evaluations; None or 0 for never.

        Raises:
            CliError: If there will be none.
        """
        waiting = [path for path in self.targets if path.startswith("evaluation/")]
        if waiting and not interval:
            raise CliError(
                f"{self.option}: {waiting[0]!r} needs evaluations, and none are set. Add --evaluation-interval 10."
            )

    def check_names(self, known: Mapping[str, Any] | None) -> None:
        """Checks paths before there is a result.

        Args:
            known: A result with all its numbers, but for those of timers and replay buffers, which only a run has;
                None if they are not known.

        Raises:
            CliError: If a path leads nowhere in it; names near matches.
        """
        if known is not None:
            later = ("timers/", "replay_buffer/")
            self._check(known, {path: goal for path, goal in self.targets.items() if not path.startswith(later)})

    def reached(self, result: Mapping[str, Any]) -> str | None:
        """The criterion that `result` fulfils, in words; None if it fulfils none.

        Raises:
            CliError: If a path leads nowhere; on the first result already, as results have all keys from the start.
        """
        # Most results hold no evaluation.
        present = {
            path: target
            for path, target in self.targets.items()
            if "evaluation" in result or not path.startswith("evaluation/")
        }
        return self._check(result, present)

    def _check(self, result: Mapping[str, Any], targets: Mapping[str, float]) -> str | None:
        try:
            return check_stop(result, targets)
        except ValueError as error:
            raise CliError(f"{self.option}: {error}") from error

    def eta(self, result: Mapping[str, Any], steady_seconds: float) -> tuple[float | None, bool]:
        """When the run will end, as far as that can be foreseen: a return cannot, a number of steps can.

        Args:
            result: The last result.
            steady_seconds: Time that the run has taken so far, without compilation.

        Returns:
            Seconds from now, None if unknown; and whether other criteria may end the run earlier.
        """
        remaining = []
        for path, value in self._foreseeable(result).items():
            if path == "time_total_s":
                remaining.append(max(0.0, self.targets[path] - value))
            elif value > 0:
                remaining.append(max(0.0, (self.targets[path] - value) * steady_seconds / value))
        return (min(remaining) if remaining else None), len(remaining) < len(self.targets)

    def fraction(self, result: Mapping[str, Any]) -> float | None:
        """How much of the run is done, by the foreseeable criterion that is furthest; None without one."""
        done = [value / max(self.targets[path], 1e-9) for path, value in self._foreseeable(result).items()]
        return min(1.0, max(done)) if done else None

    def _foreseeable(self, result: Mapping[str, Any]) -> dict[str, float]:
        """The present values of the criteria that grow steadily."""
        values = flatten_result(result)
        return {
            path: float(values[path])
            for path in self.targets
            if path in ("training_iteration", "time_total_s") or (path.endswith("_lifetime") and path in values)
        }

    def __str__(self) -> str:
        if not self.targets:
            return "Ctrl-C"
        return " or ".join(f"{path} reaches {target:,.10g}" for path, target in self.targets.items())
