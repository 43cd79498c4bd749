"""Classes as strings, for the dict form of specs."""

from __future__ import annotations

import importlib
from typing import Any


def name_of_class(cls: type | None) -> str | None:
    """ "module:qualified name" of a class; None stays None.

    Raises:
        ValueError: For a class that cannot be imported again, such as one defined in a function.
    """
    if cls is None:
        return None
    if "<locals>" in cls.__qualname__:
        raise ValueError(
            f"{cls.__qualname__} is defined inside a function: define it at the top level of a module."
        )
    return f"{cls.__module__}:{cls.__qualname__}"


def class_from_name(name: str | type | None) -> Any:
    """The inverse of `name_of_class`; a class stays a class."""
    if not isinstance(name, str):
        return name
    module, _, qualname = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    return found
