"""States of modules that have more attributes than a stored one, or fewer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxrl_stack.utils.notices import notice_once

MODULES = "rl_module"
"""Component whose parts are modules."""


def with_shared_attributes(
    state: Mapping[str, Any],
    own: Mapping[str, Any],
    *,
    owner: str,
    path: str | os.PathLike[str],
    acts_only: bool = False,
) -> Mapping[str, Any]:
    """A module's stored state with the module's own attributes in place of those that only one of both has.

    So an actor-critic takes the encoder and the policy of a module that has no value function, and SAC the policy and
    the critics of IQL, whose value function is left in the checkpoint. A notice names both.

    Args:
        state: ``{"attribute/...": array}``, as stored.
        own: The state that the module has, likewise.
        owner: The module, for the notice.
        path: Folder of the checkpoint, for the notice.
        acts_only: The owner leaves out on purpose what only learning needs.

    Returns:
        `state` itself where both have the same attributes, no attribute in common, or not the same leaves of one:
        then it fits, or it does not.
    """
    shared = {_attribute_of(ref) for ref in own} & {_attribute_of(ref) for ref in state}
    taken, replaced = ({ref for ref in refs if _attribute_of(ref) in shared} for refs in (state, own))
    new, left = own.keys() - replaced, state.keys() - taken
    if taken != replaced or not shared or not (new or left):
        return state
    if new:
        notice_once(f"{owner} keeps its initial {_attributes(new)}: the checkpoint at {path} has none.")
    if left and not acts_only:
        notice_once(f"{owner} has no {_attributes(left)}: the checkpoint at {path} has, which is not loaded.")
    return {ref: state[ref] for ref in taken} | {ref: own[ref] for ref in new}


def share_attributes(
    state: dict[str, Any], own: Mapping[str, Any], names: Sequence[str], path: str | os.PathLike[str]
) -> None:
    """Give each stored module in `state` `with_shared_attributes` of the module that the owner has.

    Args:
        state: The stored state of an owner of modules, which is changed in place; only what is at `names` is in it.
        own: The state that the owner has.
        names: Path of components, such as ``("learner_group", "learner", "rl_module")``; `MODULES` is one of them.
        path: Folder of the checkpoint.
    """
    for name in names[: names.index(MODULES)]:
        state, own = state[name], own[name]
    modules, present = state[MODULES], own[MODULES]
    if not all(isinstance(module, Mapping) for module in modules.values()):
        # A policy has one module, without an id.
        state[MODULES] = with_shared_attributes(modules, present, owner="The module", path=path)
        return
    for mid, module in modules.items():
        if mid in present:
            modules[mid] = with_shared_attributes(module, present[mid], owner=f"Module {mid!r}", path=path)


def _attribute_of(ref: str) -> str:
    """The attribute of the module under which a leaf lies."""
    return ref.partition("/")[0]


def _attributes(refs: Iterable[str]) -> list[str]:
    return sorted({_attribute_of(ref) for ref in refs})
