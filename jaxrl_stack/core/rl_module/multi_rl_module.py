"""Several RLModules in one (defined beside `RLModule`, which refers to them)."""

from __future__ import annotations

from typing import Any

from jaxrl_stack.core.rl_module import rl_module
from jaxrl_stack.core.rl_module.rl_module import MultiRLModule, MultiRLModuleSpec

__all__ = ["MultiRLModule", "MultiRLModuleSpec"]


def __getattr__(name: str) -> Any:
    return rl_module.__getattr__(name)
