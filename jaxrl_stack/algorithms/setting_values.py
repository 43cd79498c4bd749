"""Values of settings: compared, copied, and as parts of keys."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Hashable
from typing import Any, TypeGuard

import gymnasium as gym
import jax
import numpy as np

_Array = (np.ndarray, jax.Array)


def is_search_space(value: Any) -> bool:
    """Whether a tuner picks the value: ``{"grid_search": [...]}`` or an object with a `sample` method."""
    if isinstance(value, dict):
        return set(value) == {"grid_search"}
    # Spaces sample, too, but they are values.
    return callable(getattr(type(value), "sample", None)) and not isinstance(value, gym.Space)


def same(a: Any, b: Any) -> bool:
    """Equality that copes with arrays and with containers of them."""
    if a is b:
        return True
    if isinstance(a, _Array) or isinstance(b, _Array):
        return isinstance(a, _Array) and isinstance(b, _Array) and a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if is_record(a) and type(a) is type(b):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if isinstance(a, bool) != isinstance(b, bool):
        return False
    return bool(a == b)


def is_record(value: Any) -> TypeGuard[Any]:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def copy_value(value: Any) -> Any:
    """A copy whose containers and dataclasses are new and whose other objects are shared.

    Environments, functions, classes and spaces keep their identity, so that a copied config still matches the
    programs that were compiled for the original.
    """
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
    """The fields of a dataclass, not copied; a mapping as a new dict."""
    if is_record(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return dict(value)


class _ByEquality:
    """Makes an unhashable object a part of a key: compared by value, hashed by its type."""

    def __init__(self, value: Any):
        self.value = value

    def __hash__(self) -> int:
        return hash(type(self.value))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByEquality) and same(self.value, other.value)


def fingerprint_of(value: Any) -> Hashable:
    """A hashable form of a setting's value: equal iff the values are interchangeable in a program."""
    if isinstance(value, dict):
        return ("dict", frozenset((key, fingerprint_of(item)) for key, item in value.items()))
    if isinstance(value, (list, tuple)):
        return ("list", tuple(fingerprint_of(item) for item in value))
    if isinstance(value, (set, frozenset)):
        return ("set", frozenset(fingerprint_of(item) for item in value))
    if isinstance(value, _Array):
        array = np.asarray(value)
        return ("array", array.shape, array.dtype.str, array.tobytes())
    if is_record(value):
        fields = tuple(fingerprint_of(getattr(value, field.name)) for field in dataclasses.fields(value))
        return (type(value), fields)
    try:
        hash(value)
    except TypeError:
        return _ByEquality(value)
    # The type keeps 1, 1.0 and True apart.
    return (type(value), value)
