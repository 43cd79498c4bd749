"""Serving of trained policies: actions for observations of the environment, without training code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxrl_stack.utils.lazy_names import lazy_names

if TYPE_CHECKING:
    from jaxrl_stack.policy.acting import PolicyState
    from jaxrl_stack.policy.export import ExportedPolicy, load_exported
    from jaxrl_stack.policy.policy import Policy

__all__ = ["ExportedPolicy", "Policy", "PolicyState", "load_exported"]

# Imported when asked for: an exported program runs without Flax and all that `policy.py` needs.
_MODULES = {"acting": ("PolicyState",), "export": ("ExportedPolicy", "load_exported"), "policy": ("Policy",)}

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
