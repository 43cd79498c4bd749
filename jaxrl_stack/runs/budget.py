"""Budgets of sweeps: seconds, or env steps of all runs together."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

from jaxrl_stack.runs.curves import STEPS
from jaxrl_stack.runs.search_space import finite_ends
from jaxrl_stack.runs.statistics import duration

CONFIRMED_SHARE = 0.2
"""Share of a budget that trains the best combinations again, with other seeds."""
_UNITS = {"s": 1.0, "sec": 1.0, "second": 1.0, "min": 60.0, "minute": 60.0, "h": 3600.0, "hour": 3600.0, "day": 86400.0}
_TEXT = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*(s|sec|second|min|minute|h|hour|day)(?:(?<=\w\w)s)?\s*", re.IGNORECASE)
_FORMS = f'seconds, "10 min", "2 h", or {{"{STEPS}": 10_000_000}} for the env steps of all runs'


@dataclasses.dataclass(frozen=True)
class Budget:
    """Budget of a search, in seconds or env steps.

    Attributes:
        amount: The amount.
        is_seconds: Whether it is in seconds; otherwise in env steps.
    """

    amount: float
    is_seconds: bool

    @classmethod
    def read(cls, budget: Any, where: str) -> Budget:
        """Converts the argument `budget` of a search, a time or a number of env steps, to a `Budget`.

        Args:
            budget: Seconds, text such as ``"2h"`` or ``"10 min"``, or ``{"num_env_steps_sampled_lifetime": n}``.
            where: Name of the caller, for messages.

        Raises:
            ValueError: If it is none of these, or not above 0.
        """
        amount, is_seconds = math.nan, True
        if isinstance(budget, str):
            if found := _TEXT.fullmatch(budget):
                amount = float(found[1]) * _UNITS[found[2].lower()]
        elif isinstance(budget, Mapping) and set(budget) == {STEPS}:
            amount, is_seconds = budget[STEPS], False
        elif not isinstance(budget, Mapping):
            amount = budget
        is_number = isinstance(amount, int | float) and not isinstance(amount, bool)
        # NaN is not above 0.
        if not (is_number and 0 < amount < math.inf):
            raise ValueError(f"{where}(budget={budget!r}): must be a number above 0 in one of these forms: {_FORMS}.")
        return cls(float(amount), is_seconds)

    def text(self, amount: float | None = None) -> str:
        """Formats an amount (None: the whole budget) in the budget's unit: ``"10 min"``, ``"1,000,000 env steps"``."""
        amount = self.amount if amount is None else amount
        return duration(amount) if self.is_seconds else f"{amount:,.0f} env steps"


def end_of_domain(space: Any, value: Any, share: float = 0.05) -> str | None:
    """Returns "lower" or "upper" if a hyperparameter's value is close to this bound of its search space, else None.

    The value is close to a bound if the distance is at most `share` of the width of the space. Also returns None if the
    space has no finite bounds or the value is not a number.

    Args:
        space: Search space with ``lower`` and ``upper``, such as ``tune.loguniform(1e-4, 1e-2)``.
        value: The value.
        share: Largest distance, as a share of the width on the scale of the space: logarithmic for log-uniform ones.
    """
    ends = finite_ends(space)
    if len(ends) < 2 or isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    numbers = [float(x) for x in (*ends, value)]
    if is_logarithmic(space):
        numbers = [math.log(max(x, 1e-300)) for x in numbers]
    low, high, value = numbers
    width = high - low
    if width <= 0:
        return None
    if value - low <= share * width:
        return "lower"
    return "upper" if high - value <= share * width else None


def is_logarithmic(space: Any) -> bool:
    """Whether a search space of Ray Tune has a logarithmic scale."""
    sampler = space.get_sampler() if hasattr(space, "get_sampler") else None
    # Quantized spaces wrap the sampler.
    sampler = getattr(sampler, "sampler", None) or sampler
    return "LogUniform" in type(sampler).__name__
