"""Modules begin with the state of a checkpoint."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from jaxrl_stack.checkpoints.checkpointable import fitting, opened, read_state
from jaxrl_stack.checkpoints.module_states import with_shared_attributes

if TYPE_CHECKING:
    from jaxrl_stack.core.rl_module.rl_module import RLModule


def load_known_parts(module: RLModule, path: str | os.PathLike[str] | None) -> None:
    """Give a module the state of a checkpoint, without the attributes that only one of them has.

    Args:
        module: Shares attributes with the checkpoint, whose weights have their shapes.
        path: Folder of the checkpoint, or of a MultiRLModule's that has one module; None changes nothing.

    Raises:
        FileNotFoundError: If there is no checkpoint.
        ValueError: If it is damaged, or does not fit the attributes that it has weights of.
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
