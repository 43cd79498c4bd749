"""Selection of Dict observation keys for a module's networks: the settings `policy_obs_key` and `value_obs_key`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp

from jaxrl_stack.core.default_observations import flatten_beside_images, flatten_space_beside_images
from jaxrl_stack.utils.spaces import map_parts

POLICY_OBS_KEY = "policy_obs_key"
VALUE_OBS_KEY = "value_obs_key"
OBSERVATION_KEYS = (POLICY_OBS_KEY, VALUE_OBS_KEY)
"""Settings of a model config that select keys."""


def check_observation_keys(settings: Mapping[str, Any], supported: Collection[str], owner: str) -> None:
    """Checks that the networks read the given settings `policy_obs_key` and `value_obs_key`.

    If ``vf_share_layers=True``, also checks that both settings select the same keys. This check does not use the
    observation space.

    Args:
        settings: Settings of `DefaultModelConfig`; missing ones have their defaults.
        supported: The settings of `OBSERVATION_KEYS` that the networks read.
        owner: Name of the networks' owner, for messages.

    Raises:
        ValueError: For a setting that the networks do not read, or keys that differ with ``vf_share_layers=True``.
    """
    given = _given(settings)
    for name, value in given.items():
        if name not in supported:
            raise ValueError(
                f"model_config {name}={value!r}: the networks of {owner} do not read this setting. Leave it out. "
                "To drop observation keys for all networks, use the env-to-module connector "
                "FlattenObservations(keys_to_remove=[...])."
            )
    if not given or VALUE_OBS_KEY not in supported or not settings.get("vf_share_layers", True):
        return
    policy, value = (given.get(name) for name in OBSERVATION_KEYS)
    if policy is None or value is None or _as_set(policy) != _as_set(value):
        both = ", ".join(f"{name}={settings.get(name)!r}" for name in OBSERVATION_KEYS)
        raise ValueError(
            f"model_config {both}: with vf_share_layers=True both settings must have the same keys, because policy "
            "and value function share one encoder. Set model_config={'vf_share_layers': False, ...}, or set both to "
            "the same keys."
        )


def observed_keys(
    space: gym.Space | None, settings: Mapping[str, Any], supported: Collection[str] = OBSERVATION_KEYS
) -> dict[str, tuple[str, ...]] | None:
    """Returns the observation keys that each network (policy, value function) reads.

    Args:
        space: Space of the observations, without an action mask.
        settings: Settings of `DefaultModelConfig`; missing ones have their defaults.
        supported: The settings of `OBSERVATION_KEYS` that the networks read.

    Returns:
        ``{setting: keys in the order of the space}`` for `supported`; all keys for a setting that is None. None if no
        setting selects keys.

    Raises:
        ValueError: If the space is not a Dict, or lacks a key.
    """
    given = {name: value for name, value in _given(settings).items() if name in supported}
    if not given:
        return None
    for name, value in given.items():
        if not isinstance(space, gym.spaces.Dict):
            raise ValueError(
                f"model_config {name}={value!r} needs Dict observations, but the observation space is {space}. Remove "
                "the setting; or remove connectors that flatten the Dict, such as FlattenObservations."
            )
        missing = sorted(_as_set(value) - set(space.spaces))
        if missing:
            raise ValueError(
                f"model_config {name}={value!r}: observations have no key {', '.join(map(repr, missing))}. Use some of "
                f"{list(space.spaces)}."
            )
    assert isinstance(space, gym.spaces.Dict)
    return {
        name: tuple(key for key in space.spaces if name not in given or key in _as_set(given[name]))
        for name in supported
    }


def selected_space(space: gym.spaces.Dict) -> gym.Space:
    """Returns the space of the encoder input that `selected_observation` computes from the selected keys of Dict
    observations.

    Args:
        space: Dict of the selected keys.
    """
    return flatten_space_beside_images(_part(space, space))


def selected_observation(space: gym.spaces.Dict, observation: Mapping[str, Any]) -> Any:
    """Selects the keys of `space` from a Dict observation, and converts their entries to the input of default encoders.

    If `space` has one key, returns the converted entry: an image is unchanged; a vector, for example, is float32
    ``[..., d]`` (see `flatten_beside_images`). If `space` has several keys, returns one float32 vector ``[..., d]`` of
    all entries; if any entry contains an image, returns a dict of the converted entries instead.

    Args:
        space: Dict of the selected keys.
        observation: Dict with these keys, and others; leaves ``[..., *shape]``.
    """
    part, value = _part(space, space), _part(space, observation)
    return flatten_beside_images(part, value, _num_batch_dims(part, value))


def _part(space: gym.spaces.Dict, observation: Any) -> Any:
    """Returns the entries of a Dict observation whose keys are in `space`.

    For one key, returns only its entry; for several keys, a dict of the entries. If `observation` is `space` itself,
    returns spaces instead: for one key, the key's space; for several keys, `space` unchanged.
    """
    keys = list(space.spaces)
    if len(keys) == 1:
        return observation[keys[0]]
    return space if observation is space else {key: observation[key] for key in keys}


def _num_batch_dims(space: gym.Space, observation: Any) -> int:
    """Returns the number of leading batch axes of an observation; all leaves of the observation have the same number of
    batch axes.
    """
    numbers = map_parts(lambda part, value: jnp.ndim(value) - len(part.shape or ()), space, observation)
    return jax.tree.leaves(numbers)[0]


def _given(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: settings[name] for name in OBSERVATION_KEYS if settings.get(name) is not None}


def _as_set(keys: Any) -> frozenset[str]:
    return frozenset([keys] if isinstance(keys, str) else keys)
