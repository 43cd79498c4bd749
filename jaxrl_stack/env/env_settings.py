"""Conversion of ``env_config`` items to constructor arguments of a gymnax environment and to fields of its parameter
dataclass.
"""

from __future__ import annotations

import dataclasses
import inspect
import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.env.env_context import refuse_unknown
from jaxrl_stack.utils.notices import notice_once


def built(name: str, factory: Callable[..., Any], config: dict[str, Any]) -> Any:
    """Creates an environment with the items of `config` that are constructor arguments; items that are environment
    parameters (fields of its parameter dataclass) are not used here.

    The default instance comes first, because only an instance knows its class and the names of its parameters.
    """
    arguments = constructor_arguments(factory)
    required = [n for n, p in arguments.items() if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    missing = [n for n in required if n not in config]
    if missing:
        raise ValueError(
            f"{name} needs the constructor arguments {missing}. Pass them with environment(env_config={{...}})."
        )
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
    """Raises ValueError for items of `config` that name neither an environment parameter nor a constructor argument.

    `fields` are the names of the environment parameters, `arguments` the constructor arguments. `arguments` is None if
    the user passed an instance, whose constructor was already called.
    """
    if arguments and any(p.kind is p.VAR_KEYWORD for p in arguments.values()):
        return
    constructor = "It is an instance: give constructor arguments where you make it."
    if arguments is not None:
        constructor = f"Its constructor's arguments: {', '.join(arguments) or 'none'}."
    refuse_unknown(
        name, config, [*fields, *(arguments or ())], f"Its parameters: {', '.join(fields) or 'none'}. {constructor}"
    )


def replaced_fields(name: str, params: Any, config: dict[str, Any]) -> Any:
    """Returns `params` with the values that `config` sets for environment parameters.

    Also recomputes the parameters that are computed from these values. Ignores items of `config` that are no
    environment parameters.
    """
    fields = field_names(params)
    given = {n: _converted(name, n, getattr(params, n), value) for n, value in config.items() if n in fields}
    return with_derived_fields(name, params, given) if given else params


class Derived(NamedTuple):
    """Environment parameter that is computed from two other parameters, named in `sources`."""

    sources: tuple[str, str]
    function: Callable[[Any, Any], Any]

    def of(self, params: Any) -> Any:
        """Computes the value of this derived parameter from the values of its two source parameters in `params`."""
        return self.function(*(getattr(params, source) for source in self.sources))


_DERIVED = {
    "total_mass": Derived(("masscart", "masspole"), operator.add),
    "polemass_length": Derived(("masspole", "length"), operator.mul),
}
"""Fields that gymnax keeps next to the fields that they are computed from, by name."""
_RELATED = {
    "link_length_1": ("link_com_pos_1", "link_moi"),
    "link_length_2": ("link_com_pos_2", "link_moi"),
    "link_mass_1": ("link_moi",),
    "link_mass_2": ("link_moi",),
    "max_steps_in_episode": ("t_max",),
}
"""Fields whose default suits the default of another field, but does not follow from it."""


def with_derived_fields(name: str, params: Any, values: Mapping[str, Any]) -> Any:
    """Returns `params` with the new `values` of environment parameters, and recomputes the parameters that are computed
    from them.

    A derived field is computed again if one of its sources changes, unless `values` has the field itself, or `params`
    already has another value for it than its sources give. A notice names related fields that stay as they are.

    Args:
        name: The environment, for notices.
        params: A dataclass of numbers.
        values: New values by field: numbers, or arrays, traced ones too.
    """
    replaced = dataclasses.replace(params, **values)
    derived = derived_fields(params, values)
    for field, kept in related_fields(params, values).items():
        notice_once(
            f"env_config[{field!r}]={values[field]}: {name} keeps {' and '.join(kept)}, which suit "
            f"{field}={getattr(params, field)}. Set them in env_config, too."
        )
    if not derived:
        return replaced
    return dataclasses.replace(replaced, **{field: own.of(replaced) for field, own in derived.items()})


def derived_fields(params: Any, names: Collection[str]) -> dict[str, Derived]:
    """Returns the derived parameters that must be computed again if the parameters `names` change, as ``{name:
    Derived}``; see `with_derived_fields`.

    Args:
        params: Concrete numbers: the relations that hold in them decide.
        names: Fields that change.
    """
    fields = set(field_names(params))
    return {
        field: own
        for field, own in _DERIVED.items()
        if field not in names
        and fields.issuperset((field, *own.sources))
        and set(own.sources).intersection(names)
        and np.allclose(getattr(params, field), own.of(params))
    }


def related_fields(params: Any, names: Collection[str]) -> dict[str, list[str]]:
    """Returns the unchanged environment parameters whose values may not suit the new value of a changed parameter.

    The result is ``{changed parameter: ["other=value"]}``. The user gets a notice about these parameters. For example,
    a moment of inertia may not suit a new length of a link.
    """
    unchanged = set(field_names(params)).difference(names)
    kept = {
        field: [f"{other}={getattr(params, other)}" for other in _RELATED[field] if other in unchanged]
        for field in sorted(_RELATED.keys() & set(names))
    }
    return {field: others for field, others in kept.items() if others}


def _converted(name: str, field: str, default: Any, value: Any) -> Any:
    """Converts `value` to a NumPy array with the dtype that JAX uses for `default`.

    Raises ValueError if `value` does not fit the dtype and shape of `default`. If `default` is not numeric, returns
    `value` unchanged.
    """
    if not isinstance(default, (bool, int, float, np.generic, np.ndarray, jax.Array)):
        return value
    target, array = np.asarray(default), np.asarray(value)
    if target.dtype.kind == "b":
        kind, fits = "a bool", array.dtype.kind == "b"
    elif target.dtype.kind in "iu":
        kind, fits = "an integer", array.dtype.kind in "iuf" and bool(np.all(np.mod(array, 1) == 0))
    else:
        kind, fits = "a float", array.dtype.kind in "iuf"
    if not fits or array.shape != target.shape:
        raise ValueError(
            f"env_config[{field!r}]={value!r}: this parameter of {name} must be {kind} of shape {target.shape} "
            f"(default {default})."
        )
    return array.astype(jnp.result_type(default))
