"""Schedules as functions of the timestep."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def _array_module(t: Any) -> Any:
    """Returns `jax.numpy` for JAX arrays, including traced ones, else `numpy`, which does not start JAX's backend."""
    return jnp if isinstance(t, jax.Array) else np


class Schedule(abc.ABC):
    """Base class of schedules: numbers that depend on the timestep. Call a schedule, or its method `value`, with an int
    or an integer array.
    """

    def __init__(self, framework: str | None = None):
        """Initializes the base class: checks and stores `framework`, an argument of every schedule.

        Args:
            framework: None or "jax"; exists so that code written for RLlib runs.

        Raises:
            ValueError: If `framework` is something else.
        """
        if framework not in (None, "jax"):
            raise ValueError(f"framework={framework!r} is not supported by schedules. Leave it out or use 'jax'.")
        self.framework = framework

    def value(self, t: Any) -> Any:
        """Computes the schedule's value at timestep `t`. For an array `t`, returns an array of the same shape, or a
        scalar if the schedule is constant.
        """
        return self._value(t)

    def __call__(self, t: Any) -> Any:
        return self.value(t)

    @abc.abstractmethod
    def _value(self, t: Any) -> Any:
        """Computes the value of the schedule at timestep `t`. Subclasses override this method."""


class ConstantSchedule(Schedule):
    """Schedule with the same value at every timestep."""

    def __init__(self, value: float, framework: str | None = None):
        super().__init__(framework)
        self._constant = value

    def _value(self, t: Any) -> Any:
        return self._constant


class PolynomialSchedule(Schedule):
    """Polynomial schedule: ``final_p + (initial_p - final_p)·(1 - t/T)^power`` for timesteps t up to T
    (`schedule_timesteps`), then `final_p`.
    """

    def __init__(
        self,
        schedule_timesteps: int,
        final_p: float,
        framework: str | None = None,
        initial_p: float = 1.0,
        power: float = 2.0,
    ):
        """Creates a schedule that moves along a polynomial from `initial_p` to `final_p` in `schedule_timesteps`
        timesteps.

        Args:
            schedule_timesteps: T, after which the value stays at `final_p`.
            final_p: Last value.
            framework: None or "jax".
            initial_p: Value at t = 0.
            power: Exponent; 1 is linear.

        Raises:
            ValueError: If `schedule_timesteps` is not positive.
        """
        super().__init__(framework)
        if schedule_timesteps <= 0:
            raise ValueError(f"schedule_timesteps={schedule_timesteps} must be positive.")
        self.schedule_timesteps = schedule_timesteps
        self.final_p = final_p
        self.initial_p = initial_p
        self.power = power

    def _value(self, t: Any) -> Any:
        t = _array_module(t).minimum(t, self.schedule_timesteps)
        return self.final_p + (self.initial_p - self.final_p) * (1.0 - t / self.schedule_timesteps) ** self.power


class LinearSchedule(PolynomialSchedule):
    """Linear schedule from `initial_p` to `final_p` over `schedule_timesteps`, then `final_p`."""

    def __init__(self, **kwargs: Any):
        """Creates a linear schedule, with the arguments of `PolynomialSchedule` except `power`.

        Args:
            **kwargs: Arguments of `PolynomialSchedule` except `power`.
        """
        super().__init__(power=1.0, **kwargs)


class ExponentialSchedule(Schedule):
    """Exponential schedule ``initial_p·decay_rate^(t/T)``: in T timesteps (`schedule_timesteps`), the value changes by
    the factor `decay_rate`.
    """

    def __init__(
        self, schedule_timesteps: int, framework: str | None = None, initial_p: float = 1.0, decay_rate: float = 0.1
    ):
        """Creates a schedule whose value starts at `initial_p` and is multiplied by `decay_rate` every
        `schedule_timesteps` timesteps, with an exponential curve in between.

        Args:
            schedule_timesteps: T.
            framework: None or "jax".
            initial_p: Value at t = 0.
            decay_rate: Factor by which the value changes in T timesteps.

        Raises:
            ValueError: If `schedule_timesteps` is not positive.
        """
        super().__init__(framework)
        if schedule_timesteps <= 0:
            raise ValueError(f"schedule_timesteps={schedule_timesteps} must be positive.")
        self.schedule_timesteps = schedule_timesteps
        self.initial_p = initial_p
        self.decay_rate = decay_rate

    def _value(self, t: Any) -> Any:
        return self.initial_p * self.decay_rate ** (t / self.schedule_timesteps)


def _linear_interpolation(left: Any, right: Any, alpha: Any) -> Any:
    return left + alpha * (right - left)


class PiecewiseSchedule(Schedule):
    """Piecewise schedule, which interpolates between ``(timestep, value)`` points."""

    def __init__(
        self,
        endpoints: Sequence[Sequence[float]],
        framework: str | None = None,
        interpolation: Callable[[Any, Any, Any], Any] = _linear_interpolation,
        outside_value: float | None = None,
    ):
        """Creates a schedule that interpolates between ``(timestep, value)`` points.

        Args:
            endpoints: At least two ``(timestep, value)`` pairs with non-decreasing timesteps.
            framework: None or "jax".
            interpolation: ``f(left_value, right_value, alpha)`` with alpha in [0, 1).
            outside_value: Value before the first and from the last timestep on. If None, such timesteps raise.

        Raises:
            ValueError: If there are fewer than two endpoints or their timesteps decrease.
        """
        super().__init__(framework)
        times = [time for time, _ in endpoints]
        if len(times) < 2 or times != sorted(times):
            raise ValueError(
                f"endpoints={endpoints!r} must be at least two (timestep, value) pairs with non-decreasing timesteps."
            )
        self.endpoints = [(time, float(value)) for time, value in endpoints]
        self.interpolation = interpolation
        self.outside_value = outside_value

    def _value(self, t: Any) -> Any:
        xp = _array_module(t)
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
            raise ValueError(
                "PiecewiseSchedule(outside_value=None) cannot be called with a JAX array. Pass outside_value=..., for "
                "example the last endpoint's value."
            )
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
