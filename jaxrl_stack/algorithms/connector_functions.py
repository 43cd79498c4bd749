"""Functions of users that make connectors."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from jaxrl_stack.connectors.connector_v2 import ConnectorV2


def num_positional_arguments(function: Callable[..., Any], arguments: tuple[Any, ...], call: str) -> int:
    """How many of (env, spaces, device) a user's connector function takes by position.

    A parameter with a default and another name is the user's own (``n=n`` in a loop) and keeps its default.
    """
    if isinstance(function, type) and issubclass(function, ConnectorV2):
        return 0
    names = ("env", "spaces", "device") if "learner" not in call else ("observation_space", "action_space")
    names = names[: len(arguments)]
    count = 0
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            return len(arguments)
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
            raise ValueError(
                f"{call}: the function takes {parameter.name!r} by keyword only, without a default; it is called with "
                f"{', '.join(names)} by position. Write them before the *."
            )
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            continue
        if parameter.default is not parameter.empty and not any(name in parameter.name for name in names):
            break
        count += 1
    if count > len(arguments):
        raise ValueError(
            f"{call}: the function takes {count} arguments; it is called with {', '.join(names)}. Give the others a "
            f"default."
        )
    return count
