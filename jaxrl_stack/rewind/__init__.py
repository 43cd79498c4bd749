"""Recomputation of a run's iterations, bit for bit: `rewind`, `verify`, `diff` and `inspect`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxrl_stack.utils.lazy_names import lazy_names

if TYPE_CHECKING:
    from jaxrl_stack.rewind.inspection import Inspection, inspect
    from jaxrl_stack.rewind.populations import population_at
    from jaxrl_stack.rewind.replay import recomputed, rewind, rewind_population
    from jaxrl_stack.rewind.verification import diff, verify, verify_population

__all__ = [
    "Inspection",
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
    "populations": ("population_at",),
    "replay": ("recomputed", "rewind", "rewind_population"),
    "verification": ("diff", "verify", "verify_population"),
}

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
