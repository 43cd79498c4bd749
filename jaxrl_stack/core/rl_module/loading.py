"""States of modules that have more parts than the checkpoint that they begin with, or fewer."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from jaxrl_stack.checkpoints.checkpointable import fitting, opened, read_state
from jaxrl_stack.utils.notices import notice_once

if TYPE_CHECKING:
    from jaxrl_stack.core.rl_module.rl_module import RLModule


def load_known_parts(module: RLModule, path: str | os.PathLike[str] | None) -> None:
    """Give a module the state of a checkpoint; attributes that only one of them has are passed over.

    So an actor-critic begins with the encoder and the policy of a module that has no value function, and SAC with the
    policy and the critics of IQL, whose value function is left in the checkpoint. A notice names both.

    Args:
        module: Shares attributes with the checkpoint, whose weights have their shapes.
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
        shared = {_part_of(ref) for ref in own} & {_part_of(ref) for ref in state}
        taken, replaced = ({ref for ref in refs if _part_of(ref) in shared} for refs in (state, own))
        new, left = own.keys() - replaced, state.keys() - taken
        if taken != replaced or not shared or not (new or left):
            module.restore_from_path(stored.path)
            return
        name = type(module).__name__
        if new:
            notice_once(f"{name} keeps its initial {_parts(new)}: the checkpoint at {stored.path} has none.")
        if left:
            notice_once(f"{name} has no {_parts(left)}: the checkpoint at {stored.path} has, which is not loaded.")
        with fitting(f"The checkpoint at {stored.path}", f"this {name}"):
            whole = {ref: state[ref] for ref in taken} | {ref: own[ref] for ref in new}
            module._check_outline(whole)
            module.set_state(whole)


def _part_of(ref: str) -> str:
    """The attribute of the module under which a leaf lies."""
    return ref.partition("/")[0]


def _parts(refs: Iterable[str]) -> list[str]:
    return sorted({_part_of(ref) for ref in refs})
