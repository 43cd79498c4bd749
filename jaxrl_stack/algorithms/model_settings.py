"""Settings in model configs of the default networks, and checks of their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxrl_stack.algorithms.setting_checks import boolean, integer, number, one_of
from jaxrl_stack.algorithms.setting_values import as_dict
from jaxrl_stack.algorithms.settings_display import short
from jaxrl_stack.core.models.activations import get_activation
from jaxrl_stack.core.models.configs import COMPUTE_DTYPES
from jaxrl_stack.core.models.filters import parse_filters
from jaxrl_stack.core.models.initializers import get_initializer
from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig

_width = integer(1)


def _widths(value: Any) -> str | None:
    if isinstance(value, (list, tuple, np.ndarray)) and all(_width(width) is None for width in value):
        return None
    return "a list of integers of at least 1, such as [256, 256]"


def _widths_or_none(value: Any) -> str | None:
    problem = None if value is None else _widths(value)
    return problem and f"{problem}, or None for critics without that net"


def _activation(value: Any) -> str | None:
    if not (value is None or isinstance(value, str) or callable(value)):
        return "the name of an activation, such as 'relu', or a callable such as jax.nn.relu"
    try:
        get_activation(value)
    except ValueError as error:
        return f"the name of an activation or a callable. {str(error).removesuffix('.')}"
    return None


def _filters(value: Any) -> str | None:
    try:
        parse_filters([[1, 1, 1]] if value is None else value, "conv_filters")
    except ValueError as error:
        return f"None, or a list such as [[16, 4, 2], [32, 4, 2]]. {str(error).removesuffix('.')}"
    return None


def _keys(value: Any) -> str | None:
    is_list = isinstance(value, (list, tuple)) and value and all(isinstance(key, str) for key in value)
    if value is None or isinstance(value, str) or (is_list and len(set(value)) == len(value)):
        return None
    return "None for all keys, a key of the observations, such as 'state', or a list of different keys"


_CHECKS_OF_ENDINGS: dict[str, Callable[[Any], str | None]] = {
    "_hiddens": _widths,
    "_activation": _activation,
    "_use_layernorm": boolean,
    "_obs_key": _keys,
}
_CHECKS: dict[str, Callable[[Any], str | None]] = {
    "conv_filters": _filters,
    "compute_dtype": one_of(*COMPUTE_DTYPES),
    "free_log_std": boolean,
    "fusionnet_hiddens": _widths_or_none,
    "vf_share_layers": boolean,
    "use_lstm": boolean,
    "lstm_cell_size": integer(1),
    "lstm_use_prev_action": boolean,
    "lstm_use_prev_reward": boolean,
    "max_seq_len": integer(1),
    "log_std_clip_param": number(0),
}


def given_settings(model_config: Any) -> dict[str, Any]:
    """Settings in a user's model config: the entries of a dict, or all fields of a DefaultModelConfig."""
    return as_dict(model_config or {})


def settings_of_module(config: Any, module_id: str, spec: Any) -> dict[str, Any]:
    """Model config of a module: the algorithm config's model settings, overridden by the settings for this module.

    The overrides are first the config's settings for this module, then the model settings in the module's spec.
    """
    return config.get_config_for_module(module_id).model_config | given_settings(spec.model_config)


def problem_with_model_config(model_config: Mapping[Any, Any]) -> str | None:
    """Description of the first invalid value of a model config, with the setting's name; None if all are valid.

    Names that `DefaultModelConfig` does not have belong to other modules, and are not checked.

    Args:
        model_config: ``{name: value}``.
    """
    for name, value in model_config.items():
        if not isinstance(name, str):
            return f"the key {name!r} must be the name of a setting, such as 'fcnet_hiddens'"
        if name not in DefaultModelConfig.__dataclass_fields__:
            continue
        ending = next((ending for ending in _CHECKS_OF_ENDINGS if name.endswith(ending)), "")
        check = _CHECKS.get(name) or _CHECKS_OF_ENDINGS.get(ending)
        problem = check(value) if check is not None else None
        if problem is not None:
            return f"{name}={short(value)} must be {problem}"
        problem = _problem_with_initializer(name, value, model_config)
        if problem is not None:
            return problem
    return None


def _problem_with_initializer(name: str, value: Any, model_config: Mapping[Any, Any]) -> str | None:
    if not name.endswith(("_initializer", "_initializer_kwargs")):
        return None
    name = name.removesuffix("_kwargs")
    initializer, kwargs = model_config.get(name), model_config.get(f"{name}_kwargs")
    if not (initializer is None or isinstance(initializer, str) or callable(initializer)):
        return f"{name}={short(initializer)} must be the name of an initializer, such as 'orthogonal', or a callable"
    if not (kwargs is None or isinstance(kwargs, Mapping)):
        return f"{name}_kwargs={short(kwargs)} must be a dict of the initializer's arguments"
    try:
        get_initializer(initializer, dict(kwargs or {}), name)
    except ValueError as error:
        return str(error).removesuffix(".")
    return None
