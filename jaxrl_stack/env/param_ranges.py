"""Distributions of environment parameters: validation of the setting, random draws, and scaling to [-1, 1]."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

Kind = Literal["uniform", "log", "choices"]
FORMS = "(low, high), ('log', low, high) or [values]"


def range_problem(name: Any, given: Any) -> str | None:
    """Checks a user's setting of a distribution, `given`. If the setting is invalid, returns a text that describes the
    required form; otherwise returns None.

    Args:
        name: Name of the parameter, for the description.
        given: ``(low, high)`` or ``("uniform", low, high)``, ``("log", low, high)``, or a list of values. A list that
            begins with "uniform" or "log" is a range, too: JSON and YAML have no tuples.
    """
    kind, values = _kind_and_values(given)
    if kind is None:
        return f"{FORMS} for {name!r}, and is {given!r}"
    if kind == "choices" and not values:
        return f"a list with at least one value for {name!r}, such as {{{name!r}: [0.5, 1.0]}}"
    if kind != "choices" and len(values) != 2:
        return f"a range with two bounds for {name!r}, such as {{{name!r}: (0.5, 2.0)}}"
    try:
        arrays = [np.asarray(value) for value in values]
    except ValueError:  # nested lists of different lengths
        return f"numbers for {name!r}"
    of_bools = kind == "choices" and all(array.dtype.kind == "b" for array in arrays)
    if not of_bools and not all(array.dtype.kind in "iuf" and np.isfinite(array).all() for array in arrays):
        return f"finite numbers for {name!r}"
    if kind == "choices":
        return None
    low, high = arrays
    try:
        is_empty = bool(np.any(low > high))
    except ValueError:  # bounds of different shapes
        return f"bounds of one shape for {name!r}"
    if is_empty:
        return f"a range with low <= high for {name!r}, such as {{{name!r}: ({high}, {low})}}"
    if kind == "log" and np.any(low <= 0):
        return f"a log range with low > 0 for {name!r}, such as {{{name!r}: ('log', 0.1, 10.0)}}"
    return None


def stored_form(given: Any) -> Any:
    """Converts a valid distribution to the form that configs store: ``("uniform" | "log", low, high)``, or a list of
    values.

    Ranges and lists of two values stay different where tuples and lists compare equal. Arrays become lists and numbers,
    which checkpoints and JSON store.
    """
    kind, values = _kind_and_values(given)
    numbers = [np.asarray(value).tolist() for value in values]
    return numbers if kind == "choices" else (kind, *numbers)


def _kind_and_values(given: Any) -> tuple[Kind | None, tuple[Any, ...]]:
    """Splits a user's setting of a distribution, `given`, into ``(kind, bounds or values)``.

    The kind is "uniform", "log" or "choices". Returns ``(None, ())`` if `given` has an unknown form.
    """
    if isinstance(given, list | tuple) and given and isinstance(given[0], str):
        return (given[0], tuple(given[1:])) if given[0] in ("uniform", "log") else (None, ())  # type: ignore[return-value]
    if isinstance(given, tuple):
        return "uniform", given
    return ("choices", tuple(given)) if isinstance(given, list) else (None, ())


@dataclasses.dataclass(frozen=True, eq=False)
class ParamRange:
    """Distribution from which one environment parameter is drawn.

    Attributes:
        kind: "uniform" and "log" (uniform in the logarithm) lie between two bounds, "choices" are equally likely
            values. Draws of integers include both bounds.
        values: ``[2, *shape]``, the bounds; or ``[n, *shape]``, the choices. In the parameter's dtype.
    """

    kind: Kind
    values: np.ndarray

    @classmethod
    def of(cls, given: Any, like: Any) -> ParamRange:
        """Creates the distribution of an environment parameter from the user's setting, such as a range or a list of
        values.

        Args:
            given: A valid setting; see `range_problem`.
            like: Value of the parameter, for shape and dtype.

        Raises:
            ValueError: Its numbers do not fit the parameter's shape or dtype, or draws of them overflow.
        """
        kind, values = _kind_and_values(given)
        assert kind is not None
        dtype, shape = np.dtype(jnp.result_type(like)), np.shape(like)
        if dtype.kind not in "biuf":
            raise ValueError(
                f"the parameter has the dtype {dtype}, but only numbers can be drawn. Remove the parameter from "
                "randomized_params"
            )
        arrays = [np.asarray(value) for value in values]
        if (dtype.kind == "b") != all(array.dtype.kind == "b" for array in arrays):
            raise ValueError(
                "the parameter is a bool, so give [True, False]"
                if dtype.kind == "b"
                else f"the parameter is {dtype}, so give numbers and no bools"
            )
        if dtype.kind in "iu" and any(np.mod(array, 1).any() for array in arrays):
            raise ValueError(f"the parameter is {dtype}, so give whole numbers")
        try:
            fitting = [np.broadcast_to(array, shape) for array in arrays]
        except ValueError:
            raise ValueError(f"the parameter has shape {shape}, so give numbers or arrays of this shape") from None
        _check_limits(kind, arrays, dtype)
        return cls(kind, np.stack([array.astype(dtype) for array in fitting]))

    def draw(self, key: jax.Array) -> jax.Array:
        """Draws a value of the environment parameter.

        If the parameter is an array, a range gives an independent draw for each entry, and a list of values gives one
        of its values for the whole array.

        Args:
            key: PRNG key.
        """
        low, high, shape, dtype = self.values[0], self.values[-1], self.values.shape[1:], self.values.dtype
        if self.kind == "choices":
            return jnp.asarray(self.values)[jax.random.randint(key, (), 0, len(self.values))]
        if self.kind == "uniform" and dtype.kind in "iu":
            return _integers(key, self.values)
        bounds = (np.asarray(bound, np.float32) for bound in (low, high))
        if self.kind == "uniform":
            return jax.random.uniform(key, shape, jnp.float32, *bounds).astype(dtype)
        drawn = jnp.exp(jax.random.uniform(key, shape, jnp.float32, *map(np.log, bounds)))
        if dtype.kind in "iu":
            # float32 rounds the largest int32 up, to a number that is no int32.
            drawn = jnp.minimum(jnp.round(drawn), _rounded_down(high))
        # exp(log(x)) is not always x.
        return jnp.clip(drawn.astype(dtype), low, high)

    def scaled(self, value: Any) -> jax.Array:
        """Scales a value of the parameter linearly, so that the parameter's range becomes [-1, 1].

        The lower bound or lowest choice becomes -1, the upper bound or highest choice becomes 1. The result is float32
        and has the value's shape.

        Values of "log" are scaled by their logarithms, choices by value and not by index. Values outside of the range
        lie outside of [-1, 1]. If both bounds are equal, the result is the distance from them, 0 for each draw.
        """
        low, high = (np.asarray(bound, np.float32) for bound in (self.values.min(0), self.values.max(0)))
        value = jnp.asarray(value, jnp.float32)
        if self.kind == "log":
            low, high, value = np.log(low), np.log(high), jnp.log(value)
        width = high - low
        is_point = width == 0
        return jnp.where(is_point, value - low, 2 * (value - low) / np.where(is_point, 1, width) - 1)


def _check_limits(kind: Kind, arrays: list[np.ndarray], dtype: np.dtype) -> None:
    """Raises ValueError if the parameter's dtype cannot hold the numbers of a distribution.

    Floats are drawn as float32, so they must fit both dtypes. Three cases are errors: a float overflows; ``high - low``
    of a uniform range overflows; or a log range begins below the smallest normal float.
    """
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if not all(limits.min <= int(x) <= limits.max for array in arrays for x in array.ravel()):
            raise ValueError(f"the parameter is {dtype}, so give numbers from {limits.min} to {limits.max}")
    elif dtype.kind == "f":
        with np.errstate(over="ignore"):
            cast = [array.astype(dtype).astype(np.float32) for array in arrays]
            width = cast[-1] - cast[0] if kind == "uniform" else np.float32(0)
        limits = np.finfo(min(dtype, np.dtype(np.float32), key=lambda one: one.itemsize))
        if not all(np.isfinite(array).all() for array in cast):
            raise ValueError(f"the parameter is {dtype}, so give numbers from {limits.min} to {limits.max}")
        if not np.isfinite(width).all():
            raise ValueError(f"high - low must be at most {limits.max}, so choose closer bounds")
        if kind == "log" and any((array < limits.tiny).any() for array in cast):
            raise ValueError(f"the parameter is {dtype}, so give ('log', low, high) with low >= {limits.tiny}")


def _integers(key: jax.Array, bounds: np.ndarray) -> jax.Array:
    """Draws an array of integers uniformly between lower and upper bounds.

    `bounds` has the shape ``[2, *shape]``, and the result has the shape ``shape``. Both bounds are possible values. The
    computation does not overflow.

    The unsigned distance from the lower bound is drawn: it may be as large as all numbers of the dtype.
    """
    unsigned = np.dtype(f"u{bounds.dtype.itemsize}")
    low, high = bounds.view(unsigned).reshape(2, -1)
    width, most = high - low, np.iinfo(unsigned).max
    distance = jax.random.randint(key, width.shape, 0, np.where(width == most, most, width + 1), unsigned)
    if (width == most).any():
        distance = jnp.where(width == most, jax.random.bits(key, width.shape, unsigned), distance)
    return jax.lax.bitcast_convert_type(distance + low, bounds.dtype).reshape(bounds.shape[1:])


def _rounded_down(number: np.ndarray) -> np.ndarray:
    """Converts positive integers to float32, rounding down."""
    nearest = np.asarray(number, np.float32)
    return np.where(nearest.astype(np.float64) > number, np.nextafter(nearest, np.float32(0)), nearest)


def shown(given: Mapping[str, Any] | Any) -> str:
    """Returns the setting ``environment(randomized_params=...)`` as text for error messages, with ranges as users write
    them.
    """
    if not isinstance(given, Mapping):
        return getattr(given, "__qualname__", repr(given))
    ranges = {name: own[1:] if own[0] == "uniform" else own for name, own in given.items()}
    return repr(ranges)


__all__ = ["FORMS", "ParamRange", "range_problem", "shown", "stored_form"]
