"""Re-exports `MultiRLModule` and `MultiRLModuleSpec` of `rl_module.py` under their RLlib import path."""

from __future__ import annotations

from jaxrl_stack.core.rl_module import rl_module
from jaxrl_stack.core.rl_module.rl_module import MultiRLModule, MultiRLModuleSpec

__all__ = ["MultiRLModule", "MultiRLModuleSpec"]

__getattr__ = rl_module.__getattr__
