"""Observations that bring along which actions are valid: ``{"action_mask": [A], "observations": ...}``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp

from jaxrl_stack.connectors.env_to_module import FlattenObservations
from jaxrl_stack.utils.spaces import flatten_observation, flatten_space

ACTION_MASK = "action_mask"
"""Key of the mask, 1 (or True) where an action is valid."""
OBSERVATIONS = "observations"
"""Key of all else."""


def has_action_mask(space: gym.Space | None) -> bool:
    """Whether observations of a space have a mask in them.

    Raises:
        ValueError: If they have one beside keys of other names, so that it is not clear what the network sees.
    """
    if not isinstance(space, gym.spaces.Dict) or ACTION_MASK not in space.spaces:
        return False
    if set(space.spaces) != {ACTION_MASK, OBSERVATIONS}:
        others = sorted(set(space.spaces) - {ACTION_MASK})
        raise ValueError(
            f"The observation space {space} has the key {ACTION_MASK!r} beside {others}: put everything but the mask "
            f"below {OBSERVATIONS!r}, as {{{ACTION_MASK!r}: ..., {OBSERVATIONS!r}: ...}}, or give the mask another "
            f"name if it is an observation like the others."
        )
    return True


def check_action_mask(space: gym.spaces.Dict, num_actions: int) -> None:
    """Raise a ValueError unless the mask of a space has an entry for every action."""
    shape = space.spaces[ACTION_MASK].shape
    if shape != (num_actions,):
        raise ValueError(
            f"The {ACTION_MASK!r} of the observation space has the shape {shape}; with {num_actions} actions it must "
            f"be ({num_actions},): 1 where an action is valid, else 0."
        )


def mask_of(observations: Any) -> jax.Array | None:
    """The mask in a batch of observations, bool ``[..., A]``; None if there is none."""
    if isinstance(observations, Mapping) and ACTION_MASK in observations:
        return jnp.asarray(observations[ACTION_MASK]) > 0
    return None


class FlattenBesideActionMask(FlattenObservations):
    """`FlattenObservations` for observations with a mask: what is not the mask becomes one float32 vector."""

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        """The Dict space with a rank-1 Box in the place of ``"observations"``."""
        del input_action_space
        return self._map_spaces(
            lambda space: gym.spaces.Dict(
                {ACTION_MASK: space[ACTION_MASK], OBSERVATIONS: flatten_space(space[OBSERVATIONS])}
            ),
            input_observation_space,
        )

    def _flatten(self, space, observation: Any) -> Any:
        flat = flatten_observation(space[OBSERVATIONS], observation[OBSERVATIONS], batch_dims=1)
        return {ACTION_MASK: observation[ACTION_MASK], OBSERVATIONS: flat}
