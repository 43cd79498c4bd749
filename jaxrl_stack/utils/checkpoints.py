"""Re-exports the class `Checkpointable` of `jaxrl_stack.checkpoints`, and helpers, under its RLlib import path."""

from jaxrl_stack.checkpoints.checkpointable import Checkpointable, get_checkpoint_info
from jaxrl_stack.checkpoints.files import Component
from jaxrl_stack.checkpoints.saves import wait_for_saves
from jaxrl_stack.utils.class_paths import register_class

__all__ = ["Checkpointable", "Component", "get_checkpoint_info", "register_class", "wait_for_saves"]
