"""Action masks in observations: functions that find the mask's key in observations or spaces, and check whether masks
allow an action.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.utils.notices import notice_once

ACTION_MASK = "action_mask"
"""Key of the mask in the observations of default modules: above 0 (or True) where an action is valid."""
OBSERVATIONS = "observations"
"""Key of the observation without the mask."""
NO_VALID_ACTION_SHARE = "no_valid_action_share"
"""Result of a module whose observations have a mask: the share of rows whose mask allows no action. Such rows act at
random; 0 is right."""


def mask_key_in(observations: Any, keys: Sequence[str]) -> str | None:
    """Finds the key of the action mask in observations, or in their space.

    Observations with a mask have exactly two entries: the mask under one of `keys`, and the observation without the
    mask under ``"observations"``. For other observations, returns None.

    Args:
        observations: A batch of observations, or a space.
        keys: Keys that the mask may have.

    Returns:
        The first of `keys` that the observations contain; None if they contain no mask.
    """
    parts = observations.spaces if isinstance(observations, gym.spaces.Dict) else observations
    if not keys or not isinstance(parts, Mapping) or len(parts) != 2 or OBSERVATIONS not in parts:
        return None
    return next((key for key in keys if key in parts), None)


def allows_an_action(action_space: Any, mask: Any) -> Any:
    """Whether each mask allows at least one action; for a MultiDiscrete space, one action of each component. Returns
    bool ``[...]``, one per mask.

    Args:
        action_space: Discrete or MultiDiscrete.
        mask: bool ``[..., A]``, as of `check_action_mask`; a NumPy or JAX array, like the result.
    """
    xp: Any = np if isinstance(mask, np.ndarray) else jnp
    lengths = action_space.nvec if isinstance(action_space, gym.spaces.MultiDiscrete) else [mask.shape[-1]]
    parts = xp.split(mask, np.cumsum(lengths)[:-1], axis=-1)
    return xp.stack([xp.any(part, axis=-1) for part in parts]).all(axis=0)


def note_mask_that_allows_nothing() -> None:
    """Logs a warning, only once, that an action mask allows no action.

    The warning also says that the action is therefore drawn from all actions. Raises no error: the callers continue.
    """
    notice_once(
        "An action mask allows no action, so the action is drawn from all of them. Repair the environment: each mask "
        f"has to allow at least one. In training, the result {NO_VALID_ACTION_SHARE} is the share of such rows."
    )


def mask_key_of(space: gym.Space | None, action_space: gym.Space | None) -> str | None:
    """Key of the action mask in a `Dict` observation space; None if the space contains no mask."""
    if not isinstance(space, gym.spaces.Dict) or len(space.spaces) != 2 or OBSERVATIONS not in space.spaces:
        return None
    (key,) = space.spaces.keys() - {OBSERVATIONS}
    num_actions = mask_length(action_space)
    return key if num_actions is not None and space[key].shape == (num_actions,) else None


def mask_length(action_space: gym.Space | None) -> int | None:
    """Number of entries of the mask for an action space: ``n`` of Discrete, ``sum(nvec)`` of MultiDiscrete; None for
    others.
    """
    if isinstance(action_space, gym.spaces.Discrete):
        return int(action_space.n)
    if isinstance(action_space, gym.spaces.MultiDiscrete):
        return int(action_space.nvec.sum())
    return None
