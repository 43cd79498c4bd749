"""Helpers that RLlib's scripts import from its package `utils`."""

from __future__ import annotations

import functools
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any


def force_list(elements: Any = None, to_tuple: bool = False) -> list[Any] | tuple[Any, ...]:
    """Converts to a list: a single element becomes a one-element list, None an empty one.

    Args:
        elements: A list, tuple, set or deque of elements, one element, or None.
        to_tuple: Return a tuple.
    """
    kind = tuple if to_tuple else list
    if elements is None:
        return kind()
    return kind(elements) if type(elements) in (list, tuple, set, deque) else kind([elements])


force_tuple = functools.partial(force_list, to_tuple=True)


def flatten_dict(nested: Mapping[str, Any], sep: str = "/", env_steps: int = 0) -> dict[str, Any]:
    """Returns the leaves of nested dicts, lists and tuples as a flat dict ``{path: leaf}``: ``{"a": [1, 2]}`` becomes
    ``{"a/0": 1, "a/1": 2}``.

    Args:
        nested: The nested dict.
        sep: Separator between the parts of a path.
        env_steps: Has no effect.
    """
    flat: dict[str, Any] = {}

    def add(value: Any, path: tuple[str, ...]) -> None:
        if isinstance(value, Mapping):
            for key in sorted(value, key=str):
                add(value[key], (*path, str(key)))
        elif isinstance(value, list | tuple):
            for position, item in enumerate(value):
                add(item, (*path, str(position)))
        else:
            flat[sep.join(path)] = value

    add(nested, ())
    return flat


def unflatten_dict(flat: Mapping[str, Any], sep: str = "/") -> dict[str, Any]:
    """Converts a flat dict ``{path: leaf}`` from `flatten_dict` back to nested dicts.

    Lists and tuples become dicts with the positions as keys: ``{"a/0": 1}`` becomes ``{"a": {"0": 1}}``.

    Args:
        flat: Leaves by path.
        sep: Separator between the parts of a path.
    """
    nested: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, name = path.split(sep)
        inner = nested
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[name] = value
    return nested


def add_mixins(base: type, mixins: Sequence[type] | None, reversed: bool = False) -> type:
    """Returns a class that derives from a base and from mixins.

    Args:
        base: The base class.
        mixins: The mixins; the first one comes first in the method resolution order.
        reversed: The base comes before the mixins.
    """
    for mixin in list(mixins or [])[::-1]:
        base = type("new_base", (base, mixin) if reversed else (mixin, base), {})
    return base


def deprecation_warning(
    old: str, new: str | None = None, *, help: str | None = None, error: bool | type[Exception] | None = None
) -> None:
    """Issues a deprecation warning for an old name. If `error` is True or an exception class, raises an exception
    instead.

    Args:
        old: The old name.
        new: The name to use instead.
        help: A sentence to use instead.
        error: An exception class to raise; True stands for ValueError.

    Raises:
        Exception: With `error`.
    """
    message = f"`{old}` has been deprecated. {help or (f'Use `{new}` instead.' if new else '')}".strip()
    if error:
        raise (ValueError if error is True else error)(message)
    warnings.warn(message, DeprecationWarning, stacklevel=2)


def __getattr__(name: str) -> Any:
    if name in ("deep_update", "merge_dicts"):
        from ray.tune import utils  # importing Ray takes a while

        return getattr(utils, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
