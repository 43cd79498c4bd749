"""Adaptation of stored module states to modules that have more or fewer attributes than the modules that were saved."""

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
    """Returns a module's stored state, adapted to the attributes of the module that loads the state.

    The result lacks stored attributes that the module does not have, and contains the module's values of attributes
    that the stored state lacks.

    This loads the encoder and policy of a module without value function into an actor-critic, or the policy and critics
    of IQL into SAC, without IQL's value function. A notice names the attributes that are added and, if `acts_only` is
    False, the attributes that are left out.

    Args:
        state: The stored state, ``{"attribute/...": array}``.
        own: The module's state in the same form.
        owner: The module, for the notice.
        path: Folder of the checkpoint, for the notice.
        acts_only: Whether the owner leaves out attributes that only learning needs.

    Returns:
        `state` itself if both have the same attributes, no common attribute, or different leaves of one; then it fits
        or does not fit as a whole.
    """
    shared = {_attribute_of(ref) for ref in own} & {_attribute_of(ref) for ref in state}
    taken, replaced = ({ref for ref in refs if _attribute_of(ref) in shared} for refs in (state, own))
    new, left = own.keys() - replaced, state.keys() - taken
    if taken != replaced or not shared or not (new or left):
        return state
    if new:
        notice_once(f"{owner} keeps its initial {_attributes(new)}, which the checkpoint at {path} does not contain.")
    if left and not acts_only:
        notice_once(f"{owner} has no {_attributes(left)}, so these are not loaded from the checkpoint at {path}.")
    return {ref: state[ref] for ref in taken} | {ref: own[ref] for ref in new}


def share_attributes(
    state: dict[str, Any], own: Mapping[str, Any], names: Sequence[str], path: str | os.PathLike[str]
) -> None:
    """Adapts the stored states of modules to the attributes of the modules that load them.

    For each module id, removes stored attributes that the loading module lacks, and adds the loading module's values of
    attributes that are not stored. A module's state does not change if it has no attribute in common with the loading
    module, or if an attribute in both consists of arrays with different paths.

    Args:
        state: Stored state of an owner of modules, with only the values at `names`; changed in place.
        own: The owner's state.
        names: Path of components, such as ``("learner_group", "learner", "rl_module")``, which includes `MODULES`.
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
    """Name of the module's attribute that contains the array at the path `ref`, such as "encoder" for
    ``"encoder/kernel"``.
    """
    return ref.partition("/")[0]


def _attributes(refs: Iterable[str]) -> list[str]:
    return sorted({_attribute_of(ref) for ref in refs})
