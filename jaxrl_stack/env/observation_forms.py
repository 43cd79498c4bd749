"""Checks of the structure, shapes and types of observations, rewards and flags that environments return: cheap checks
for every step, and error messages.

Processes of asynchronous vectors import this module: it needs NumPy and gymnasium only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Dict, Discrete, Tuple

from jaxrl_stack.utils.integers import limits_of, outside_of

NUMBERS = frozenset(
    [float, int, bool, *(np.dtype(code).type for code in f"?{np.typecodes['AllInteger']}{np.typecodes['Float']}")]
)
"""Types whose objects are one real number."""
FLAGS = frozenset([bool, np.bool_])
"""Types whose objects are flags."""


def is_number(value: Any) -> bool:
    """Whether a value is one real number: a Python or NumPy number, or a 0-dimensional array."""
    return value.__class__ in NUMBERS or _number(value, "biuf") is not None


def is_flag(value: Any) -> bool:
    """Whether a value is True or False, or 1 or 0."""
    if value.__class__ in FLAGS:
        return True
    number = _number(value, "biu")
    return number is not None and number in (0, 1)


def _number(value: Any, kinds: str) -> np.ndarray | None:
    array = _as_array(value)
    return array if array is not None and array.shape == () and array.dtype.kind in kinds else None


def form_check(space: gym.Space) -> Callable[[Any], bool]:
    """Returns a fast function that checks whether a value, such as an observation, fits `space`.

    A value fits if it has the structure and shapes of `space`, and if the dtypes of `space` can hold the value's
    numbers.

    The function checks structure, shapes and kinds of dtype. It checks numbers only if the value and `space` have
    different integer dtypes. Floats are no integers, and nothing is broadcast.

    Args:
        space: Any nesting of `Box`, `Discrete`, `MultiDiscrete`, `MultiBinary`, `Dict`, `Tuple`.
    """
    match space:
        case Dict():
            return _dict_check({key: form_check(child) for key, child in space.spaces.items()})
        case Tuple():
            return _tuple_check([form_check(child) for child in space.spaces])
        case Discrete():
            return _number_check(np.dtype(space.dtype))
        case _:
            return _array_check(tuple(space.shape or ()), np.dtype(space.dtype))


def _dict_check(checks: dict[Any, Callable[[Any], bool]]) -> Callable[[Any], bool]:
    parts = list(checks.items())

    def fits(value: Any) -> bool:
        if not isinstance(value, Mapping) or len(value) != len(parts):
            return False
        return all(key in value and check(value[key]) for key, check in parts)

    return fits


def _tuple_check(checks: list[Callable[[Any], bool]]) -> Callable[[Any], bool]:
    def fits(value: Any) -> bool:
        if not isinstance(value, tuple | list) or len(value) != len(checks):
            return False
        return all(check(part) for check, part in zip(checks, value, strict=True))

    return fits


def _number_check(dtype: np.dtype) -> Callable[[Any], bool]:
    """Returns the function with which `form_check` checks values of a `Discrete` space.

    The function returns True if a value is one integer that the space's `dtype` can hold. The function does not convert
    Python integers, and NumPy integers of types that always fit `dtype`, to arrays, so it is fast for these values.
    """
    limits = np.iinfo(dtype)
    first, last = int(limits.min), int(limits.max)
    types = frozenset(t for t in NUMBERS if issubclass(t, np.integer | np.bool_) and np.can_cast(t, dtype))
    of_arrays = _array_check((), dtype)

    def fits(value: Any) -> bool:
        if value.__class__ in types:
            return True
        return first <= value <= last if value.__class__ is int else of_arrays(value)

    return fits


def _array_check(shape: tuple[int, ...], dtype: np.dtype) -> Callable[[Any], bool]:
    array_type = np.ndarray

    def fits(value: Any) -> bool:
        if value.__class__ is array_type and value.dtype is dtype and value.shape == shape:
            return True
        array = _as_array(value)
        return array is not None and array.shape == shape and (array.dtype == dtype or _holds(dtype, array))

    return fits


def _as_array(value: Any) -> np.ndarray | None:
    """Converts a value to a NumPy array of real numbers; returns None if that is impossible."""
    if isinstance(value, np.ndarray):
        # Code that ignores masks reads the numbers below them.
        return value if _is_real(value.dtype) and not isinstance(value, np.ma.MaskedArray) else None
    if value is None or isinstance(value, str | bytes | Mapping | set) or _has_mapping(value):
        return None
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError):  # lists of several lengths, for example
        return None
    return array if _is_real(array.dtype) else None


def _has_mapping(value: Any) -> bool:
    """Whether a value is a tuple that contains a dict, such as the ``(observation, info)`` that gymnasium's `reset`
    returns.
    """
    return isinstance(value, tuple) and any(isinstance(part, Mapping) for part in value)


def _is_real(dtype: np.dtype) -> bool:
    # bfloat16 and its like report kind "V".
    return dtype.kind in "biuf" or "float" in dtype.name


def _holds(dtype: np.dtype, array: np.ndarray) -> bool:
    """Whether a dtype can hold an array's numbers: a float dtype holds all, an integer dtype only integers in its
    range.
    """
    return dtype.kind == "f" or (array.dtype.kind in "biu" and outside_of(dtype, array) is None)


def misfit(space: gym.Space, value: Any, name: str) -> str | None:
    """Returns an error message for a value that does not fit `space`; None if `form_check` accepts the value.

    The message says why the value does not have the structure, shapes and types of `space`, and how to correct the
    value.

    Args:
        space: See `form_check`.
        value: The value to check.
        name: Name in messages.
    """
    match space:
        case Dict():
            if not isinstance(value, Mapping):
                return f"{name} is {shown(value)}, and its space is a Dict. Return a dict with the keys {list(space)}."
            missing, extra = [k for k in space if k not in value], [k for k in value if k not in space.spaces]
            if missing or extra:
                parts = [f"lacks {missing}"] if missing else []
                parts += [f"has {extra}, which its space does not have"] if extra else []
                return f"{name} {' and '.join(parts)}. Return a dict with the keys {list(space)}."
            children: Any = space.spaces.items()
        case Tuple():
            if not isinstance(value, tuple | list) or len(value) != len(space.spaces):
                what = (
                    f"a {type(value).__name__} of {len(value)} values"
                    if isinstance(value, tuple | list)
                    else shown(value)
                )
                return (
                    f"{name} is {what}. Return a tuple of {len(space.spaces)} values, one for each part of its space "
                    f"{space}."
                )
            children = enumerate(space.spaces)
        case _:
            return _misfit_of_part(space, value, name)
    return next(filter(None, (misfit(part, value[key], f"{name}[{key!r}]") for key, part in children)), None)


def _misfit_of_part(space: Any, value: Any, name: str) -> str | None:
    array = _as_array(value)
    if array is None and isinstance(value, tuple):
        return f"{name} is a tuple of {len(value)}, and its space is {space}. Return only the observation."
    if isinstance(value, np.ma.MaskedArray):
        return f"{name} is a masked array. Return value.filled(number), the numbers that the module should see."
    if array is None:
        return f"{name} is {shown(value)}. Return numbers as an array of {space}."
    shape, dtype = tuple(space.shape or ()), np.dtype(space.dtype)
    if array.shape != shape:
        return (
            f"{name} has shape {array.shape}, and its space {space} has shape {shape}. Return that shape in every "
            "step, or give observation_space another one."
        )
    if array.dtype == dtype or _holds(dtype, array):
        return None
    first, last = limits_of(dtype)
    if array.dtype.kind not in "biu" and not isinstance(space, gym.spaces.Box):
        return (
            f"{name} is {shown(value)}, of dtype {array.dtype}, and its space {space} has integers. Return a choice as "
            f"an integer; a number with fractions needs a Box of floats."
        )
    if array.dtype.kind not in "biu" and not isinstance(value, np.ndarray) and _are_integers(value):
        return (
            f"{name} is {shown(value)}, and {dtype}, the dtype of its space {space}, holds {first} to {last}. Return "
            "such numbers, or give observation_space a float dtype."
        )
    if array.dtype.kind not in "biu":
        return (
            f"{name} has dtype {array.dtype}, but its space {space} has dtype {dtype}: fractions would be lost. Return "
            f"obs.astype(np.{dtype}), or give observation_space a float dtype."
        )
    return (
        f"{name} has the value {outside_of(dtype, array)}, and {dtype}, the dtype of its space {space}, holds {first} "
        f"to {last}. Return such values, or give observation_space a larger dtype."
    )


def _are_integers(value: Any) -> bool:
    """Whether all numbers in nested lists are integers."""
    return all(map(_are_integers, value)) if isinstance(value, list | tuple) else isinstance(value, int)


def shown(value: Any) -> str:
    """Returns the `repr` of a value for messages, in one line of at most 60 characters; "…" replaces the rest of a
    longer text.
    """
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:59] + "…"


__all__ = ["FLAGS", "NUMBERS", "form_check", "is_flag", "is_number", "misfit", "shown"]
