"""A trained policy on its own: from the environment's observations to its actions, without the training code."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxrl_stack.policy.acting import PolicyState
    from jaxrl_stack.policy.export import ExportedPolicy, load_exported
    from jaxrl_stack.policy.policy import Policy

__all__ = ["ExportedPolicy", "Policy", "PolicyState", "load_exported"]

# Imported when asked for: an exported program runs without Flax and all that `policy.py` needs.
_HOMES = {
    "ExportedPolicy": "jaxrl_stack.policy.export",
    "Policy": "jaxrl_stack.policy.policy",
    "PolicyState": "jaxrl_stack.policy.acting",
    "load_exported": "jaxrl_stack.policy.export",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
