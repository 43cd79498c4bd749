"""Reduction of recorded Dict observations to the keys that a module uses. The settings `policy_obs_key` and
`value_obs_key` determine these keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from jaxrl_stack.utils.action_masks import ACTION_MASK, OBSERVATIONS, mask_key_in


def without_extra_keys(recorded: Any, space: Any) -> Any:
    """Drops recorded observation keys that the module does not use.

    If recorded and module observations are both Dicts with an action mask, drops only keys of the Dict in the entry
    "observations".

    Args:
        recorded: Mapping of arrays, or of anything else, by key; or the Dict space of the recorded observations.
        space: Space of the module's observations.

    Returns:
        A dict, or a space; `recorded` itself if it has no extra keys or lacks one.
    """
    kept = _kept(recorded, space)
    if kept is recorded or not isinstance(recorded, gym.spaces.Dict):
        return kept
    return gym.spaces.Dict(kept)


def _kept(recorded: Any, space: Any) -> Any:
    if not isinstance(recorded, Mapping) or not isinstance(space, gym.spaces.Dict):
        return recorded
    if _have_masks(recorded, space):
        inner = without_extra_keys(recorded[OBSERVATIONS], space[OBSERVATIONS])
        return recorded if inner is recorded[OBSERVATIONS] else {**recorded, OBSERVATIONS: inner}
    if not recorded.keys() > space.spaces.keys():
        return recorded
    return {key: recorded[key] for key in recorded if key in space.spaces}


def key_problem(recorded: Any, space: Any) -> str | None:
    """Returns an error sentence with the remedy if recorded observation keys differ from the keys that the module
    needs; else None.

    Args:
        recorded: Result of `without_extra_keys`.
        space: Space of the module's observations.
    """
    if _have_masks(recorded, space):
        return key_problem(recorded[OBSERVATIONS], space[OBSERVATIONS])
    keys = list(recorded) if isinstance(recorded, Mapping) else None
    wanted = list(space.spaces) if isinstance(space, gym.spaces.Dict) else None
    if (keys is None and wanted is None) or any(ACTION_MASK in (own or ()) for own in (keys, wanted)):
        return None
    if keys is None:
        return (
            f"Recorded observations have no keys, and the module takes the keys {wanted}. Leave out policy_obs_key and "
            f"value_obs_key, or record with them: rl_module(model_config={{'policy_obs_key': {wanted}}})."
        )
    if wanted is None:
        return (
            f"Recorded observations have the keys {keys}, and the module takes {space}. Select keys, as in the "
            f"recording run: rl_module(model_config={{'policy_obs_key': {keys}}})."
        )
    missing = [key for key in wanted if key not in keys]
    if not missing:
        return None
    return (
        f"Recorded observations have the keys {keys}, and the module also takes {missing}. Set policy_obs_key and "
        "value_obs_key in rl_module(model_config=...) to recorded keys, or record with these keys."
    )


def _have_masks(recorded: Any, space: Any) -> bool:
    """Whether recorded observations and module observations both contain an action mask."""
    return all(isinstance(own, Mapping) and mask_key_in(own, (ACTION_MASK,)) is not None for own in (recorded, space))
