"""Names of RLlib that are called differently here: importing one says which name to use."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any


def absent_or_renamed(
    module: str, name: str, *, absent: Mapping[str, str] | None = None, renamed: Mapping[str, Any] | None = None
) -> Any:
    """The body of a module's `__getattr__`.

    Args:
        module: The `__name__` of the module that was asked.
        name: The attribute that it does not have.
        absent: RLlib's names that do not exist here -> what to import instead.
        renamed: Old names -> the object that took their place; returned with a DeprecationWarning.

    Raises:
        ImportError: For a name in `absent`; the message names the replacement.
        AttributeError: For an unknown name.
    """
    if absent and name in absent:
        raise ImportError(f"`{name}` does not exist in jaxrl_stack, which runs on JAX only: use {absent[name]}.")
    if renamed and name in renamed:
        replacement = renamed[name]
        warnings.warn(
            f"`{name}` is the old name of `{replacement.__name__}`: use that.", DeprecationWarning, stacklevel=3
        )
        return replacement
    raise AttributeError(f"module {module!r} has no attribute {name!r}")
