"""Items of an ``env_config`` as arguments of a constructor and as fields of a dataclass of parameters."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.env.env_context import refuse_unknown


def built(name: str, factory: Callable[..., Any], config: dict[str, Any]) -> Any:
    """An instance made with those items of `config` that are constructor arguments and no parameters.

    The default instance comes first, because only an instance knows its class and the names of its parameters.
    """
    arguments = constructor_arguments(factory)
    required = [n for n, p in arguments.items() if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    missing = [n for n in required if n not in config]
    if missing:
        raise ValueError(f"{name} needs the constructor arguments {missing}: pass them in `env_config`.")
    env = factory(**{n: config[n] for n in required})
    if not config:
        return env
    fields = field_names(env.default_params)
    refuse_unknown_setting(name, config, fields, constructor_arguments(type(env)))
    given = {n: value for n, value in config.items() if n not in fields or n in required}
    return env if set(given) == set(required) else factory(**given)


def constructor_arguments(cls: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(cls).parameters
    return {n: p for n, p in parameters.items() if p.kind not in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL)}


def field_names(params: Any) -> list[str]:
    return [f.name for f in dataclasses.fields(params)] if dataclasses.is_dataclass(params) else []


def refuse_unknown_setting(
    name: str, config: dict[str, Any], fields: list[str], arguments: dict[str, inspect.Parameter] | None
) -> None:
    """Raises for items of `config` that are neither parameters nor arguments (None: an instance, built)."""
    if arguments and any(p.kind is p.VAR_KEYWORD for p in arguments.values()):
        return
    constructor = "It is an instance: give constructor arguments where you make it."
    if arguments is not None:
        constructor = f"Its constructor's arguments: {', '.join(arguments) or 'none'}."
    refuse_unknown(
        name, config, [*fields, *(arguments or ())], f"Its parameters: {', '.join(fields) or 'none'}. {constructor}"
    )


def replaced_fields(name: str, params: Any, config: dict[str, Any]) -> Any:
    fields = field_names(params)
    given = {n: _converted(name, n, getattr(params, n), value) for n, value in config.items() if n in fields}
    return dataclasses.replace(params, **given) if given else params


def _converted(name: str, field: str, default: Any, value: Any) -> Any:
    """`value` with the shape and dtype of `default`; as it is where `default` is no number."""
    if not isinstance(default, (bool, int, float, np.generic, np.ndarray, jax.Array)):
        return value
    target, array = np.asarray(default), np.asarray(value)
    if target.dtype.kind == "b":
        kind, fits = "bool", array.dtype.kind == "b"
    elif target.dtype.kind in "iu":
        kind, fits = "integer", array.dtype.kind in "iuf" and bool(np.all(np.mod(array, 1) == 0))
    else:
        kind, fits = "float", array.dtype.kind in "iuf"
    if not fits or array.shape != target.shape:
        raise ValueError(
            f"env_config[{field!r}]={value!r}: this parameter of {name} is {kind} of shape {target.shape} "
            f"(default {default})."
        )
    return array.astype(jnp.result_type(default))
