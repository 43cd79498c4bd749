"""Calls of users' functions and classes: checks of their signatures, and errors that name the setting."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def call_problem(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str | None:
    """Reason why `function` cannot be called with the arguments `args` and `kwargs`; None if the call is possible, or
    if the signature of `function` is unknown.
    """
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    except ValueError:  # Some functions written in C have no signature to look at.
        return None
    return None


def call_users(function: Callable[..., Any], called: str, *args: Any, **kwargs: Any) -> Any:
    """Calls a function that a user passed as a setting. If the function raises an error, adds a note with the setting's
    name to this error.

    Args:
        function: The function.
        called: The setting and, if it says more, the call: "multi_agent(policy_mapping_fn=<lambda>)".
        *args: Arguments.
        **kwargs: Likewise.
    """
    try:
        return function(*args, **kwargs)
    except Exception as error:
        error.add_note(f"Raised by the function of {called}.")
        raise
