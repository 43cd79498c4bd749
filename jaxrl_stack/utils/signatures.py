"""Whether a user's function or class can be called as it will be."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def call_problem(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str | None:
    """Why `function` cannot be called with these arguments; None if it can, or if its signature is not known."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    except ValueError:  # Some functions written in C have no signature to look at.
        return None
    return None
