"""Recomputation of a run's iterations, bit for bit: `rewind`, `verify`, `diff` and `inspect`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxrl_stack.utils.lazy_names import lazy_names

if TYPE_CHECKING:
    from jaxrl_stack.rewind.inspection import Inspection, inspect
    from jaxrl_stack.rewind.populations import population_at, rewind_population, verify_population
    from jaxrl_stack.rewind.replay import before_iteration, recomputed, rewind
    from jaxrl_stack.rewind.verification import diff, verify

__all__ = [
    "Inspection",
    "before_iteration",
    "diff",
    "inspect",
    "population_at",
    "recomputed",
    "rewind",
    "rewind_population",
    "verify",
    "verify_population",
]

_MODULES = {
    "inspection": ("Inspection", "inspect"),
    "populations": ("population_at", "rewind_population", "verify_population"),
    "replay": ("before_iteration", "recomputed", "rewind"),
    "verification": ("diff", "verify"),
}

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
