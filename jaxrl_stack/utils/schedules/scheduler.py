"""The current value of a setting that is a number or a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from jaxrl_stack.utils.schedules.arrays import is_schedule, validate_schedule
from jaxrl_stack.utils.schedules.schedule import ConstantSchedule, PiecewiseSchedule


class Scheduler:
    """Tracks the value of a number or of a piecewise linear schedule on the host.

    Compiled code uses `encode` and `value_at` instead.
    """

    def __init__(
        self,
        fixed_value_or_schedule: float | Sequence[Sequence[float]],
        *,
        framework: str = "jax",
        device: str | None = None,
    ):
        """Args:
        fixed_value_or_schedule: Number, or ``[[0, v0], [t1, v1], ...]`` with at least two points.
        framework: "jax".
        device: Accepted for compatibility; the value is a host scalar.

        Raises:
            ValueError: If the schedule is malformed or the framework is not "jax".
        """
        if framework != "jax":
            raise ValueError(f"framework={framework!r} is not supported by Scheduler. Leave it out or use 'jax'.")
        validate_schedule(fixed_value_or_schedule, "fixed_value_or_schedule")
        self.framework = framework
        self.device = device
        if is_schedule(fixed_value_or_schedule):
            last_value = float(fixed_value_or_schedule[-1][1])
            self._schedule = PiecewiseSchedule(fixed_value_or_schedule, outside_value=last_value)
        else:
            self._schedule = ConstantSchedule(float(cast(float, fixed_value_or_schedule)))
        self._value = self._schedule(0)

    @property
    def use_schedule(self) -> bool:
        """Whether the value can change."""
        return not isinstance(self._schedule, ConstantSchedule)

    @staticmethod
    def validate(
        *, fixed_value_or_schedule: float | Sequence[Sequence[float]] | None, setting_name: str, description: str = ""
    ) -> None:
        """Checks a setting's value.

        Args:
            fixed_value_or_schedule: Number, schedule, or None (which is always fine).
            setting_name: Name for the error message.
            description: What the setting is, for the error message.

        Raises:
            ValueError: If the value is malformed.
        """
        if fixed_value_or_schedule is None:
            return
        try:
            validate_schedule(fixed_value_or_schedule, setting_name)
        except ValueError as error:
            raise ValueError(f"Invalid {description}: {error}" if description else str(error)) from None

    def get_current_value(self) -> np.float32:
        """The value at the timestep of the last `update` (0 before the first)."""
        return np.float32(self._value)

    def update(self, timestep: int) -> float:
        """Moves to `timestep` (a lifetime count, not an increment) and returns the value there."""
        self._value = self._schedule(timestep)
        return self._value
