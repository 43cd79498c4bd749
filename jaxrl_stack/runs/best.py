"""Best state of a run so far: its mean return (or other metric), and its checkpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from jaxrl_stack.runs.agent_returns import EVALUATED_RETURN
from jaxrl_stack.runs.curves import RETURN
from jaxrl_stack.utils.results import get_nested

FOLDER = "best"
"""Name of the checkpoint in a run's directory."""


class Best:
    """Highest mean return (or other metric) of a run so far, and the checkpoint of the iteration that reached it.

    Args:
        evaluates: Whether the run is evaluated: the mean return of evaluations then counts, not of training.
        keeps: ``reporting(keep_best=...)``: True for the mean return, or the path of another number in results.

    Attributes:
        metric: Path of the number in results.
        value: Highest number so far; -inf before the first.
        iteration: Iteration of that number; 0 before the first.
        path: Path of the checkpoint; None before the first.
    """

    def __init__(self, *, evaluates: bool, keeps: bool | str = True):
        self.metric = keeps if isinstance(keeps, str) else EVALUATED_RETURN if evaluates else RETURN
        self.value, self.iteration = -math.inf, 0
        self.path: str | None = None

    def is_beaten_by(self, result: Mapping[str, Any]) -> bool:
        """Returns True if an iteration's metric is higher than `value`, the highest metric so far.

        In this case, stores the metric as `value`, and also stores the number of the iteration. Otherwise, returns
        False.

        Raises:
            ValueError: The result has no such number.
        """
        if self.metric.startswith("evaluation/") and "evaluation" not in result:
            return False
        try:
            value = float(get_nested(result, self.metric))
        except (KeyError, TypeError) as error:
            raise ValueError(f"reporting(keep_best={self.metric!r}): {error.args[0]}") from error
        if not value > self.value:
            return False
        self.value, self.iteration = value, int(result["training_iteration"])
        return True

    def __str__(self) -> str:
        return f"{self.path} ({self.metric} = {self.value:g} after iteration {self.iteration})"
