"""States of modules that have more parts than the checkpoint that they begin with."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from jaxrl_stack.checkpoints.checkpointable import fitting, opened, read_state
from jaxrl_stack.utils.notices import notice_once

if TYPE_CHECKING:
    from jaxrl_stack.core.rl_module.rl_module import RLModule


def load_known_parts(module: RLModule, path: str | os.PathLike[str] | None) -> None:
    """Give a module the state of a checkpoint; attributes of which the checkpoint has nothing keep their weights.

    So an actor-critic begins with the encoder and the policy of a module that has no value function.

    Args:
        module: Has all attributes that the checkpoint has weights of, with their shapes.
        path: Folder of the checkpoint, or of a MultiRLModule's that has one module; None changes nothing.

    Raises:
        FileNotFoundError: If there is no checkpoint.
        ValueError: If it is damaged, or does not fit the attributes that it has weights of.
    """
    if path is None:
        return
    own = module.get_state()
    with opened(path, None) as found:
        stored = found.part(found.parts[0]) if len(found.parts) == 1 else found
        state = read_state(stored, is_weights=True)
        known = {ref.partition("/")[0] for ref in state}
        kept = {ref: value for ref, value in own.items() if ref.partition("/")[0] not in known}
        new = sorted({ref.partition("/")[0] for ref in kept})
        if len(kept) == len(own) or not new:
            module.restore_from_path(stored.path)
            return
        notice_once(f"{type(module).__name__} keeps its initial {new}: the checkpoint at {stored.path} has none.")
        with fitting(f"The checkpoint at {stored.path}", f"this {type(module).__name__}"):
            whole = {**state, **kept}
            module._check_outline(whole)
            module.set_state(whole)
