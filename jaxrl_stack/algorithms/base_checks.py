"""Checks for the settings that all algorithms have in common. Checks for common kinds of values, such as `boolean`, are
in `setting_checks`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import jax
import numpy as np

from jaxrl_stack.algorithms.setting_checks import (
    boolean,
    check_of,
    function_of,
    instance,
    integer,
    number,
    one_of,
    subclass_of,
)
from jaxrl_stack.algorithms.settings_display import short
from jaxrl_stack.callbacks.callbacks import RLlibCallback
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.core.models.catalog import Catalog
from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig
from jaxrl_stack.core.rl_module.rl_module import MultiRLModule, MultiRLModuleSpec, RLModule, RLModuleSpec
from jaxrl_stack.env.param_ranges import FORMS, range_problem, stored_form
from jaxrl_stack.offline.estimators import estimators_of
from jaxrl_stack.runs.trackers import TRACKERS
from jaxrl_stack.utils.memory import parse_bytes
from jaxrl_stack.utils.metrics.stats import StatsBase
from jaxrl_stack.utils.policy_spec import PolicySpec
from jaxrl_stack.utils.signatures import call_problem


@check_of("str | gym.VectorizeMode")
def vectorize_mode(value: Any) -> str | None:
    modes = [mode.value for mode in gym.VectorizeMode]
    is_mode = isinstance(value, gym.VectorizeMode) or (isinstance(value, str) and value in modes)
    return None if is_mode else "one of " + ", ".join(repr(mode) for mode in modes)


@check_of("type[RLlibCallback] | list[type[RLlibCallback]]")
def callback_class(value: Any) -> str | None:
    classes = value if isinstance(value, (list, tuple)) else [value]
    for item in classes:
        made = item.func if isinstance(item, functools.partial) else item
        if not (isinstance(made, type) and issubclass(made, RLlibCallback)):
            return "a subclass of jaxrl_stack.callbacks.callbacks.RLlibCallback, or a list of such classes"
        problem = call_problem(item)
        if problem is not None:
            return (
                f"a class that can be made without arguments; {made.__name__}() cannot ({problem}). Bind them with "
                f"functools.partial({made.__name__}, ...) or a subclass"
            )
    return None


@check_of("dict[str, dict[str, Any] | str | type[OffPolicyEstimator]]")
def off_policy_estimation_methods(value: Any) -> str | None:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        return "a dict from the name of a result to {'type': an OffPolicyEstimator, ...}"
    try:
        estimators_of(value)
    except ValueError as error:
        return str(error)
    return None


@check_of("Collection[str] | dict[str, PolicySpec | tuple[Any, ...] | None]")
def policies(value: Any) -> str | None:
    wanted = "a set, list or tuple of policy ids, or a dict from id to PolicySpec, 4-tuple or None"
    if not isinstance(value, (dict, set, frozenset, list, tuple)) or not value:
        return wanted
    for policy_id in value:
        problem = _policy_id(policy_id)
        if problem:
            return problem
    if isinstance(value, dict):
        for spec in value.values():
            if not (spec is None or isinstance(spec, PolicySpec) or (isinstance(spec, tuple) and len(spec) == 4)):
                return wanted
            settings = spec[3] if isinstance(spec, tuple) else getattr(spec, "config", None)
            if settings:
                return f"made of spaces only. Set {settings} in rl_module(algorithm_config_overrides_per_module=...)"
    return None


def _policy_id(value: Any) -> str | None:
    # Ids are names of folders in checkpoints.
    if not isinstance(value, str) or not value:
        return f"made of ids that are non-empty strings, not {value!r}"
    if any(c in value for c in '<>:"/\\|?') or value[-1] in ". ":
        return f'made of ids without any of <>:"/\\|? and without a dot or blank at the end, not {value!r}'
    return None


_draws_params = function_of("key", "params")


@check_of("dict[str, tuple[Any, ...] | list[Any]] | Callable[[Any, Any], Any]")
def randomized_params(value: Any) -> str | None:
    if callable(value):
        return _draws_params(value)
    if not isinstance(value, Mapping) or not value or not all(isinstance(name, str) for name in value):
        return f"a dict from the name of a parameter to {FORMS}, or a function of (key, params) that returns params"
    return next(filter(None, (range_problem(name, own) for name, own in value.items())), None)


def stored_randomized_params(value: Any) -> Any:
    """Converts each distribution in a dict of `randomized_params` to the form that configs store.

    The form is ``("uniform" | "log", low, high)``, or a list of values. If `value` is not a dict but a function or
    None, returns `value` unchanged.
    """
    return {name: stored_form(own) for name, own in value.items()} if isinstance(value, Mapping) else value


_should_be_trained = function_of("module_id", "batch")


@check_of("Collection[str] | Callable[..., bool] | None")
def policies_to_train(value: Any) -> str | None:
    if value is None or isinstance(value, (set, frozenset, list, tuple, dict)):
        return None
    if callable(value):
        return _should_be_trained(value)
    return "a collection of policy ids, a function f(module_id, batch) -> bool, or None for all"


@check_of("dict[str, Any] | DefaultModelConfig")
def model_config(value: Any) -> str | None:
    return None if isinstance(value, (dict, DefaultModelConfig)) else "a dict or a DefaultModelConfig"


@check_of("RLModuleSpec | MultiRLModuleSpec")
def rl_module_spec(value: Any) -> str | None:
    if isinstance(value, MultiRLModuleSpec) and not isinstance(value.rl_module_specs, dict):
        return "a MultiRLModuleSpec whose rl_module_specs is a dict from module id to RLModuleSpec"
    if isinstance(value, RLModuleSpec):
        return _problem_with_spec(value)
    if not isinstance(value, MultiRLModuleSpec):
        return "an RLModuleSpec or a MultiRLModuleSpec"
    if subclass_of(MultiRLModule, "")(value.multi_rl_module_class) is not None:
        return (
            "a MultiRLModuleSpec whose multi_rl_module_class is a subclass of MultiRLModule, not "
            f"{short(value.multi_rl_module_class)}"
        )
    for module_id, spec in (value.rl_module_specs or {}).items():
        problem = _problem_with_spec(spec)
        if problem is not None:
            return f"a MultiRLModuleSpec whose module {module_id!r} has {problem}"
    return None


_MODULE_ARGUMENTS = dict.fromkeys(
    ("observation_space", "action_space", "inference_only", "learner_only", "model_config", "catalog_class", "rngs")
)


_SPEC_CHECKS = {
    "catalog_class": subclass_of(Catalog, "a subclass of Catalog"),
    "observation_space": instance(gym.Space, what="a gymnasium space or None"),
    "action_space": instance(gym.Space, what="a gymnasium space or None"),
    "inference_only": boolean,
    "learner_only": boolean,
    "model_config": instance(Mapping, DefaultModelConfig, what="a dict or a DefaultModelConfig"),
}


def _problem_with_spec(spec: RLModuleSpec) -> str | None:
    """Checks a module spec. Returns None if it is valid, else a description of a valid spec for the error message."""
    cls = spec.module_class
    if cls is not None:
        if subclass_of(RLModule, "")(cls) is not None:
            return f"an RLModuleSpec whose module_class is a subclass of RLModule, not {short(cls)}"
        if inspect.isabstract(cls):
            missing = ", ".join(f"{name}()" for name in sorted(cls.__abstractmethods__))
            return f"an RLModuleSpec whose module_class defines {missing}, which {cls.__name__} does not"
        problem = call_problem(cls.__init__, None, **_MODULE_ARGUMENTS)
        if problem is not None:
            return (
                f"an RLModuleSpec whose module_class takes the keyword arguments {', '.join(_MODULE_ARGUMENTS)}; "
                f"{cls.__name__}() does not ({problem}). Build the networks in setup(), without a constructor"
            )
    for name, check in _SPEC_CHECKS.items():
        value = getattr(spec, name)
        wanted = None if value is None else check(value)
        if wanted is not None:
            return f"an RLModuleSpec whose {name} is {wanted}, not {short(value)}"
    return None


@check_of("dict[str, type[StatsBase]]")
def stats_classes(value: Any) -> str | None:
    is_stats = subclass_of(StatsBase, "")
    if isinstance(value, dict) and all(isinstance(k, str) and is_stats(v) is None for k, v in value.items()):
        return None
    return "a dict from the name of a reduction to a subclass of StatsBase"


@check_of("Collection[str] | dict[str, dict[str, Any]]")
def loggers(value: Any) -> str | None:
    names = value if isinstance(value, dict | list | tuple) else [None]
    options = value.values() if isinstance(value, dict) else ()
    if all(name in TRACKERS for name in names) and all(isinstance(each, dict) for each in options):
        return None
    return f"a list of names ({', '.join(map(repr, TRACKERS))}), or a dict from name to a dict of arguments"


def with_options(value: Any) -> Any:
    """Converts a list of experiment logger names to a dict ``{name: {}}``, with no options for any logger; returns a
    dict unchanged.
    """
    return {name: {} for name in value} if isinstance(value, list | tuple) else value


@check_of("dict[str, dict[str, Any]]")
def overrides_per_module(value: Any) -> str | None:
    if isinstance(value, dict) and all(isinstance(overrides, dict) for overrides in value.values()):
        return None
    return "a dict from module id to a dict of settings, such as {'p0': PPOConfig.overrides(lr=0.001)}"


@check_of("AlgorithmConfig | dict[str, Any]")
def evaluation_config(value: Any) -> str | None:
    is_config = any(base.__name__ == "AlgorithmConfig" for base in type(value).__mro__)
    return None if isinstance(value, dict) or is_config else "a dict of settings or an AlgorithmConfig"


@check_of("str")
def framework(value: Any) -> str | None:
    if value in ("tf", "tf2", "tfe"):
        return "'jax': TensorFlow is not supported; networks are Flax NNX modules"
    return one_of("jax", "torch")(value)


@check_of("bool")
def on_only(value: Any) -> str | None:
    return None if value is True else "True: the old API stack is not supported. Leave api_stack() out"


@check_of("Callable[..., Any]")
def connector(value: Any) -> str | None:
    if callable(value) and not isinstance(value, ConnectorV2):
        return None
    return (
        "a function that returns a connector or a list of connectors, such as "
        "lambda env, spaces, device: MeanStdFilter()"
    )


@check_of("bool | str")
def kept(value: Any) -> str | None:
    if boolean(value) is None or (isinstance(value, str) and value):
        return None
    return "True, False, or the path of a number in results, such as 'env_runners/agent_episode_returns_mean/a'"


@check_of('int | Literal["sparse"]')
def number_to_keep(value: Any) -> str | None:
    if value == "sparse" or integer(1)(value) is None:
        return None
    return "an integer of at least 1, 'sparse', or None for all"


@check_of("int | str")
def bytes_to_keep(value: Any) -> str | None:
    if integer(1)(as_bytes(value)) is None:
        return None
    return "a size with a unit, such as '20 GB' or '500 MiB', an integer of at least 1 (bytes), or None for no limit"


def as_bytes(value: Any) -> Any:
    """Converts a text such as "20 GB" to a number of bytes; returns other values unchanged."""
    size = parse_bytes(value) if isinstance(value, str) else None
    return value if size is None else size


@check_of("bool | float | None")
def clip_rewards(value: Any) -> str | None:
    if isinstance(value, bool) or value is None:
        return None
    return None if number(above=0)(value) is None else "None, False, True (sign) or a positive number (clip to ±)"


@check_of("Collection[str]")
def static_names(value: Any) -> str | None:
    is_names = isinstance(value, (list, tuple, set, frozenset)) and all(isinstance(name, str) for name in value)
    return None if is_names else "a list of names of traced settings"


@check_of("list[Callable[[Any], Any]] | dict[str, list[Callable[[Any], Any]]]")
def lr_schedules(value: Any) -> str | None:
    """Checks the setting `_torch_lr_scheduler_classes`: a list of optax schedules whose values multiply the learning
    rate, or a dict of such lists by module id.
    """
    lists = list(value.values()) if isinstance(value, Mapping) else [value]
    if all(isinstance(own, (list, tuple)) and all(map(_is_schedule, own)) for own in lists):
        return None
    return (
        "a list of optax schedules, or a dict of lists by module id, such as "
        "[optax.exponential_decay(1.0, transition_steps=1, decay_rate=0.99)] for PyTorch's ExponentialLR(gamma=0.99). "
        "For rates over env steps use training(lr=[[0, v0], [t1, v1], ...])"
    )


def _is_schedule(function: Any) -> bool:
    try:
        made = jax.eval_shape(function, jax.ShapeDtypeStruct((), np.int32))
    except Exception:
        # PyTorch's take an optimizer; whatever they raise, they are none.
        return False
    return getattr(made, "shape", None) == ()
