"""Comparison and copies of values of settings."""

from __future__ import annotations

import copy
import dataclasses
import functools
from typing import Any, TypeGuard

import gymnasium as gym
import jax
import numpy as np

_Array = (np.ndarray, jax.Array)


class DefaultNumber(int):
    """RLlib's default number for a setting; the config shows this number, but does not apply it.

    An example is the default ``num_env_runners=2``, which starts no actors. The number takes effect only if the user
    sets it, as in ``env_runners(num_env_runners=2)``.

    A `DefaultNumber` equals the number everywhere except in `same`, which distinguishes the default from the same
    number set by the user.
    """


_PLAIN = frozenset({type(None), bool, int, float, str})
"""Types of most values: they contain nothing, and are no search spaces."""
_NOT_NUMBERS = (bool, DefaultNumber)
"""Integer types whose values `same` considers different from values of all other types."""


def is_search_space(value: Any) -> bool:
    """Whether a tuner picks the value: ``{"grid_search": [...]}``, or an object with a `sample` method."""
    if type(value) in _PLAIN:
        return False
    if isinstance(value, dict):
        return set(value) == {"grid_search"}
    # Spaces sample, too, but they are values.
    return callable(getattr(type(value), "sample", None)) and not isinstance(value, gym.Space)


def same(a: Any, b: Any, *, in_programs: bool = False) -> bool:
    """Whether two values are equal, including arrays and containers of arrays.

    Partial functions are equal if they have equal functions and arguments. With `in_programs`, equal numbers of
    different types, such as 1 and 1.0, are different, because compiled programs can depend on the type.
    """
    if a is b:
        return True
    if isinstance(a, _Array) or isinstance(b, _Array):
        return isinstance(a, _Array) and isinstance(b, _Array) and a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key], in_programs=in_programs) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(same(x, y, in_programs=in_programs) for x, y in zip(a, b, strict=True))
    if isinstance(a, functools.partial) and type(a) is type(b):
        return same((a.func, a.args, a.keywords), (b.func, b.args, b.keywords), in_programs=in_programs)
    if is_record(a) and type(a) is type(b):
        return same(as_dict(a), as_dict(b), in_programs=in_programs)
    if type(a) is not type(b) and (in_programs or isinstance(a, _NOT_NUMBERS) or isinstance(b, _NOT_NUMBERS)):
        return False
    # A number of NumPy compares itself with each of a list.
    equal = a == b
    return bool(equal) if np.ndim(equal) == 0 else False


def is_record(value: Any) -> TypeGuard[Any]:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def copy_value(value: Any) -> Any:
    """Returns a copy of a value. Copies containers and dataclasses at all levels; the copy shares all other objects.

    Environments, functions, classes and spaces keep their identity, so that a copied config matches the programs that
    were compiled for the original.
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, dict):
        # type(value) keeps ordered and default dicts what they are.
        new = copy.copy(value)
        for key in new:
            new[key] = copy_value(new[key])
        return new
    if type(value) in (list, tuple, set):
        return type(value)(copy_value(item) for item in value)
    if is_record(value):
        new = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(new, field.name, copy_value(getattr(value, field.name)))
        return new
    return value


def as_dict(value: Any) -> dict[str, Any]:
    """Converts a dataclass or a mapping to a new dict of its fields or entries. Values are not copied."""
    if is_record(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return dict(value)
