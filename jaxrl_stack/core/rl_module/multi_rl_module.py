"""MultiRLModule and its spec under RLlib's import path; they are defined in `rl_module.py`."""

from __future__ import annotations

from jaxrl_stack.core.rl_module import rl_module
from jaxrl_stack.core.rl_module.rl_module import MultiRLModule, MultiRLModuleSpec

__all__ = ["MultiRLModule", "MultiRLModuleSpec"]

__getattr__ = rl_module.__getattr__
