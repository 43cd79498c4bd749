"""A schedule that does not change."""

from __future__ import annotations

from typing import Any

from jaxrl_stack.utils.schedules.schedule import Schedule


class ConstantSchedule(Schedule):
    """The same value at every timestep."""

    def __init__(self, value: float, framework: str | None = None):
        super().__init__(framework)
        self._constant = value

    def _value(self, t: Any) -> Any:
        return self._constant
