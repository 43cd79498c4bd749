"""Renamed and removed names of RLlib; errors and warnings name the replacement."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any


def absent_or_renamed(
    module: str, *, absent: Mapping[str, str] = {}, gone: Mapping[str, str] = {}, renamed: Mapping[str, Any] = {}
) -> Callable[[str], Any]:
    """Creates the `__getattr__` of a module for names of RLlib that the module does not have.

    For a renamed name, the created function returns the replacement and issues a warning. For other names, it raises an
    error. The error is an ImportError for a name in `absent` or `gone`, and an AttributeError for an unknown name.

    Args:
        module: The `__name__` of the module.
        absent: RLlib's names that do not exist here -> what to import instead.
        gone: Names that are not needed here -> a sentence with the reason.
        renamed: Old names -> the replacement; returned with a DeprecationWarning.
    """

    def get(name: str) -> Any:
        if name in absent:
            raise ImportError(f"`{name}` does not exist in jaxrl_stack, which runs on JAX only. Use {absent[name]}.")
        if name in gone:
            raise ImportError(f"{name} of RLlib has no counterpart in {module}. {gone[name]}")
        if name in renamed:
            replacement = renamed[name]
            warnings.warn(f"`{name}` is an old name. Use `{replacement.__name__}`.", DeprecationWarning, stacklevel=2)
            return replacement
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return get


def old_members(instead: Mapping[str, str], foreign: Mapping[str, str] = {}) -> Callable[[Any, str], Any]:
    """Creates a `__getattr__` method for a class: access to a removed member that RLlib's scripts use raises an
    AttributeError that names the replacement.

    Args:
        instead: Names of removed members -> sentences with the replacement.
        foreign: The same for members of other packages that this class never had.
    """

    def get(self: Any, name: str) -> Any:
        if name in instead:
            raise AttributeError(f"{type(self).__name__}.{name} is gone. {instead[name]}")
        if name in foreign:
            raise AttributeError(f"{type(self).__name__} has no {name}. {foreign[name]}")
        # Once more for its error: a property may have raised it.
        return object.__getattribute__(self, name)

    return get
