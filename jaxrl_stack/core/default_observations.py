"""Preparation of observations for default modules: action masks are split off, and observations are flattened to
vectors, except for images and large Discrete spaces.
"""

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
"""Number of values from which a Discrete observation stays an int: encoders look up its row of their first kernel."""

Nested = gym.spaces.Dict | gym.spaces.Tuple


def has_action_mask(space: gym.Space | None, key: str = ACTION_MASK) -> bool:
    """Whether observations of a space contain an action mask.

    Args:
        space: Space of one observation.
        key: Key of the mask.

    Raises:
        ValueError: If the space has the mask and unexpected other keys, so that the network's input is not clear.
    """
    if not isinstance(space, gym.spaces.Dict) or key not in space.spaces:
        return False
    if set(space.spaces) != {key, OBSERVATIONS}:
        others = sorted(set(space.spaces) - {key})
        raise ValueError(
            f"The observation space {space} has the key {key!r} and also {others}. Put everything except the mask "
            f"under {OBSERVATIONS!r}: {{{key!r}: ..., {OBSERVATIONS!r}: ...}}. If {key!r} is not a mask, rename this "
            "key, or set environment(action_mask_key=...) to an unused key."
        )
    return True


def observations_space(space: gym.Space | None) -> gym.Space | None:
    """Returns the space of the observations that encoders receive: a module's observation space without the action
    mask.
    """
    if not has_action_mask(space):
        return space
    assert isinstance(space, gym.spaces.Dict)
    return space[OBSERVATIONS]


def split_action_mask(batch: dict[str, Any]) -> tuple[dict[str, Any], jax.Array | None]:
    """Splits a module's batch into a batch whose observations contain no action mask, and the action mask.

    Args:
        batch: Columns with `OBS`.

    Returns:
        ``(batch, mask bool [..., A])``; the batch itself and None if there is no mask.
    """
    obs = batch[Columns.OBS]
    mask = mask_of(obs)
    return (batch, None) if mask is None else ({**batch, Columns.OBS: obs[OBSERVATIONS]}, mask)


def mask_of(observations: Any) -> jax.Array | None:
    """Returns the action mask in a batch of observations, bool ``[..., A]`` for A actions; None if observations contain
    no mask.
    """
    if isinstance(observations, Mapping) and ACTION_MASK in observations:
        return jnp.asarray(observations[ACTION_MASK]) > 0
    return None


def valid_actions(observations: Any, action_space: gym.Space | None) -> jax.Array | None:
    """Returns the action mask in `observations`, bool ``[..., A]``, if it fits `action_space`; otherwise None.

    Returns None if the observations contain no mask, or if A is not the number of entries that a mask for
    `action_space` has: n of Discrete, sum(nvec) of MultiDiscrete.
    """
    mask = mask_of(observations)
    return mask if mask is not None and mask.shape[-1:] == (mask_length(action_space),) else None


def masked_logits(logits: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Returns `logits` with a large negative number for each invalid action (False in `mask`). Invalid actions then
    have probability 0, and their logits have no gradient.

    Args:
        logits: Float ``[..., A]``; for several Categoricals their concatenated logits.
        mask: bool ``[..., A]``; None: all actions are valid. If no action is valid, all are equally likely.
    """
    return logits if mask is None else jnp.where(mask, logits, MASKED_LOGIT)


def rows_without_valid_action(action_space: Any, batch: dict[str, Any]) -> dict[str, jax.Array]:
    """Marks the rows whose action mask allows no action.

    Returns ``{NO_VALID_ACTION_SHARE: float32 [...]}`` with 1 for these rows and 0 for all other rows. Returns {} if the
    observations have no mask.
    """
    mask = mask_of(batch[Columns.OBS])
    if mask is None:
        return {}
    return {NO_VALID_ACTION_SHARE: 1.0 - allows_an_action(action_space, mask).astype(jnp.float32)}


def sample_valid(key: jax.Array, action_space: gym.Space, mask: jax.Array) -> jax.Array:
    """Draws actions uniformly from the actions that a mask allows.

    Args:
        key: PRNG key.
        action_space: Discrete or MultiDiscrete.
        mask: bool ``[..., A]``, in the form of `check_action_mask`.
    """
    dist_cls = get_action_dist_cls_for_space(action_space)
    return dist_cls.from_logits(masked_logits(jnp.zeros(mask.shape, jnp.float32), mask)).sample(key=key)


def check_action_mask(space: gym.Space | None, action_space: gym.Space | None) -> None:
    """Raises a ValueError if an observation space has an action mask that does not fit `action_space`.

    A mask needs Discrete or MultiDiscrete actions, and must have one entry per action.

    Args:
        space: Space of a module's observations.
        action_space: For Discrete the mask is ``[n]``; for MultiDiscrete ``[sum(nvec)]``, component after component.
    """
    if not has_action_mask(space):
        return
    assert isinstance(space, gym.spaces.Dict)
    num_actions = mask_length(action_space)
    if num_actions is None:
        raise ValueError(
            f"The observation space has the action mask {ACTION_MASK!r}, but masks need Discrete or MultiDiscrete "
            f"actions, not {action_space}. Leave the mask out of the observations. If the entry is not a mask, set "
            "environment(action_mask_key=...) to an unused key."
        )
    shape = space[ACTION_MASK].shape
    if shape != (num_actions,):
        raise ValueError(
            f"The {ACTION_MASK!r} of the observation space has the shape {shape}, but {num_actions} actions need "
            f"({num_actions},). Give the mask the space gymnasium.spaces.Box(0, 1, ({num_actions},)), and set 1 for "
            "valid actions, else 0."
        )


def check_has_masks(batch: Mapping[str, Any], modules: Any, *, connectors: Sequence[str]) -> None:
    """Raises a ValueError if a module applies the action mask of its observation space, but its observations in `batch`
    lack the mask.

    Args:
        batch: ``{module_id: {column: arrays}}``.
        modules: RLModules by id.
        connectors: Names of the host connectors that have processed the steps.
    """
    for mid, columns in batch.items():
        module = modules[mid]
        if not (module.honours_action_mask and has_action_mask(module.observation_space)):
            continue
        for name in (Columns.OBS, Columns.FINAL_OBS):
            if name in columns and mask_of(columns[name]) is None:
                source = f"after the learner connectors {list(connectors)}" if connectors else "of the given episodes"
                raise ValueError(
                    f"Column {name!r} {source} has no {ACTION_MASK!r}: the loss of module {mid!r} would treat "
                    f"forbidden actions as possible. Pass observations with the mask: {{{ACTION_MASK!r}: mask, "
                    f"{OBSERVATIONS!r}: ...}}."
                )


def is_image(space: gym.Space | None) -> bool:
    """Whether observations of a space are images ``[height, width, channels]``."""
    return isinstance(space, gym.spaces.Box | gym.spaces.MultiBinary) and len(space.shape) == 3


def has_images(space: gym.Space | None) -> bool:
    """Whether observations of a space are images, or contain images."""
    return any(map(has_images, _parts(space).values())) if isinstance(space, Nested) else is_image(space)


def is_vector(space: gym.Space | None) -> bool:
    """Whether observations of a space are vectors of floats ``[d]``."""
    return isinstance(space, gym.spaces.Box) and len(space.shape) == 1 and np.issubdtype(space.dtype, np.floating)


def is_looked_up(space: gym.Space | None) -> TypeGuard[gym.spaces.Discrete]:
    """Whether a space is Discrete with at least `LOOKUP_FROM` values, so that networks use an embedding lookup instead
    of one-hot vectors.

    A one-hot vector of 4,000 entries takes 16 kB in every stored step, and its product with a kernel is one row of the
    kernel.
    """
    return isinstance(space, gym.spaces.Discrete) and bool(space.n >= LOOKUP_FROM)


def flatten_space_beside_images(space: gym.Space) -> gym.Space:
    """Returns the space of flattened observations in which images stay unchanged; see `flatten_beside_images`.

    Returns:
        For a space without images, a rank-1 float32 Box; for an image, the space itself; for a space with images and
        other parts, a Dict of both, keyed by names, or by indices for a Tuple. A large Discrete (see `is_looked_up`)
        that is the whole space, or a key's whole space next to images, becomes a Discrete that starts at 0.

    Raises:
        ValueError: If an image has no axis of channels.
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
    """Flattens the parts of observations that contain no image to a float32 vector ``[*batch, d]``; images stay
    unchanged.

    A large Discrete (see `is_looked_up`) becomes int32 ``[*batch]`` instead, counted from 0.

    Args:
        space: Space of one observation.
        observation: Pytree of the same structure (leaves ``[*batch, ...]``).
        batch_dims: Number of batch axes.
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
            f"The observation space {space} has gray images without an axis of channels. Add the axis with "
            f"gymnasium.wrappers.ReshapeObservation(env, {(*space.shape, 1)}); if they are not images, flatten them "
            "with the env-to-module connector FlattenObservations."
        )
