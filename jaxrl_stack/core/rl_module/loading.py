"""Loading of checkpoints into new modules."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from jaxrl_stack.checkpoints.checkpointable import fitting, opened, read_state
from jaxrl_stack.checkpoints.module_states import with_shared_attributes

if TYPE_CHECKING:
    from jaxrl_stack.core.rl_module.rl_module import RLModule


def load_known_parts(module: RLModule, path: str | os.PathLike[str] | None) -> None:
    """Loads a checkpoint's state into a module. Skips the checkpoint's networks (attributes) that the module lacks.
    Networks that only the module has keep their weights.

    Args:
        module: The module. Weights of attributes that the checkpoint also has must have the same shapes.
        path: Folder of the checkpoint of a module, or of a MultiRLModule with one module; None changes nothing.

    Raises:
        FileNotFoundError: If there is no checkpoint.
        ValueError: If the checkpoint is damaged, or its weights do not fit the module's attributes.
    """
    if path is None:
        return
    name = type(module).__name__
    with opened(path, None) as found:
        stored = found.part(found.parts[0]) if len(found.parts) == 1 else found
        state = read_state(stored, is_weights=True)
        own, acts_only = module.get_state(), module.inference_only
        whole = with_shared_attributes(state, own, owner=name, path=stored.path, acts_only=acts_only)
        if whole is state:
            module.restore_from_path(stored.path)
            return
        with fitting(f"The checkpoint at {stored.path}", f"this {name}"):
            module._check_outline(dict(whole))
            module.set_state(dict(whole))
