"""The settings of a config as JSON values, for checkpoints: data only, no code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig
from jaxrl_stack.utils.spaces import space_from_dict, space_to_dict

_KIND = "__kind__"


class _NotDataError(Exception):
    """The value holds code or an object that JSON cannot describe."""


def config_to_data(config: AlgorithmConfig) -> tuple[dict[str, Any], list[str]]:
    """The settings of `config` that were set explicitly.

    Returns:
        ``(settings, left_out)``: attribute name -> JSON value, and the names of those that hold functions,
        classes or other objects.
    """
    data, left_out = {}, []
    for name in sorted(config.explicitly_set):
        value = config.stored_value(name)
        try:
            data[name] = _encode(value)
        except _NotDataError:
            left_out.append(name)
    return data, left_out


def config_from_data(config_class: type[AlgorithmConfig], data: Mapping[str, Any]) -> AlgorithmConfig:
    """A config from what `config_to_data` returned.

    Raises:
        ValueError: If there is a name that `config_class` does not know.
    """
    return config_class().update_from_dict({name: _decode(value) for name, value in data.items()})


def _encode(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, gym.Space):
        return {_KIND: "space", "value": space_to_dict(value)}
    if isinstance(value, DefaultModelConfig):
        return {_KIND: "DefaultModelConfig", "value": _encode(value.given())}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encode(item) for item in value]
    if isinstance(value, set | frozenset):
        return {_KIND: "set", "value": sorted(_encode(item) for item in value)}
    raise _NotDataError


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    kind = value.get(_KIND)
    if kind is None:
        return {key: _decode(item) for key, item in value.items()}
    if kind == "space":
        return space_from_dict(value["value"])
    if kind == "DefaultModelConfig":
        return DefaultModelConfig(**_decode(value["value"]))
    if kind == "set":
        return set(value["value"])
    raise ValueError(f"Unknown kind of setting {kind!r} in the stored config.")
