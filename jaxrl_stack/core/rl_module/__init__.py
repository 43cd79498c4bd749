"""RLModules: the networks of policies."""

from __future__ import annotations

from jaxrl_stack.core.rl_module import rl_module as _rl_module
from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig
from jaxrl_stack.core.rl_module.module_ids import validate_module_id
from jaxrl_stack.core.rl_module.rl_module import MultiRLModule, MultiRLModuleSpec, RLModule, RLModuleSpec

__all__ = ["DefaultModelConfig", "MultiRLModule", "MultiRLModuleSpec", "RLModule", "RLModuleSpec", "validate_module_id"]

__getattr__ = _rl_module.__getattr__
