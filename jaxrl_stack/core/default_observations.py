"""What default modules see of observations: vectors, images as they are, and beside them a mask of actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.distribution.jax_distribution import get_action_dist_cls_for_space
from jaxrl_stack.utils.action_masks import (
    ACTION_MASK,
    NO_VALID_ACTION_SHARE,
    OBSERVATIONS,
    allows_an_action,
    mask_length,
)
from jaxrl_stack.utils.spaces import flatten_observation, flatten_space

MASKED_LOGIT = -1e9
"""Logit of an action that is not valid. Its probability is 0 in float32, and finite multiples of it stay finite."""

LOOKUP_FROM = 1024
"""From this many values on, a Discrete observation stays a number: encoders look its row of their first kernel up."""

Nested = gym.spaces.Dict | gym.spaces.Tuple


def has_action_mask(space: gym.Space | None, key: str = ACTION_MASK) -> bool:
    """Whether observations of a space have a mask in them.

    Args:
        space: Of one observation.
        key: Name of the mask.

    Raises:
        ValueError: If they have one beside keys of other names, so that it is not clear what the network sees.
    """
    if not isinstance(space, gym.spaces.Dict) or key not in space.spaces:
        return False
    if set(space.spaces) != {key, OBSERVATIONS}:
        others = sorted(set(space.spaces) - {key})
        raise ValueError(
            f"The observation space {space} has the key {key!r} beside {others}: put everything but the mask "
            f"below {OBSERVATIONS!r}, as {{{key!r}: ..., {OBSERVATIONS!r}: ...}}, or, if it is an observation like the "
            "others, give it another name or set environment(action_mask_key=...) to one that does not occur."
        )
    return True


def observations_space(space: gym.Space | None) -> gym.Space | None:
    """The space of what encoders see of the module's observations: without the mask."""
    if not has_action_mask(space):
        return space
    assert isinstance(space, gym.spaces.Dict)
    return space[OBSERVATIONS]


def split_action_mask(batch: dict[str, Any]) -> tuple[dict[str, Any], jax.Array | None]:
    """A module's batch without the mask in its observations, and the mask.

    Args:
        batch: Columns with `OBS`.

    Returns:
        ``(batch, mask bool [..., A])``; the batch itself and None if there is no mask.
    """
    obs = batch[Columns.OBS]
    mask = mask_of(obs)
    return (batch, None) if mask is None else ({**batch, Columns.OBS: obs[OBSERVATIONS]}, mask)


def mask_of(observations: Any) -> jax.Array | None:
    """The mask in a batch of observations, bool ``[..., A]``; None if there is none."""
    if isinstance(observations, Mapping) and ACTION_MASK in observations:
        return jnp.asarray(observations[ACTION_MASK]) > 0
    return None


def valid_actions(observations: Any, action_space: gym.Space | None) -> jax.Array | None:
    """`mask_of` a batch of observations, if it has an entry for every action of the space; else None."""
    mask = mask_of(observations)
    return mask if mask is not None and mask.shape[-1:] == (mask_length(action_space),) else None


def masked_logits(logits: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Logits under which actions that are not valid have probability 0, and no gradient.

    Args:
        logits: Float ``[..., A]``; of several Categoricals side by side.
        mask: bool ``[..., A]``; None: all are valid. Where none is, all are equally likely.
    """
    return logits if mask is None else jnp.where(mask, logits, MASKED_LOGIT)


def rows_without_valid_action(action_space: Any, batch: dict[str, Any]) -> dict[str, jax.Array]:
    """``{NO_VALID_ACTION_SHARE: float32 [...], 1 where the mask of `OBS` allows nothing}``; empty without a mask."""
    mask = mask_of(batch[Columns.OBS])
    if mask is None:
        return {}
    return {NO_VALID_ACTION_SHARE: 1.0 - allows_an_action(action_space, mask).astype(jnp.float32)}


def sample_valid(key: jax.Array, action_space: gym.Space, mask: jax.Array) -> jax.Array:
    """Actions drawn from the valid ones, all equally likely.

    Args:
        key: PRNG key.
        action_space: Discrete or MultiDiscrete.
        mask: bool ``[..., A]``, as of `check_action_mask`.
    """
    dist_cls = get_action_dist_cls_for_space(action_space)
    return dist_cls.from_logits(masked_logits(jnp.zeros(mask.shape, jnp.float32), mask)).sample(key=key)


def check_action_mask(space: gym.Space | None, action_space: gym.Space | None) -> None:
    """Raise a ValueError unless the mask of a space, if it has one, has an entry for every action.

    Args:
        space: Of a module's observations.
        action_space: Discrete: the mask is ``[n]``; MultiDiscrete: ``[sum(nvec)]``, component after component.
    """
    if not has_action_mask(space):
        return
    assert isinstance(space, gym.spaces.Dict)
    num_actions = mask_length(action_space)
    if num_actions is None:
        raise ValueError(
            f"The observation space has an {ACTION_MASK!r}, and the actions are those of {action_space}: a mask goes "
            "with Discrete and MultiDiscrete actions. Leave it out, or, if it is an observation like the others, set "
            "environment(action_mask_key=...) to a key that does not occur."
        )
    shape = space[ACTION_MASK].shape
    if shape != (num_actions,):
        raise ValueError(
            f"The {ACTION_MASK!r} of the observation space has the shape {shape}; with {num_actions} actions it must "
            f"be ({num_actions},): 1 where an action is valid, else 0."
        )


def check_has_masks(batch: Mapping[str, Any], modules: Any, *, connectors: Sequence[str]) -> None:
    """Raise a ValueError if steps of modules that honour action masks are without them.

    Args:
        batch: ``{module_id: {column: arrays}}``.
        modules: RLModules by id.
        connectors: Names of the host connectors that the steps have passed.
    """
    for mid, columns in batch.items():
        module = modules[mid]
        if not (module.honours_action_mask and has_action_mask(module.observation_space)):
            continue
        for name in (Columns.OBS, Columns.FINAL_OBS):
            if name in columns and mask_of(columns[name]) is None:
                source = f"after the learner connectors {list(connectors)}" if connectors else "of the given episodes"
                raise ValueError(
                    f"Column {name!r} {source} has no {ACTION_MASK!r}, and module {mid!r} honours it: the loss would "
                    f"count forbidden actions. Keep observations {{{ACTION_MASK!r}: mask, {OBSERVATIONS!r}: ...}}."
                )


def is_image(space: gym.Space | None) -> bool:
    """Whether observations of a space are ``[height, width, channels]``."""
    return isinstance(space, gym.spaces.Box | gym.spaces.MultiBinary) and len(space.shape) == 3


def has_images(space: gym.Space | None) -> bool:
    """Whether observations of a space are images, or have some in them."""
    return any(map(has_images, _parts(space).values())) if isinstance(space, Nested) else is_image(space)


def is_vector(space: gym.Space | None) -> bool:
    """Whether observations of a space are floats ``[d]``."""
    return isinstance(space, gym.spaces.Box) and len(space.shape) == 1 and np.issubdtype(space.dtype, np.floating)


def is_looked_up(space: gym.Space | None) -> TypeGuard[gym.spaces.Discrete]:
    """Whether observations of a space are numbers of so many values that one-hot vectors would be a waste.

    A vector of 4,000 zeros but for a one takes 16 kB in every step that is kept, and its product with a kernel is one
    row of that.
    """
    return isinstance(space, gym.spaces.Discrete) and bool(space.n >= LOOKUP_FROM)


def flatten_space_beside_images(space: gym.Space) -> gym.Space:
    """The space of what `flatten_beside_images` makes of observations.

    Returns:
        A rank-1 float32 Box for what has no images in it; the space itself for an image; for what has images among
        other things a Dict of both, keyed by names, in a Tuple by numbers. A large Discrete, see `is_looked_up`, that
        is alone, or alone under a key beside images, is a Discrete that starts at 0.

    Raises:
        ValueError: For images without an axis of channels.
    """
    if is_image(space):
        return space
    if is_looked_up(space):
        return gym.spaces.Discrete(space.n)
    if not has_images(space):
        _check_no_gray_image(space)
        return flatten_space(space)
    return gym.spaces.Dict({key: flatten_space_beside_images(part) for key, part in _parts(space).items()})


def flatten_beside_images(space: gym.Space, observation: Any, batch_dims: int) -> Any:
    """Observations with one float32 vector, ``[*batch, d]``, in the place of all that is no image.

    A large Discrete that is looked up is int32 ``[*batch]`` instead, counted from 0.

    Args:
        space: Of one observation.
        observation: Pytree that mirrors it, leaves ``[*batch, ...]``.
        batch_dims: Number of leading axes.
    """
    if is_image(space):
        return observation
    if is_looked_up(space):
        return (jnp.asarray(observation) - space.start).astype(jnp.int32)
    if not has_images(space):
        return flatten_observation(space, observation, batch_dims=batch_dims)
    values = observation if isinstance(space, gym.spaces.Dict) else {str(i): x for i, x in enumerate(observation)}
    return {key: flatten_beside_images(part, values[key], batch_dims) for key, part in _parts(space).items()}


def _parts(space: gym.Space) -> dict[str, gym.Space]:
    if isinstance(space, gym.spaces.Dict):
        return dict(space.spaces)
    assert isinstance(space, gym.spaces.Tuple)
    return {str(i): part for i, part in enumerate(space.spaces)}


def _check_no_gray_image(space: gym.Space) -> None:
    if isinstance(space, Nested):
        for part in _parts(space).values():
            _check_no_gray_image(part)
    elif isinstance(space, gym.spaces.Box) and len(space.shape) == 2 and space.dtype == np.uint8:
        raise ValueError(
            f"The observation space {space} is one of gray images without an axis of channels: add it, "
            f"gymnasium.wrappers.ReshapeObservation(env, {(*space.shape, 1)}), or, if they are no images, flatten them "
            "with the env-to-module connector FlattenObservations."
        )
