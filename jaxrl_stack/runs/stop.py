"""Stop criteria of a run: conditions on the values in its results."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any, Literal

from jaxrl_stack.runs.curves import RETURN, axis_label, x_axis
from jaxrl_stack.utils.notices import notice_once
from jaxrl_stack.utils.results import flatten_result, get_nested, no_number
from jaxrl_stack.utils.signatures import call_problem

Until = Mapping[Any, Any] | Callable[[Mapping[str, Any]], Any] | int | None
"""Form of stop criteria: a dict {path in the result: value at which to stop}, as in Tune; a function of the result; a
number of iterations; or None, which stops only at Ctrl-C."""


_MANY_ITERATIONS = 10_000
"""From this number of iterations on, a notice is shown, because environment steps were probably meant."""


class StopError(ValueError):
    """Error for an invalid stop criterion. The message names the criterion and the remedy."""


class StopReason(str):
    """Reason why a run ends, in words.

    Attributes:
        is_goal: Whether it is a goal, such as a return, and not only a number of steps, a time, or a plateau.
    """

    is_goal: bool

    def __new__(cls, text: str, *, is_goal: bool) -> StopReason:
        reason = super().__new__(cls, text)
        reason.is_goal = is_goal
        return reason


@dataclasses.dataclass(frozen=True)
class Plateau:
    """Stop criterion that ends a run if a metric has not improved for `patience` units of `x`, by default env steps.

    Args:
        patience: Length of a run without improvement before it ends, in units of `x`.
        min_delta: Minimum difference to the best value so far that counts as an improvement.
        metric: Path of the number in the result. NaN is not an improvement.
        mode: "max" if higher is better, "min" if lower is better.
        x: Unit of patience: "steps" (environment steps), "iterations", "seconds", or the path of a number.

    Raises:
        StopError: If a value is invalid.
    """

    patience: float
    min_delta: float = 0.0
    metric: str = RETURN
    mode: Literal["max", "min"] = "max"
    x: str = "steps"

    def __post_init__(self) -> None:
        for name, value, is_right, what in (
            ("patience", self.patience, _is_number(self.patience) and self.patience > 0, "a number above 0"),
            ("min_delta", self.min_delta, _is_number(self.min_delta) and self.min_delta >= 0, "a number of at least 0"),
            ("metric", self.metric, isinstance(self.metric, str), f"a path in the result, such as {RETURN!r}"),
            ("mode", self.mode, self.mode in ("max", "min"), "'max' or 'min'"),
            ("x", self.x, isinstance(self.x, str), "'steps', 'iterations', 'seconds' or a path in the result"),
        ):
            if not is_right:
                raise StopError(f"plateau: {name}={value!r} must be {what}.")

    @classmethod
    def of(cls, value: Any) -> Plateau | None:
        """Builds a `Plateau` from a dict of its arguments; returns a `Plateau` or None unchanged.

        Raises:
            StopError: If `value` is none of these, or an argument is unknown, missing or invalid.
        """
        if value is None or isinstance(value, cls):
            return value
        names = [field.name for field in dataclasses.fields(cls)]
        unknown = [name for name in value if name not in names] if isinstance(value, Mapping) else [None]
        if unknown or "patience" not in value:
            raise StopError(
                f"plateau={value!r}: must be a Plateau, or a dict with patience and optionally other arguments of "
                f'Plateau ({", ".join(names)}): {{"patience": 100000, "min_delta": 1.0}}.'
            )
        return cls(**value)

    def __str__(self) -> str:
        more = f" by {self.min_delta:g}" if self.min_delta else ""
        return f"{self.metric} has not improved{more} over {self.patience:,.10g} {axis_label(self.x)}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


class StopCriteria:
    """Stop criteria of a run. The run ends when the first one is reached.

    Args:
        until: A dict such as ``{"env_runners/episode_return_mean": 475}``, whose paths can also be nested dicts and
            tuples; or a function of the result that returns whether to stop; or a number of iterations, counted from
            `iteration`; or None.
        source: Name of the argument, for messages.
        iteration: Number of iterations so far.
        plateau: Also ends the run without improvement, counted from the first checked result.

    Raises:
        StopError: If `until` has another form, or a value is not a number.
    """

    def __init__(
        self,
        until: Until,
        source: str = "until",
        *,
        iteration: int = 0,
        plateau: Plateau | Mapping[str, Any] | None = None,
    ):
        self.source = source
        self.plateau = Plateau.of(plateau)
        self._best: tuple[float, float] | None = None  # the best value of the plateau's metric, and where it was
        self.targets: dict[str, float] = {}
        self.function = until if callable(until) else None
        if isinstance(until, int) and not isinstance(until, bool):
            if until >= _MANY_ITERATIONS:
                notice_once(
                    f"{source}={until} means iterations, not environment steps. For steps use "
                    f"{source}={{'num_env_steps_sampled_lifetime': {until}}}."
                )
            until = {"training_iteration": iteration + until}
        if not (until is None or callable(until) or isinstance(until, Mapping)):
            raise StopError(
                f"{source}={until!r}: must be a dict {{path in the result: value}}, a number of iterations, or a "
                f'function of the result. Example: {source}={{"env_runners/episode_return_mean": 475}}.'
            )
        problem = call_problem(until, {}) if callable(until) else None
        if problem is not None:
            raise StopError(
                f"{source}={until!r} cannot be called with the result of an iteration ({problem}). Use a function of "
                "one argument: lambda result: result['time_total_s'] > 60."
            )
        given = until if isinstance(until, Mapping) else {}
        paths = {"/".join(key) if isinstance(key, tuple) else key: value for key, value in given.items()}
        for path, value in flatten_result(paths).items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
                raise StopError(
                    f"{source}: {path!r} has the bound {value!r}, which must be a number. Example: {{{path!r}: 475}}."
                )
            self.targets[path] = value

    def add(self, path: str, target: float) -> None:
        """Adds a stop criterion: the run ends when the metric at `path` is at least `target`. If `path` already has a
        target, the lower target applies.
        """
        self.targets[path] = min(target, self.targets.get(path, target))

    def check_evaluation(
        self, interval: int | None, remedy: str = "Set evaluation(evaluation_interval=10) in the config."
    ) -> None:
        """Raises an error if a criterion reads a metric of evaluations (a path below ``evaluation/``), but the config
        has no evaluations.

        Args:
            interval: Iterations between evaluations; None or 0 for none.
            remedy: Sentence with the remedy, for the message.

        Raises:
            StopError: If a criterion needs evaluations and there are none.
        """
        waiting = [path for path in [*self.targets, *self._paths_of_plateau()] if path.startswith("evaluation/")]
        if waiting and not interval:
            raise StopError(
                f"{self.source}: the metric {waiting[0]!r} needs evaluations, and the config has none. {remedy}"
            )

    def check_names(self, known: Mapping[str, Any] | None) -> None:
        """Checks, before the first iteration, that an example result has a number for each metric that the criteria
        read.

        The example is `known`. Metrics of timers and replay buffers are not checked, because the example does not
        contain them. If `known` is None, checks nothing.

        Args:
            known: A result with all numbers, except timers and replay buffers, which only a run has; None if unknown.

        Raises:
            StopError: If the result has no value at a path; names similar paths.
        """
        if known is not None:
            later = ("timers/", "replay_buffer/")
            self._check(known, {path: goal for path, goal in self.targets.items() if not path.startswith(later)})
            self._check(known, {path: math.inf for path in self._paths_of_plateau() if not path.startswith(later)})

    def reached(self, result: Mapping[str, Any]) -> StopReason | None:
        """Checks whether a result reaches a stop criterion: returns a sentence about this criterion, or None. Call it
        with the results of all iterations, in order.

        Raises:
            StopError: If the result has no value at a path. Results have all keys from the start, so the first one
                shows it.
        """
        if self.function is not None:
            is_true = bool(self.function(result))
            reached = StopReason(f"{self.source} is true of the result", is_goal=True) if is_true else None
            return reached or self._plateau_reached(result)
        # Most results hold no evaluation.
        present = {
            path: target
            for path, target in self.targets.items()
            if "evaluation" in result or not path.startswith("evaluation/")
        }
        return self._check(result, present) or self._plateau_reached(result)

    @property
    def paths(self) -> list[str] | None:
        """Paths of all metrics that the criteria read; None if a criterion is a function, because the function may read
        any metric.
        """
        return None if self.function is not None else [*self.targets, *self._paths_of_plateau()]

    def _paths_of_plateau(self) -> list[str]:
        return [] if self.plateau is None else [self.plateau.metric, x_axis(self.plateau.x)]

    def _plateau_reached(self, result: Mapping[str, Any]) -> StopReason | None:
        """Returns the reason to stop, as a text, if the plateau's metric has not improved for `Plateau.patience`, such
        as a number of env steps; else None.
        """
        plateau = self.plateau
        paths = [
            path for path in self._paths_of_plateau() if "evaluation" in result or not path.startswith("evaluation/")
        ]
        self._check(result, dict.fromkeys(paths, math.inf))
        if plateau is None or len(paths) < 2:
            return None
        value, x = (float(get_nested(result, path)) for path in paths)
        gain = math.inf if self._best is None else (value - self._best[0]) * (1.0 if plateau.mode == "max" else -1.0)
        if not math.isnan(value) and gain > 0.0 and gain >= plateau.min_delta:
            self._best = value, x
        if self._best is None or x - self._best[1] < plateau.patience:
            return None
        return StopReason(f"{plateau}, since {self._best[0]:g}", is_goal=False)

    def _check(self, result: Mapping[str, Any], targets: Mapping[str, Any]) -> StopReason | None:
        """Returns a sentence about the first target that the result reaches, or None if it reaches none.

        Raises:
            StopError: If a metric is missing or not a number.
        """
        reached = None
        for path, target in targets.items():
            try:
                value = get_nested(result, path)
            except KeyError as error:
                raise StopError(f"{self.source}: {error.args[0]}") from error
            if not isinstance(value, numbers.Real):
                raise StopError(
                    f"{self.source}: {no_number(path, result)} The value of {path!r} is a {type(value).__name__}."
                )
            # What is not yet known, NaN, has not reached its bound.
            if reached is None and value >= target:
                reached = StopReason(f"{path} = {value:g} has reached {target:g}", is_goal=not is_steady(path))
        return reached

    def eta(
        self, result: Mapping[str, Any], before: Mapping[str, float], steady_seconds: float
    ) -> tuple[float | None, bool]:
        """Estimates the remaining seconds of the run from criteria that grow steadily, such as steps.

        Args:
            result: The last result.
            before: Numbers of the earlier run that this run continues, by path.
            steady_seconds: Time of the run so far, without compilation.

        Returns:
            Seconds from now, or None if unknown; and whether other criteria may end the run earlier.
        """
        remaining = []
        for path, value in self._foreseeable(result).items():
            missing = max(0.0, self.targets[path] - value)
            done = value - before.get(path, 0.0)
            if path == "time_total_s":
                remaining.append(missing)
            elif done > 0:
                remaining.append(missing * steady_seconds / done)
        num_criteria = len(self.targets) + (self.function is not None) + (self.plateau is not None)
        return (min(remaining) if remaining else None), len(remaining) < num_criteria

    def fraction(self, result: Mapping[str, Any], before: Mapping[str, float] | None = None) -> float | None:
        """Finished fraction of the run, at most 1, computed from the targets of metrics such as env steps.

        Only metrics that grow steadily count; the result is None if no such metric has a target. The fraction of a
        metric is its growth since the start of the run, divided by the growth from the start to the target; the highest
        fraction is returned. `before` contains the values of the metrics at the start of the run.
        """
        done = []
        for path, value in self._foreseeable(result).items():
            start = (before or {}).get(path, 0.0)
            done.append((value - start) / max(self.targets[path] - start, 1e-9))
        return min(1.0, max(done)) if done else None

    def _foreseeable(self, result: Mapping[str, Any]) -> dict[str, float]:
        """Current values of the metrics that have a target and grow steadily, such as steps: ``{path: value}``."""
        steady = [path for path in self.targets if is_steady(path)]
        values = flatten_result(result) if steady else {}
        return {path: float(values[path]) for path in steady if path in values}

    def __str__(self) -> str:
        criteria = [f"{path} reaches {target:,.10g}" for path, target in self.targets.items()]
        criteria += [f"{self.source} is true of the result"] * (self.function is not None)
        criteria += [str(self.plateau)] * (self.plateau is not None)
        return " or ".join(criteria) or "Ctrl-C"


def is_steady(path: str) -> bool:
    """Whether the metric at `path` grows in every iteration regardless of learning, as counts of env steps do."""
    return path in ("training_iteration", "time_total_s") or path.endswith("_lifetime")
