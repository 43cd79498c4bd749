"""Interpolation between points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxrl_stack.utils.schedules.schedule import Schedule, array_module


def _linear_interpolation(left: Any, right: Any, alpha: Any) -> Any:
    return left + alpha * (right - left)


class PiecewiseSchedule(Schedule):
    """Interpolates between ``(timestep, value)`` points."""

    def __init__(
        self,
        endpoints: Sequence[Sequence[float]],
        framework: str | None = None,
        interpolation: Callable[[Any, Any, Any], Any] = _linear_interpolation,
        outside_value: float | None = None,
    ):
        """Args:
        endpoints: At least two ``(timestep, value)`` pairs with non-decreasing timesteps.
        framework: None or "jax".
        interpolation: ``f(left_value, right_value, alpha)`` with alpha in [0, 1).
        outside_value: Value before the first and from the last timestep on. With None, asking there raises.

        Raises:
            ValueError: If there are fewer than two endpoints or their timesteps decrease.
        """
        super().__init__(framework)
        times = [time for time, _ in endpoints]
        if len(times) < 2 or times != sorted(times):
            raise ValueError(
                f"endpoints={endpoints!r} must be at least two pairs with non-decreasing timesteps."
            )
        self.endpoints = [(time, float(value)) for time, value in endpoints]
        self.interpolation = interpolation
        self.outside_value = outside_value

    def _value(self, t: Any) -> Any:
        xp = array_module(t)
        times = np.array([time for time, _ in self.endpoints], np.float64)
        values = np.array([value for _, value in self.endpoints], np.float64)
        if xp is np:
            inside = np.all((times[0] <= t) & (t < times[-1]))
            if self.outside_value is None and not inside:
                raise ValueError(
                    f"t={t} lies outside of [{times[0]:g}, {times[-1]:g}) and outside_value is None. "
                    "Pass outside_value=, for example the last endpoint's value."
                )
        elif self.outside_value is None:
            raise ValueError("A PiecewiseSchedule that is called with a JAX array needs outside_value=.")
        else:
            times, values = times.astype(np.float32), values.astype(np.float32)
        index = xp.clip(xp.searchsorted(times, t, side="right") - 1, 0, len(times) - 2)
        left_time, right_time = xp.asarray(times)[index], xp.asarray(times)[index + 1]
        length = right_time - left_time
        alpha = xp.where(length > 0, (t - left_time) / xp.where(length > 0, length, 1), 0)
        result = self.interpolation(xp.asarray(values)[index], xp.asarray(values)[index + 1], alpha)
        if self.outside_value is not None:
            result = xp.where((times[0] <= t) & (t < times[-1]), result, self.outside_value)
        return float(result) if np.ndim(t) == 0 and xp is np else result
