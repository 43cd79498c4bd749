"""The checkpoint of the best state of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from jaxrl_stack.runs.curves import RETURN
from jaxrl_stack.utils.results import get_nested

EVALUATED_RETURN = f"evaluation/{RETURN}"
FOLDER = "best"
"""Name of the checkpoint in a run's directory."""


class Best:
    """The highest mean return of a run so far, and where the checkpoint of that state is.

    Args:
        evaluates: Whether the run is evaluated: its evaluations' mean return counts then, not training's.

    Attributes:
        metric: Path of the return in results.
        value: The highest so far; -inf before the first.
        iteration: The iteration after which it was; 0 before the first.
        path: Where the checkpoint is; None before the first.
    """

    def __init__(self, *, evaluates: bool):
        self.metric = EVALUATED_RETURN if evaluates else RETURN
        self.value, self.iteration = -math.inf, 0
        self.path: str | None = None

    def is_beaten_by(self, result: Mapping[str, Any]) -> bool:
        """Notes the return of an iteration; whether it is higher than all before."""
        if self.metric == EVALUATED_RETURN and "evaluation" not in result:
            return False
        value = float(get_nested(result, self.metric))
        if not value > self.value:
            return False
        self.value, self.iteration = value, int(result["training_iteration"])
        return True

    def __str__(self) -> str:
        return f"{self.path} ({self.metric} = {self.value:g} after iteration {self.iteration})"
