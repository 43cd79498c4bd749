"""Schedules: settings that change with the lifetime number of sampled steps.

A compiled program gets a schedule as arrays in place of a number or a list of points; `Schedule` and `Scheduler` are
RLlib's objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeGuard, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.utils import counters
from jaxrl_stack.utils.schedules.schedule import (
    ConstantSchedule,
    ExponentialSchedule,
    LinearSchedule,
    PiecewiseSchedule,
    PolynomialSchedule,
    Schedule,
)

__all__ = [
    "SCHEDULE_SIZE",
    "ConstantSchedule",
    "ExponentialSchedule",
    "LinearSchedule",
    "PiecewiseSchedule",
    "PolynomialSchedule",
    "Schedule",
    "ScheduleArrays",
    "Scheduler",
    "encode",
    "is_schedule",
    "schedule_problem",
    "validate_schedule",
    "value_at",
    "values_at",
]

SCHEDULE_SIZE = 8
"""Number of points that constants and short schedules are padded to."""


class ScheduleArrays(NamedTuple):
    """Piecewise linear function of a lifetime step counter, given by its points: an array of the points' counters, and
    an array of their values.

    Attributes:
        times: ``uint32[K, 2]``, non-decreasing counters; the first one is 0.
        values: ``float32[K]``. The last value holds after the last time.
    """

    times: Any
    values: Any


def is_schedule(value: Any) -> TypeGuard[Sequence[Sequence[float]]]:
    """Whether the value of a setting is a schedule ``[[timestep, value], ...]`` and not a number. True for every list
    or tuple; the points are not checked.
    """
    return isinstance(value, (list, tuple))


def validate_schedule(value: Any, setting_name: str) -> None:
    """Raises a ValueError if `value` is neither a number nor a valid schedule ``[[0, v0], [t1, v1], ...]``.

    Args:
        value: Number, or at least two ``[timestep, value]`` pairs with non-decreasing integer timesteps from
            0 on.
        setting_name: Name for the error message.

    Raises:
        ValueError: If `value` is neither. The message has the setting, the value and the remedy.
    """
    if is_schedule(value):
        problem = schedule_problem(value)
    else:
        is_number = np.isscalar(value) and np.isreal(value) and not isinstance(value, (bool, str))
        problem = None if is_number else "it is neither a number nor a schedule"
    if problem is not None:
        raise ValueError(
            f"{setting_name}={value!r}: {problem}. Use a number or a list of at least two pairs, such as "
            f"{setting_name}=[[0, 0.001], [100000, 0.0]]."
        )


def schedule_problem(points: Sequence[Any]) -> str | None:
    """Reason why a list of points ``[timestep, value]`` is no valid schedule; None if it is valid."""
    if len(points) < 2:
        return "the schedule has fewer than 2 points"
    last_time = 0
    for i, point in enumerate(points):
        if not isinstance(point, (list, tuple)) or len(point) != 2:
            return f"point {i} of the schedule is not a [timestep, value] pair"
        time, point_value = point
        if not _is_number(time) or not _is_number(point_value):
            return f"point {i} of the schedule is not a pair of numbers"
        if not 0 <= time < 2**63 or time != int(time):
            return f"timestep {time!r} of the schedule is not an integer in [0, 2**63)"
        if i == 0 and time != 0:
            return f"the schedule starts at timestep {time}, not at 0"
        if time < last_time:
            return f"the timesteps of the schedule decrease at point {i}"
        last_time = time
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def encode(value_or_schedule: float | Sequence[Sequence[float]], size: int = SCHEDULE_SIZE) -> ScheduleArrays:
    """Converts a constant setting or a schedule to `ScheduleArrays`: arrays of timesteps and values.

    A constant and a short schedule have the same shapes, so that one program serves both. A schedule of more
    than `size` points is padded to the next multiple of `size`. Padding repeats the last point.

    Args:
        value_or_schedule: Number, or ``[[0, v0], [t1, v1], ...]``; two points at the same timestep make a
            jump.
        size: Number of points to pad to.

    Returns:
        `ScheduleArrays` of NumPy arrays.

    Raises:
        ValueError: If the schedule is malformed.
    """
    validate_schedule(value_or_schedule, "schedule")
    points = value_or_schedule if is_schedule(value_or_schedule) else [(0, value_or_schedule)]
    padded = max(-(-len(points) // size), 1) * size
    points = [*points, *[points[-1]] * (padded - len(points))]
    return ScheduleArrays(
        times=np.stack([counters.from_int(int(time)) for time, _ in points]),
        values=np.array([value for _, value in points], np.float32),
    )


def values_at(settings: Any, counter: Any, *, together: bool = True) -> Any:
    """Replaces each schedule in a pytree of settings by its value at a lifetime step counter, ``uint32[2]``: (high
    word, low word).

    Args:
        settings: Pytree with `ScheduleArrays` among its leaves.
        counter: The time.
        together: Evaluate schedules of equal size at once. A program has a dozen schedules; evaluated one after the
            other, they make up a sixth of it. False for a program whose inputs are limited to the arrays that it reads:
            otherwise each value would depend on all schedules.
    """
    leaves, treedef = jax.tree.flatten(settings, is_leaf=lambda leaf: isinstance(leaf, ScheduleArrays))
    groups: dict[int, list[int]] = {}
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, ScheduleArrays):
            groups.setdefault(leaf.values.shape[0] if together else i, []).append(i)
    for places in groups.values():
        stacked = ScheduleArrays(*(jnp.stack(arrays) for arrays in zip(*(leaves[i] for i in places), strict=True)))
        values = value_at(stacked, counter)
        for place, i in enumerate(places):
            leaves[i] = values[place]
    return jax.tree.unflatten(treedef, leaves)


def shapes_at(settings: Any) -> Any:
    """Shapes and dtypes of the result of ``values_at(settings, counter)``, as a pytree of `jax.ShapeDtypeStruct`s.

    The result of ``values_at`` contains the current value in place of each schedule. The shapes and dtypes are for
    tracing.
    """

    def of_leaf(leaf: Any) -> jax.ShapeDtypeStruct:
        if isinstance(leaf, ScheduleArrays):
            return jax.ShapeDtypeStruct(leaf.values.shape[:-1], leaf.values.dtype)
        return jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf))

    return jax.tree.map(of_leaf, settings, is_leaf=lambda leaf: isinstance(leaf, ScheduleArrays))


@jax.jit
def value_at(schedule: ScheduleArrays, counter: Any) -> jax.Array:
    """Computes the value of a schedule at a lifetime step counter: linear between points, constant after the last one.

    Args:
        schedule: Arrays from `encode`, or several stacked along leading axes.
        counter: ``uint32[2]``.

    Returns:
        ``float32[...]``. Exactly the point's value at each point, and exactly the constant for a constant.
    """
    times, values = jnp.asarray(schedule.times), jnp.asarray(schedule.values)
    next_times = jnp.concatenate([times[..., 1:, :], times[..., -1:, :]], axis=-2)
    next_values = jnp.concatenate([values[..., 1:], values[..., -1:]], axis=-1)
    elapsed = counters.difference(counter, times)
    length = counters.difference(next_times, times)
    fraction = jnp.where(length > 0.0, elapsed / jnp.where(length > 0.0, length, 1.0), 0.0)
    # v + f·(w - v) keeps v exactly where f is 0: constants do not wobble.
    from_each_point = values + fraction * (next_values - values)
    last_point = jnp.maximum(jnp.sum(elapsed >= 0.0, axis=-1, keepdims=True) - 1, 0)
    is_last_point = jnp.arange(values.shape[-1]) == last_point
    return jnp.sum(jnp.where(is_last_point, from_each_point, 0.0), axis=-1)


class Scheduler:
    """Tracks, on the host, the value of a setting that is a number or a piecewise linear schedule.

    Compiled code uses `encode` and `value_at` instead.
    """

    def __init__(
        self,
        fixed_value_or_schedule: float | Sequence[Sequence[float]],
        *,
        framework: str = "jax",
        device: str | None = None,
    ):
        """Creates a scheduler for a setting that is a number or a schedule.

        Args:
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
        """Whether the scheduler was created with a schedule, and not with a constant number."""
        return not isinstance(self._schedule, ConstantSchedule)

    @staticmethod
    def validate(
        *, fixed_value_or_schedule: float | Sequence[Sequence[float]] | None, setting_name: str, description: str = ""
    ) -> None:
        """Raises a ValueError unless the value of a setting is a number, None or a valid schedule ``[[0, v0], [t1, v1],
        ...]``.

        Args:
            fixed_value_or_schedule: Number, schedule, or None (which is always fine).
            setting_name: Name for the error message.
            description: Description of the setting, for the error message.

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
        """Returns the schedule's value at the timestep of the last `update`, or at timestep 0 before the first
        `update`.
        """
        return np.float32(self._value)

    def update(self, timestep: int) -> float:
        """Sets the current timestep to `timestep`, the lifetime number of steps (not an increment). Returns the
        schedule's value at this timestep.
        """
        self._value = self._schedule(timestep)
        return self._value
