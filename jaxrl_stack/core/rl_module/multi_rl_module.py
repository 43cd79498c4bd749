"""Imports of `MultiRLModule` and `MultiRLModuleSpec` at RLlib's path; `rl_module.py` defines both."""

from __future__ import annotations

from jaxrl_stack.core.rl_module import rl_module
from jaxrl_stack.core.rl_module.rl_module import MultiRLModule, MultiRLModuleSpec

__all__ = ["MultiRLModule", "MultiRLModuleSpec"]

__getattr__ = rl_module.__getattr__
