"""AlgorithmConfig: the settings of a run, and what is built from them."""

from __future__ import annotations

import dataclasses
import functools
import html
import inspect
import sys
import warnings
from collections.abc import Callable, Collection, Hashable, ItemsView, KeysView, Mapping, ValuesView
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import jax
import numpy as np

from jaxrl_stack.algorithms.base_settings import BASE_SECTIONS, OLD_NAMES, default_policy_mapping_fn
from jaxrl_stack.algorithms.model_settings import problem_with_model_config
from jaxrl_stack.algorithms.registry import get_algorithm_class
from jaxrl_stack.algorithms.settings import (
    Declarations,
    OldName,
    Section,
    Setting,
    as_dict,
    copy_value,
    fingerprint_of,
    fluent_method,
    is_search_space,
    same,
    short,
    traced_value,
)
from jaxrl_stack.connectors.checks import check_env_to_module, check_pieces
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.env_to_module import EnvToModulePipeline, FlattenObservations
from jaxrl_stack.connectors.learner import LearnerConnectorPipeline
from jaxrl_stack.connectors.module_to_env import (
    ActionNoise,
    GetActions,
    ModuleToEnvPipeline,
    NormalizeAndClipActions,
)
from jaxrl_stack.core import DEFAULT_MODULE_ID, DEFAULT_POLICY_ID
from jaxrl_stack.core.learner.learner_group import LearnerGroup
from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig
from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModuleSpec
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.env.registry import get_env_creator, register_env, resolve_env
from jaxrl_stack.utils import schedules
from jaxrl_stack.utils.class_paths import ClassLoader
from jaxrl_stack.utils.from_config import NotProvided
from jaxrl_stack.utils.notices import notice_once
from jaxrl_stack.utils.plain_data import Plain
from jaxrl_stack.utils.policy_spec import PolicySpec
from jaxrl_stack.utils.spaces import check_space, difference

if TYPE_CHECKING:
    from typing import Self

    from jaxrl_stack.algorithms.algorithm import Algorithm
    from jaxrl_stack.core.learner.learner import Learner
    from jaxrl_stack.env.env_runner import EnvRunner

__all__ = ["AlgorithmConfig", "NotProvided", "PolicySpec"]

KEY_TRANSLATIONS = {
    "lambda": "lambda_",
    "input": "input_",
    "framework": "framework_str",
    "callbacks": "callbacks_class",
    "create_env_on_driver": "create_env_on_local_worker",
    "custom_eval_function": "custom_evaluation_function",
}
"""Key of a config dict → attribute."""
ATTRIBUTE_TRANSLATIONS = {attribute: key for key, attribute in KEY_TRANSLATIONS.items()}

_INTERNAL_DEFAULTS: dict[str, Any] = {
    "algo_class": None,
    "in_evaluation": False,
    "_is_online": True,
    "_dont_auto_sync_env_runner_states": False,
}
"""Attributes that are no settings but may be set by subclasses and builders."""


NOT_IN_CHECKPOINTS = frozenset({"compilation_cache_dir"})
"""Settings that say nothing of a run. Compiled programs are read, and run, from where this one points to."""

_OF_THE_ALGORITHM = (
    "evaluation_interval",
    "evaluation_num_env_runners",
    "evaluation_parallel_to_training",
    "evaluation_error_after_n_consecutive_skips",
    "custom_evaluation_function",
)
"""Settings of evaluation that its runners have nothing to do with."""

_CACHES = ("_configs_of_modules", "_resolved_env")


def _check_trusted(value: Any, loader: ClassLoader) -> None:
    """Refuse settings of a checkpoint that lead to code outside of it."""
    if isinstance(value, list | tuple):
        for item in value:
            _check_trusted(item, loader)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = vars(value)
    if not isinstance(value, Mapping):
        return
    for name, item in value.items():
        if name in NOT_IN_CHECKPOINTS:
            raise ValueError(f"The checkpoint sets {name}, which is never taken from one. Somebody has changed it.")
        # "env_id" is what gymnasium's wrappers for environments of older APIs call it.
        if name in ("env", "env_id") and isinstance(item, str) and ":" in item and not loader.allows_text(item):
            raise ValueError(
                f"The checkpoint names the environment {item!r}, which is imported from a module of that name. Say "
                f"that you trust it, from_checkpoint(path, allow=[{item!r}]), or pass another one: env=..."
            )
        buffer = item.get("type") if name == "replay_buffer_config" and isinstance(item, Mapping) else None
        if isinstance(buffer, str) and ("." in buffer or ":" in buffer) and not loader.allows_text(buffer):
            raise ValueError(
                f"The checkpoint names the replay buffer {buffer!r}, which is imported from a module of that name. Say "
                f"that you trust it, from_checkpoint(path, allow=[{buffer!r}]), or pass another one: "
                "replay_buffer_config=..."
            )
        _check_trusted(item, loader)


class _ConfigMeta(type):
    """Closes a config for new names once its whole constructor, subclasses' included, has run."""

    @property
    def __signature__(cls) -> inspect.Signature:
        # inspect would show __call__'s (*args, **kwargs).
        parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
        return inspect.Signature(parameters)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        config = super().__call__(*args, **kwargs)
        vars(config)["_is_constructed"] = True
        return config


class AlgorithmConfig(Plain, metaclass=_ConfigMeta):
    """The settings of an algorithm: set them by section, then build.

    ::

        config = PPOConfig().environment("gymnax/CartPole-v1").training(lr=0.0003)
        algo = config.build_algo()

    Every section is a method that takes its settings as keywords and returns the config. A subclass declares
    settings of its own in `_sections` (they get signature, documentation and checks), changes defaults in
    `_defaults`, or does both in its ``__init__`` by plain assignment.

    Args:
        algo_class: The Algorithm class that `build_algo` makes, or its name in the registry.
    """

    _sections: tuple[Section, ...] = BASE_SECTIONS
    _defaults: Mapping[str, Any] = {}
    _old_names: tuple[OldName, ...] = OLD_NAMES
    _declarations: Declarations

    def __init__(self, algo_class: type | str | None = None):
        values = vars(self)
        values["_is_constructed"] = False
        values["_is_frozen"] = False
        values["_explicitly_set"] = set()
        values["_own_names"] = set()
        values.update(_INTERNAL_DEFAULTS)
        values["algo_class"] = algo_class
        for setting in self._declarations.by_name.values():
            values[setting.attribute] = copy_value(setting.default)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._declare()

    @classmethod
    def _declare(cls) -> None:
        """Read this class's declarations and make the methods of the sections that it adds to."""
        own = vars(cls)
        parent = next((b._declarations for b in cls.__mro__[1:] if "_declarations" in vars(b)), None)
        sections = own.get("_sections", ())
        cls._declarations = Declarations(
            parent, sections, own.get("_defaults"), own.get("_old_names", ()), owner=cls.__name__
        )
        for section in sections:
            names = [setting.name for setting in section.settings]
            if section.name not in own:
                setattr(cls, section.name, fluent_method(cls, cls._declarations, section.name, names))

    # ----------------------------------------------------------------------------------------- setting values

    def _set_in_section(self, section: str, values: Mapping[str, Any]) -> None:
        """Set what a call of a section's method passed: all of it or, if something is wrong, nothing."""
        method = f"{type(self).__name__}.{section}()"
        self._check_not_frozen(method)
        todo: list[tuple[Setting, Any]] = []
        for name, value in values.items():
            if value is NotProvided:
                continue
            old = self._declarations.old_name(name, section)
            if old is not None:
                todo.append((self._mapped(old, f"{method[:-2]}({name}=...)", is_key=False), value))
                continue
            setting = self._declarations.by_name.get(name)
            if setting is None or setting.hidden or not self._declarations.takes(section, name):
                hint = self._declarations.suggestion(name, section=section)
                raise TypeError(f"{method} has no setting {name!r}.{hint}")
            todo.append((setting, value))
        checked = [(setting, self._checked(setting, value)) for setting, value in todo]
        for setting, value in checked:
            self._store(setting, value, merge=True)

    def _mapped(self, old: OldName, where: str, is_key: bool) -> Setting:
        """The setting that an old name stands for, after a warning.

        Raises:
            ValueError: If nothing is mapped.
        """
        if not old.maps_to or (old.only_as_key and not is_key):
            raise ValueError(f"{where}: {old.message()}")
        warn_deprecated(f"{where}: {old.message()}")
        return self._declarations.by_name[old.maps_to]

    def _checked(self, setting: Setting, value: Any) -> Any:
        """The value to store.

        Raises:
            ValueError: If it cannot be right.
        """
        if setting.check_when_set:
            self._check_value(setting, value)
        if setting.name == "framework" and value == "torch":
            notice_once(
                "framework('torch'): networks and learners are JAX here; the setting stands for 'jax'."
            )
            return "jax"
        return value if setting.convert is None or is_search_space(value) else setting.convert(value)

    def _check_value(self, setting: Setting, value: Any) -> None:
        problem = setting.problem_with(value)
        if problem is not None:
            raise ValueError(f"{self._declarations.call(setting, short(value))}: must be {problem}.")

    def _store(self, setting: Setting, value: Any, merge: bool) -> None:
        present = vars(self).get(setting.attribute)
        if merge and setting.merge and isinstance(present, dict) and isinstance(value, dict):
            value = setting.merge(present, value) if callable(setting.merge) else {**present, **value}
        vars(self)[setting.attribute] = copy_value(value)
        if self._is_constructed:
            self._explicitly_set.add(setting.name)
        if setting.kind == "inert" and setting.differs_from_default(value):
            notice_once(f"{self._declarations.call(setting, short(value))} has no effect: {setting.instead}")

    def _check_not_frozen(self, what: str) -> None:
        if vars(self).get("_is_frozen"):
            raise AttributeError(
                f"Cannot change {what}: the {type(self).__name__} is frozen (an Algorithm uses it). Change a "
                "copy: config.copy(copy_frozen=False)."
            )

    def __setattr__(self, name: str, value: Any) -> None:
        self._check_not_frozen(f"{name!r}")
        setting = self._declarations.find(name)
        if setting is not None and not (setting.hidden and self._is_constructed):
            self._store(setting, self._checked(setting, value), merge=False)
        elif name in _INTERNAL_DEFAULTS or name in self._own_names:
            vars(self)[name] = value
            if name in self._own_names and self._is_constructed:
                self._explicitly_set.add(name)
        elif (old := self._declarations.old_name(name)) is not None:
            self._store(self._mapped(old, f"config.{name} = ...", is_key=False), value, merge=False)
        elif not self._is_constructed:
            # A subclass's own setting, RLlib's way: assigned in its __init__.
            self._own_names.add(name)
            vars(self)[name] = value
        else:
            hint = self._declarations.suggestion(name, self._own_names)
            raise AttributeError(
                f"{type(self).__name__} has no setting {name!r}.{hint} Settings of your own go into "
                "env_config, learner_config_dict or model_config, or into the __init__ of a subclass of the "
                "config."
            )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        declarations = type(self)._declarations
        setting = declarations.by_name.get(name)
        if setting is not None and setting.attribute in vars(self):
            return vars(self)[setting.attribute]
        old = declarations.old_name(name)
        if old is not None:
            raise AttributeError(f"{type(self).__name__}.{name}: {old.message()}")
        raise AttributeError(f"{type(self).__name__} has no setting {name!r}.{declarations.suggestion(name)}")

    @property
    def explicitly_set(self) -> frozenset[str]:
        """Names of the settings that were set on this config, even if to their default."""
        return frozenset(vars(self)["_explicitly_set"])

    # ---------------------------------------------------------------------------------------------- as a dict

    def to_dict(self) -> dict[str, Any]:
        """All settings by attribute name (a few by RLlib's key, such as "lambda"); containers are copies."""
        names = [setting.attribute for setting in self._declarations.by_name.values()]
        names += [*sorted(self._own_names), "in_evaluation", "_is_online"]
        return {ATTRIBUTE_TRANSLATIONS.get(name, name): _searchable(copy_value(vars(self)[name])) for name in names}

    def update_from_dict(self, config_dict: Mapping[str, Any]) -> Self:
        """Sets what a dict holds: keyword or attribute names, or keys of `to_dict`.

        Args:
            config_dict: Name → value. Nested dicts such as env_config are merged as in the methods.

        Returns:
            This config.

        Raises:
            ValueError: If a name is unknown (with a suggestion) or old, or a value cannot be right.
            AttributeError: If the config is frozen.
        """
        self._check_not_frozen("by update_from_dict()")
        for key, value in config_dict.items():
            if key == "multiagent":
                self.multi_agent(**value)
                continue
            name = KEY_TRANSLATIONS.get(key, key)
            setting = self._declarations.find(name)
            if setting is not None and setting.hidden and same(value, vars(self)[setting.attribute]):
                continue
            old = self._declarations.old_name(name)
            if old is not None and not (setting is not None and not self._is_constructed):
                setting = self._mapped(old, f"config key {key!r}", is_key=True)
            if setting is not None:
                self._store(setting, self._checked(setting, value), merge=True)
            elif name in _INTERNAL_DEFAULTS:
                vars(self)[name] = value
            elif name in self._own_names:
                setattr(self, name, value)
            else:
                hint = self._declarations.suggestion(name, self._own_names)
                raise ValueError(f"{type(self).__name__} has no setting {key!r}.{hint}")
        return self

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any]) -> Self:
        """A config with the settings of a dict, such as `to_dict` makes."""
        config = cls()
        changed = {}
        for key, value in config_dict.items():
            # What is at its default was not set by anybody.
            attribute = config._attribute_of(key)
            if attribute is None or not same(vars(config)[attribute], value):
                changed[key] = value
        hidden = {s.attribute for s in cls._declarations.by_name.values() if s.hidden}
        vars(config).update({key: changed.pop(key) for key in hidden & changed.keys()})
        return config.update_from_dict(changed)

    def get_state(self) -> dict[str, Any]:
        """What `from_state` needs: `to_dict`, the class, and which settings were set."""
        return {
            **self.to_dict(),
            "class": type(self),
            "algo_class": self.algo_class,
            "_explicitly_set": sorted(self._explicitly_set),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> AlgorithmConfig:
        """The config whose `get_state` returned `state`; of the class that is named there."""
        state = dict(state)
        config_class: type[AlgorithmConfig] = state.pop("class", cls)
        explicitly_set = state.pop("_explicitly_set", ())
        restored = config_class.from_dict(state)
        restored._explicitly_set.update(explicitly_set)
        return restored

    def to_plain(self) -> dict[str, Any]:
        """The settings that were set, for checkpoints; those of this machine alone are left out."""
        data = {name: self.stored_value(name) for name in sorted(self.explicitly_set - NOT_IN_CHECKPOINTS)}
        if self.in_evaluation:
            data["in_evaluation"] = True
        if self.algo_class != type(self)().algo_class:
            data["algo_class"] = self.algo_class
        return data

    @classmethod
    def from_plain(cls, data: dict[str, Any], loader: ClassLoader) -> Self:
        """The inverse of `to_plain`.

        Raises:
            ValueError: If there is a setting that this class does not know, or one that would import code or read
                executables which the caller has not named.
        """
        _check_trusted(data, loader)
        return cls().update_from_dict(data)

    def stored_value(self, name: str) -> Any:
        """The value of a setting as it was given, where the attribute of that name resolves it further."""
        attribute = self._attribute_of(name)
        if attribute is None:
            raise KeyError(
                f"{type(self).__name__} has no setting {name!r}.{self._declarations.suggestion(name)}"
            )
        return vars(self)[attribute]

    def serialize(self) -> dict[str, Any]:
        """`to_dict` with everything that is no JSON value as text: for files that people read."""
        return {key: _plain(value) for key, value in self.to_dict().items()}

    @classmethod
    def overrides(cls, **kwargs: Any) -> dict[str, Any]:
        """A dict of settings for `evaluation_config` and `algorithm_config_overrides_per_module`.

        Args:
            **kwargs: Settings of any section.

        Returns:
            Attribute name → value.

        Raises:
            KeyError: If a name is no setting of this class.
        """
        config = cls()
        overrides = {}
        for name, value in kwargs.items():
            attribute = config._attribute_of(name)
            if attribute is None:
                hint = cls._declarations.suggestion(name, config._own_names)
                raise KeyError(f"{cls.__name__} has no setting {name!r}.{hint}")
            overrides[attribute] = value
        return overrides

    def _attribute_of(self, key: str) -> str | None:
        name = KEY_TRANSLATIONS.get(key, key)
        setting = self._declarations.find(name)
        if setting is not None:
            return setting.attribute
        return name if name in self._own_names or name in _INTERNAL_DEFAULTS else None

    def __getitem__(self, item: str) -> Any:
        name = KEY_TRANSLATIONS.get(item, item)
        # `model_config`, `learner_class` and such are properties that resolve the stored value.
        if isinstance(getattr(type(self), name, None), property):
            return getattr(self, name)
        old = self._declarations.old_name(name)
        if old is not None and old.maps_to and name not in self._declarations.by_name:
            name = old.maps_to
        attribute = self._attribute_of(name)
        if attribute is None:
            raise KeyError(
                f"{type(self).__name__} has no setting {item!r}.{self._declarations.suggestion(item)}"
            )
        return vars(self)[attribute]

    def __setitem__(self, key: str, value: Any) -> None:
        self.update_from_dict({key: value})

    def __contains__(self, item: object) -> bool:
        return isinstance(item, str) and self.get(item, NotProvided) is not NotProvided

    def get(self, key: str, default: Any = None) -> Any:
        """``config[key]``, or `default` if there is no such setting."""
        try:
            return self[key]
        except KeyError:
            return default

    def pop(self, key: str, default: Any = None) -> Any:
        """The same as `get`: settings cannot be removed."""
        return self.get(key, default)

    def keys(self) -> KeysView[str]:
        """Keys of `to_dict`."""
        return self.to_dict().keys()

    def values(self) -> ValuesView[Any]:
        """Values of `to_dict`."""
        return self.to_dict().values()

    def items(self) -> ItemsView[str, Any]:
        """Items of `to_dict`."""
        return self.to_dict().items()

    # --------------------------------------------------------------------------------------- copies, freezing

    def copy(self, copy_frozen: bool | None = None) -> Self:
        """A copy that can be changed without changing this one.

        Args:
            copy_frozen: True: the copy is frozen, False: it is not, None: like this one.
        """
        new = object.__new__(type(self))
        for name, value in vars(self).items():
            vars(new)[name] = copy_value(value)
        for name in _CACHES:
            vars(new).pop(name, None)
        if copy_frozen is not None:
            vars(new)["_is_frozen"] = copy_frozen
        evaluation = self.evaluation_config
        if isinstance(evaluation, AlgorithmConfig):
            vars(new)["evaluation_config"] = evaluation.copy(copy_frozen)
        return new

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.copy()

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in vars(self).items() if name not in _CACHES}
        # Names of environments mean something in the process that registered them: an actor gets the creator, too.
        evaluation = self.evaluation_config or {}
        names = {self.env, evaluation.get("env") if isinstance(evaluation, dict) else evaluation.env}
        creators = {name: get_env_creator(name) for name in names if isinstance(name, str)}
        return {**state, "_env_creators": {name: made for name, made in creators.items() if made is not None}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        creators = state.pop("_env_creators")
        vars(self).update(state)
        for name, creator in creators.items():
            if get_env_creator(name) is None:
                register_env(name, creator)

    def freeze(self) -> None:
        """Makes every later change raise an AttributeError."""
        vars(self)["_is_frozen"] = True
        if isinstance(self.evaluation_config, AlgorithmConfig):
            self.evaluation_config.freeze()

    @property
    def is_frozen(self) -> bool:
        """Whether changes raise."""
        return self._is_frozen

    # --------------------------------------------------------------------------------------------- validation

    def validate(self) -> None:
        """Checks all settings, alone and against each other. `build_algo` calls it.

        Subclasses add their checks behind ``super().validate()`` and report with `_value_error`.

        Raises:
            ValueError: Names the setting, its value and the remedy.
            NotImplementedError: If a setting asks for something that comes later.
        """
        if not self._validate_config:
            return
        self._check_values()
        self._validate_static_settings()
        self._validate_modules()
        self._validate_model_config()
        self._validate_connectors()
        self._validate_evaluation()
        if self.samples_on_device:
            self._validate_for_device()

    def _check_values(self) -> None:
        """Every setting on its own."""
        for setting in self._declarations.by_name.values():
            value = vars(self)[setting.attribute]
            if setting.name != "env" and is_search_space(value):
                raise ValueError(
                    f"{self._declarations.call(setting, short(value))} is still a search space. Give the "
                    "config to a tuner (tune.Tuner('PPO', param_space=config)), or set one value."
                )
            self._check_value(setting, value)
            if setting.kind == "later" and setting.differs_from_default(value):
                raise NotImplementedError(
                    f"{self._declarations.call(setting, short(value))} comes later: {setting.instead} "
                    f"The default is {setting.default!r}."
                )

    def _value_error(self, message: str) -> None:
        """Raises a ValueError; with ``experimental(_validate_config=False)`` only says so."""
        if self._validate_config:
            raise ValueError(message)
        notice_once(message)

    def _validate_static_settings(self) -> None:
        for name in self._static_settings:
            setting = self._declarations.by_name.get(name)
            if setting is None or setting.kind != "traced":
                known = sorted(s.name for s in self._declarations.by_name.values() if s.kind == "traced")
                self._value_error(
                    f"experimental(_static_settings={list(self._static_settings)!r}): {name!r} is no traced "
                    f"setting; these are: {', '.join(known)}."
                )
            elif schedules.is_schedule(vars(self)[setting.attribute]):
                self._value_error(
                    f"{name}={vars(self)[setting.attribute]!r} changes during training and cannot be baked "
                    f"in: take {name!r} out of experimental(_static_settings=...), or use a number."
                )

    def _validate_modules(self) -> None:
        ids = set(self._policy_ids())
        if self.is_multi_agent:
            raise NotImplementedError(
                f"multi_agent(policies={sorted(ids)}) comes later: one policy called {DEFAULT_POLICY_ID!r} "
                "is what can be trained now. Leave multi_agent(policies=...) out."
            )
        if self.policy_mapping_fn is not default_policy_mapping_fn:
            notice_once(
                f"multi_agent(policy_mapping_fn={short(self.policy_mapping_fn)}) has no effect: there is one "
                f"policy, {DEFAULT_POLICY_ID!r}, and all agents use it."
            )
        self._validate_acting_modules(ids)
        if self.policies_to_train is not None and not callable(self.policies_to_train):
            if not self.policies_to_train:
                self._value_error(
                    f"multi_agent(policies_to_train={self.policies_to_train!r}) leaves nothing to train. Name at least "
                    f"one of {sorted(ids)}, or use None for all."
                )
            unknown = sorted(set(self.policies_to_train) - ids)
            if unknown:
                self._value_error(
                    f"multi_agent(policies_to_train=...) names {unknown}, which are not among the policies "
                    f"{sorted(ids)}."
                )
        for module_id, overrides in self.algorithm_config_overrides_per_module.items():
            if module_id not in ids:
                self._value_error(
                    f"rl_module(algorithm_config_overrides_per_module=...) names the module {module_id!r}, "
                    f"which is not among the policies {sorted(ids)}."
                )
            for key in overrides:
                setting = self._declarations.find(KEY_TRANSLATIONS.get(str(key), str(key)))
                if setting is None and key not in self._own_names:
                    self._value_error(
                        f"rl_module(algorithm_config_overrides_per_module=...): module {module_id!r} "
                        f"overrides {key!r}, which is no setting.{self._declarations.suggestion(key)}"
                    )
                elif setting is not None and not setting.per_module:
                    able = sorted(s.name for s in self._declarations.by_name.values() if s.per_module)
                    self._value_error(
                        f"rl_module(algorithm_config_overrides_per_module=...): {setting.name!r} is the same "
                        f"for all modules and cannot be overridden for {module_id!r}. These can: "
                        f"{', '.join(able)}."
                    )
                elif setting is not None and (problem := setting.problem_with(overrides[key])) is not None:
                    self._value_error(
                        f"rl_module(algorithm_config_overrides_per_module=...): module {module_id!r} has "
                        f"{setting.name}={short(overrides[key])}, which must be {problem}."
                    )

    def _validate_acting_modules(self, ids: Collection[str]) -> None:
        """The policies are both trained and acted with."""
        spec = self._rl_module_spec
        if isinstance(spec, MultiRLModuleSpec) and spec.rl_module_specs and not ids & spec.rl_module_specs.keys():
            self._value_error(
                f"rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs=...)) has the modules "
                f"{sorted(spec.rl_module_specs)}, none of which is a policy. Call it one of {sorted(ids)}."
            )
        specs = dict.fromkeys(ids, spec) if isinstance(spec, RLModuleSpec) else {}
        if isinstance(spec, MultiRLModuleSpec):
            specs = {module_id: own for module_id, own in (spec.rl_module_specs or {}).items() if module_id in ids}
        for module_id, own in specs.items():
            for flag, other in (("inference_only", "trained"), ("learner_only", "acted with")):
                if getattr(own, flag):
                    self._value_error(
                        f"rl_module(rl_module_spec=...): the module {module_id!r} has {flag}=True and could not be "
                        f"{other}. Leave {flag} out; runners and learners build it as they need it."
                    )

    def _validate_model_config(self) -> None:
        if not self._uses_default_module():
            return
        problem = problem_with_model_config(as_dict(self._model_config))
        if problem is not None:
            self._value_error(f"rl_module(model_config=...): {problem}.")
            return
        defaults = as_dict(DefaultModelConfig())
        for key, value in as_dict(self._model_config).items():
            is_later = key == "use_lstm" or key.startswith(("conv_", "lstm_"))
            if is_later and key in defaults and not same(value, defaults[key]):
                raise NotImplementedError(
                    f"rl_module(model_config=...): {key}={value!r} comes later: the default module is an MLP "
                    "on flattened observations. Leave it out, or give rl_module_spec= with a module of your "
                    "own."
                )

    def _validate_connectors(self) -> None:
        if not (self.add_default_connectors_to_module_to_env_pipeline or self._module_to_env_connector):
            self._value_error(
                "env_runners(add_default_connectors_to_module_to_env_pipeline=False) leaves nobody to turn the "
                "module's outputs into actions. Give module_to_env_connector= with pieces that do, or leave it out."
            )

    def _validate_evaluation(self) -> None:
        if self.evaluation_duration == "auto" and not self.evaluation_parallel_to_training:
            self._value_error(
                "evaluation(evaluation_duration='auto') needs evaluation_parallel_to_training=True and "
                "evaluation_num_env_runners > 0; give the number of episodes or timesteps instead."
            )
        if self.evaluation_parallel_to_training and not self.evaluation_num_env_runners:
            self._value_error(
                "evaluation(evaluation_parallel_to_training=True) needs EnvRunner actors of its own: set "
                "evaluation_num_env_runners to at least 1, or leave evaluation_parallel_to_training out."
            )
        low = self.evaluation_auto_duration_min_env_steps_per_sample
        high = self.evaluation_auto_duration_max_env_steps_per_sample
        if low > high:
            self._value_error(
                f"evaluation(evaluation_auto_duration_min_env_steps_per_sample={low}) is above "
                f"evaluation_auto_duration_max_env_steps_per_sample={high}. Lower it, or raise the other."
            )
        if self.evaluation_config is not None and not self.in_evaluation:
            try:
                evaluation = self.get_evaluation_config_object()
                assert evaluation is not None
                evaluation._check_values()
                is_other_kind = evaluation.samples_on_device is not self.samples_on_device
            except (ValueError, TypeError, ImportError, NotImplementedError) as error:
                raise type(error)(f"evaluation(evaluation_config=...): {error}") from error
            self._validate_evaluation_overrides(evaluation)
            if is_other_kind and self.env is not None:
                kinds = ["a host environment", "a JAX environment"]
                self._value_error(
                    f"evaluation(evaluation_config=...): env={short(evaluation.env)} is "
                    f"{kinds[evaluation.samples_on_device]}, and {short(self.env)} is "
                    f"{kinds[self.samples_on_device]}. Evaluate in an environment of the same kind."
                )

    def _validate_evaluation_overrides(self, evaluation: AlgorithmConfig) -> None:
        """Nothing is overridden that evaluation's runners could not heed."""
        for name in _OF_THE_ALGORITHM:
            value = getattr(evaluation, name)
            if not same(value, getattr(self, name)):
                self._value_error(
                    f"evaluation(evaluation_config={{{name!r}: {short(value)}}}) has no effect: the algorithm reads "
                    f"it, not evaluation's runners. Set evaluation({name}=...)."
                )
        if evaluation.samples_on_device and evaluation.env_runner_cls is not None:
            self._value_error(
                f"evaluation(evaluation_config={{'env_runner_cls': {short(evaluation.env_runner_cls)}}}) needs a host "
                f"environment: {short(evaluation.env)} is stepped inside the compiled program. Leave it out."
            )

    def _validate_for_device(self) -> None:
        if self.batch_mode != "truncate_episodes":
            self._value_error(
                f"env_runners(batch_mode={self.batch_mode!r}) needs a host environment: on the device, every "
                "environment takes the same number of steps. Use batch_mode='truncate_episodes'."
            )
        if self.num_learners:
            raise NotImplementedError(
                f"learners(num_learners={self.num_learners}) with the JAX environment {short(self.env)} comes later: "
                "its program runs on the devices of this process. Set num_learners=0 and use several devices "
                "(num_gpus_per_learner, num_cpus_per_learner)."
            )
        if self.env_runner_cls is not None:
            self._value_error(
                f"env_runners(env_runner_cls={short(self.env_runner_cls)}) needs a host environment: "
                f"{short(self.env)} is stepped inside the compiled program. Leave it out."
            )
        evaluation = self.get_evaluation_config_object() if self.evaluation_config else None
        for config in filter(None, (self, evaluation)):
            for name in config.settings_without_effect_on_device():
                setting = self._declarations.by_name[name]
                notice_once(
                    f"{self._declarations.call(setting, short(vars(config)[setting.attribute]))} has no effect: "
                    "the environment is stepped inside the compiled program, without actors."
                )

    def settings_without_effect_on_device(self) -> list[str]:
        """Settings that were set here, to something else than no actors, and that only actors would read."""
        base = AlgorithmConfig._declarations.by_name
        return [
            s.name
            for s in self._declarations.by_name.values()
            if s.read_by == "actors"
            and s.name in self._explicitly_set
            and base[s.name].differs_from_default(vars(self)[s.attribute])
        ]

    def validate_train_batch_size_vs_rollout_fragment_length(self) -> None:
        """Checks that whole sampling rounds come close to the train batch size.

        Raises:
            ValueError: If they overshoot it by more than 10 %.
        """
        if self.rollout_fragment_length == "auto" or self.batch_mode == "complete_episodes":
            return
        samplers = max(self._num_sampling_actors(), 1)
        round_size = samplers * self.num_envs_per_env_runner * self.rollout_fragment_length
        total = self.total_train_batch_size
        sampled = -(-total // round_size) * round_size
        if sampled > 1.1 * total:
            fitting = max(total // (samplers * self.num_envs_per_env_runner), 1)
            self._value_error(
                f"{samplers} sampler(s) * num_envs_per_env_runner={self.num_envs_per_env_runner} * "
                f"rollout_fragment_length={self.rollout_fragment_length} gives {sampled} steps in whole "
                f"rounds, more than 10 % above the train batch of {total}. Use "
                f"rollout_fragment_length={fitting} or 'auto', or "
                f"train_batch_size_per_learner={sampled // max(self.num_learners, 1)}."
            )

    # --------------------------------------------------------------------------------------------- properties

    @property
    def is_multi_agent(self) -> bool:
        """Whether there is more than one policy, or one that is not called "default_policy"."""
        return set(self._policy_ids()) != {DEFAULT_POLICY_ID}

    @property
    def is_online(self) -> bool:
        """Whether training samples from an environment."""
        return self._is_online

    @property
    def is_offline(self) -> bool:
        """Whether training reads recorded data."""
        return not self._is_online

    @property
    def is_atari(self) -> bool:
        """Whether the environment is an Atari game: as set, else by its name."""
        if self._is_atari is not None:
            return bool(self._is_atari)
        return isinstance(self.env, str) and self.env.startswith(("ALE/", "ale_py:ALE/"))

    @property
    def samples_on_device(self) -> bool:
        """Whether the environment is a JAX one, stepped inside the compiled program."""
        if self.env is None or is_search_space(self.env):
            return False
        # Resolving calls registered creators: once per environment is enough.
        asked = (self.env, self.env_config)
        known = vars(self).get("_resolved_env")
        if known is None or not same(known[0], asked):
            known = (copy_value(asked), resolve_env(self.env, self.env_config).is_jax)
            vars(self)["_resolved_env"] = known
        return known[1]

    def _num_sampling_actors(self) -> int:
        # Programs that step the environments themselves have none, whatever the setting (PPO's default is 2).
        return 0 if self.samples_on_device else self.num_env_runners

    @property
    def train_batch_size_per_learner(self) -> int:
        """Env steps per update and learner: as set, else the algorithm's total over the learners."""
        if self._train_batch_size_per_learner is not None:
            return self._train_batch_size_per_learner
        return self.train_batch_size // (self.num_learners or 1)

    @property
    def total_train_batch_size(self) -> int:
        """Env steps per update over all learners."""
        return self.train_batch_size_per_learner * (self.num_learners or 1)

    @property
    def _model_config_auto_includes(self) -> dict[str, Any]:
        """Model settings that the algorithm changes; a user's model config overlays them."""
        return {}

    @property
    def model_config(self) -> dict[str, Any]:
        """Settings of the networks: the algorithm's, overlaid with the user's."""
        return self._model_config_auto_includes | _given_settings(self._model_config)

    @property
    def learner_class(self) -> type[Learner]:
        """The Learner class: as set, else the algorithm's."""
        return self._learner_class or self.get_default_learner_class()

    @property
    def rl_module_spec(self) -> RLModuleSpec | MultiRLModuleSpec:
        """The module spec: the algorithm's default, updated with the user's."""
        given = copy_value(self._rl_module_spec)
        if given is None:
            return self.get_default_rl_module_spec()
        if isinstance(given, RLModuleSpec) and given.module_class is None:
            return self._with_default_class(given)
        return given

    def _with_default_class(self, spec: RLModuleSpec) -> RLModuleSpec:
        """A spec that leaves its class open, on top of the algorithm's default spec."""
        default = self.get_default_rl_module_spec()
        if not isinstance(default, RLModuleSpec):
            raise ValueError(
                f"{spec}: give module_class=; {type(self).__name__} has no single default module to take it "
                "from."
            )
        default.update(spec)
        return default

    # ----------------------------------------------------------------------------------------- derived values

    def get_rollout_fragment_length(self, worker_index: int = 0) -> int:
        """Steps per environment and sampling round.

        Args:
            worker_index: EnvRunner (from 1; 0 is the local one). With "auto", the first ones take a step
                more if the train batch does not divide evenly.
        """
        if self.rollout_fragment_length != "auto":
            return self.rollout_fragment_length
        per_step = max(self._num_sampling_actors(), 1) * self.num_envs_per_env_runner
        length, rest = divmod(self.total_train_batch_size, per_step)
        has_one_more = (worker_index - 1) * self.num_envs_per_env_runner < rest
        return max(length + (1 if rest and has_one_more else 0), 1)

    def get_evaluation_config_object(self) -> AlgorithmConfig | None:
        """The frozen config of evaluation, with `evaluation_config` on top; None on such a config itself."""
        if self.in_evaluation:
            return None
        config = self.copy(copy_frozen=False)
        overrides = self.evaluation_config or {}
        if isinstance(overrides, AlgorithmConfig):
            overrides = {name: overrides.stored_value(name) for name in overrides.explicitly_set}
        vars(config)["in_evaluation"] = True
        vars(config)["evaluation_config"] = None
        vars(config)["num_env_runners"] = self.evaluation_num_env_runners
        config.update_from_dict(overrides)
        config.freeze()
        return config

    def get_config_for_module(self, module_id: str) -> Self:
        """The config with a module's overrides applied, else this config."""
        overrides = self.algorithm_config_overrides_per_module.get(module_id)
        if not overrides:
            return self
        cache = vars(self).setdefault("_configs_of_modules", {}) if self._is_frozen else {}
        if module_id not in cache:
            config = self.copy(copy_frozen=False)
            vars(config)["algorithm_config_overrides_per_module"] = {}
            config.update_from_dict(overrides)
            if self._is_frozen:
                config.freeze()
            cache[module_id] = config
        return cache[module_id]

    def traced_values(self, module_id: str | None = None) -> dict[str, np.ndarray | schedules.ScheduleArrays]:
        """The traced settings as what a compiled program takes.

        Args:
            module_id: Applies this module's overrides.

        Returns:
            Name → ``float32[]``, or the arrays of a schedule for every setting that may be one. Settings
            that are switched off (such as ``grad_clip=None``) and those in ``_static_settings`` are left out.
        """
        config = self if module_id is None else self.get_config_for_module(module_id)
        return {s.name: traced_value(s, vars(config)[s.attribute]) for s in config._traced_settings()}

    def static_value(self, name: str) -> float | None:
        """The number of a traced setting that is baked in (``_static_settings``), else None."""
        return getattr(self, name) if name in self._static_settings else None

    def _traced_settings(self) -> list[Setting]:
        return [s for s in self._declarations.by_name.values() if s.kind == "traced" and self._is_traced(s)]

    def _is_traced(self, setting: Setting) -> bool:
        value = vars(self)[setting.attribute]
        is_off = any(value is off or (off is not None and same(value, off)) for off in setting.off)
        return not is_off and setting.name not in self._static_settings

    def static_fingerprint(self) -> Hashable:
        """A hashable value that is equal for two configs iff one compiled program serves both.

        Covers all static settings; of the traced ones only which are switched on and how many points a
        schedule has.
        """
        parts: list[Hashable] = [type(self), self.algo_class, self.in_evaluation]
        for setting in self._declarations.by_name.values():
            value = vars(self)[setting.attribute]
            if setting.name == "algorithm_config_overrides_per_module":
                continue
            if setting.kind == "static":
                if isinstance(value, AlgorithmConfig):
                    value = {name: value.stored_value(name) for name in value.explicitly_set}
                parts.append((setting.name, fingerprint_of(value)))
            elif setting.kind == "traced" and self._is_traced(setting):
                shape = traced_value(setting, value)
                points = len(shape.values) if isinstance(shape, schedules.ScheduleArrays) else 0
                parts.append((setting.name, "traced", points))
            elif setting.kind == "traced":
                parts.append(
                    (setting.name, fingerprint_of(value if setting.name in self._static_settings else None))
                )
        parts += [(name, fingerprint_of(vars(self)[name])) for name in sorted(self._own_names)]
        for module_id in sorted(self.algorithm_config_overrides_per_module):
            parts.append((module_id, self.get_config_for_module(module_id).static_fingerprint()))
        return tuple(parts)

    def differs_in_traced_settings_only(self, other: AlgorithmConfig) -> bool:
        """Whether everything that is built from the other config serves this one, too, its programs included."""
        if self.static_fingerprint() != other.static_fingerprint():
            return False
        names = [s.attribute for s in self._declarations.by_name.values() if s.kind not in ("static", "traced")]
        return all(same(vars(self)[name], vars(other)[name]) for name in names)

    # -------------------------------------------------------------------------------------------- multi-agent

    DEFAULT_POLICY_MAPPING_FN = staticmethod(default_policy_mapping_fn)

    @staticmethod
    def DEFAULT_AGENT_TO_MODULE_MAPPING_FN(agent_id: Any, episode: Any) -> str:
        """Maps every agent to "default_policy"."""
        return DEFAULT_MODULE_ID

    def _policy_ids(self) -> Collection[str]:
        return list(self.policies)

    def get_multi_agent_setup(
        self,
        *,
        policies: Mapping[str, Any] | None = None,
        env: Any = None,
        spaces: Mapping[str, tuple[gym.Space, gym.Space]] | None = None,
        default_policy_class: Any = None,
    ) -> tuple[dict[str, PolicySpec], Callable[..., bool]]:
        """The policies with their spaces filled in, and the function that says which are trained.

        Args:
            policies: Overrides `policies` of this config.
            env: Environment to take missing spaces from.
            spaces: Module id (or "__env__", "__env_single__") → (observation space, action space).
            default_policy_class: Must be None; there are no Policy classes.

        Returns:
            (policy id → PolicySpec, ``f(module_id, batch) -> bool``).

        Raises:
            ValueError: If a space is known from nowhere.
        """
        if default_policy_class is not None:
            raise ValueError(
                f"default_policy_class={default_policy_class!r}: there are no Policy classes here."
            )
        specs = self._policy_specs(policies)
        for policy_id, spec in specs.items():
            spec.observation_space, spec.action_space = self._module_spaces(
                policy_id, spec.observation_space, spec.action_space, env, spaces
            )
            spec.config = spec.config or {}
        return specs, functools.partial(_is_trained, self.policies_to_train)

    def _policy_specs(self, policies: Mapping[str, Any] | None = None) -> dict[str, PolicySpec]:
        """The policies as PolicySpecs of their own, however they were given."""
        given = self.policies if policies is None else policies
        given = given if isinstance(given, Mapping) else dict.fromkeys(given)
        return {
            policy_id: PolicySpec(*entry) if isinstance(entry, tuple) else copy_value(entry) or PolicySpec()
            for policy_id, entry in given.items()
        }

    def _module_spaces(
        self,
        module_id: str,
        observation_space: gym.Space | None,
        action_space: gym.Space | None,
        env: Any,
        spaces: Mapping[str, tuple[gym.Space, gym.Space]] | None,
    ) -> tuple[gym.Space, gym.Space]:
        """The spaces of one module: given ones, those in `spaces`, or what the pipeline makes of the env's."""
        if spaces and module_id in spaces:
            known = spaces[module_id]
        elif observation_space is not None and action_space is not None:
            known = (observation_space, action_space)
        else:
            raw = self._env_spaces(env, spaces)
            if raw[0] is None or raw[1] is None:
                kind = "observation_space" if raw[0] is None else "action_space"
                raise ValueError(
                    f"The {kind} of module {module_id!r} is not known. Give it with environment({kind}=...), "
                    f"or pass env= or spaces={{'default_policy': (observation_space, action_space)}}."
                )
            pipeline = self.build_env_to_module_connector(env=env, spaces=spaces)
            known = (pipeline.observation_space, pipeline.action_space)
        for kind, given, own in (("observation", observation_space, known[0]), ("action", action_space, known[1])):
            problem = None if given is None or own is None else difference(given, own)
            if problem is not None:
                raise ValueError(
                    f"RLModuleSpec({kind}_space={given}) of module {module_id!r} does not fit the {kind} space "
                    f"{own} behind the env-to-module connectors: {problem}. Leave it out, or let the connector that "
                    f"changes the space override recompute_output_{kind}_space()."
                )
        return observation_space or known[0], action_space or known[1]

    def _env_spaces(
        self, env: Any, spaces: Mapping[str, tuple[gym.Space, gym.Space]] | None
    ) -> tuple[gym.Space | None, gym.Space | None]:
        """Spaces of one environment: this config's own, else those in `spaces`, else the environment's.

        Raises:
            ValueError: If this config's own have another form than the environment's.
        """
        found: tuple[Any, Any] = (None, None)
        for key in ("__env_single__", "__env__"):
            if spaces and key in spaces:
                found = spaces[key]
                break
        else:
            if isinstance(env, gym.vector.VectorEnv):
                found = (env.single_observation_space, env.single_action_space)
            elif env is not None:
                found = (env.observation_space, env.action_space)
        if env is not None and (self.observation_space is not None or self.action_space is not None):
            self._check_given_spaces(env)
        return self.observation_space or found[0], self.action_space or found[1]

    def _check_given_spaces(self, env: Any) -> None:
        """Only the bounds of spaces can be overridden."""
        prefix = "single_" if isinstance(env, gym.vector.VectorEnv) else ""
        for name in ("observation_space", "action_space"):
            given = vars(self)[name]
            problem = None if given is None else difference(given, getattr(env, prefix + name))
            if problem is not None:
                raise ValueError(
                    f"environment({name}={given}) does not fit the environment's own {name}: {problem}. Leave it out, "
                    f"or change no more than the bounds of Box spaces; connectors change observations."
                )

    # ------------------------------------------------------------------------------------------------ modules

    def get_default_rl_module_spec(self) -> RLModuleSpec | MultiRLModuleSpec:
        """The spec of the algorithm's default module. Algorithms override it."""
        raise NotImplementedError(
            f"{type(self).__name__} has no default module. Use an algorithm's config, such as PPOConfig, or "
            "rl_module(rl_module_spec=RLModuleSpec(module_class=...))."
        )

    def get_default_learner_class(self) -> type[Learner]:
        """The algorithm's Learner class. Algorithms override it."""
        raise NotImplementedError(
            f"{type(self).__name__} has no default Learner. Use an algorithm's config, such as PPOConfig, or "
            "learners(learner_class=...)."
        )

    def get_default_env_runner_class(self) -> type[EnvRunner]:
        """The EnvRunner class of host environments."""
        from jaxrl_stack.env.single_agent_env_runner import SingleAgentEnvRunner

        return SingleAgentEnvRunner

    def _uses_default_module(self) -> bool:
        spec = self._rl_module_spec
        if spec is None:
            return True
        specs = getattr(spec, "rl_module_specs", None)
        if specs is not None:
            return any(s.module_class is None for s in specs.values()) or not specs
        return spec.module_class is None

    def get_rl_module_spec(
        self,
        env: Any = None,
        spaces: Mapping[str, tuple[gym.Space, gym.Space]] | None = None,
        inference_only: bool | None = None,
    ) -> RLModuleSpec:
        """The spec of the only module, complete: ``get_rl_module_spec(...).build()`` works.

        Args:
            env: Environment to take missing spaces from.
            spaces: "default_policy" → the module's own spaces, or "__env_single__" → the environment's.
            inference_only: Whether the module leaves out what only training needs; None is no.

        Raises:
            ValueError: If a space is known from nowhere, or there are several modules.
        """
        specs = self.get_multi_rl_module_spec(env=env, spaces=spaces, inference_only=bool(inference_only))
        modules = specs.rl_module_specs or {}
        if len(modules) != 1:
            raise ValueError(
                f"get_rl_module_spec() is for one module; there are {sorted(modules)}. Use "
                "get_multi_rl_module_spec()."
            )
        return next(iter(modules.values()))

    def get_multi_rl_module_spec(
        self,
        *,
        env: Any = None,
        spaces: Mapping[str, tuple[gym.Space, gym.Space]] | None = None,
        inference_only: bool = False,
        policy_dict: Mapping[str, PolicySpec] | None = None,
        single_agent_rl_module_spec: RLModuleSpec | None = None,
    ) -> MultiRLModuleSpec:
        """The specs of all modules, complete: spaces and model settings are filled in where they were open.

        A module's own settings win over the config's. Spaces that come from an environment are those behind
        the env-to-module pipeline.

        Args:
            env: Environment to take missing spaces from.
            spaces: Module id → the module's own spaces, or "__env_single__" → the environment's.
            inference_only: Leave out what only training needs, and modules that only learners use.
            policy_dict: Overrides `policies`.
            single_agent_rl_module_spec: Overrides the spec that modules without their own get.

        Raises:
            ValueError: If a space is known from nowhere.
        """
        given = single_agent_rl_module_spec or self.rl_module_spec
        policies = self._policy_specs(policy_dict)
        if isinstance(given, MultiRLModuleSpec):
            multi = copy_value(given)
            # Modules of the spec that are no policies are shared parts, such as an encoder.
            own_specs = dict.fromkeys(policies) | (multi.rl_module_specs or {})
        else:
            multi = MultiRLModuleSpec()
            own_specs = {policy_id: copy_value(given) for policy_id in policies}
        modules = {}
        for module_id, own in own_specs.items():
            spec = self._complete_spec(module_id, own, policies.get(module_id, PolicySpec()), env, spaces)
            if inference_only and spec.learner_only:
                continue
            spec.inference_only = spec.inference_only or inference_only
            modules[module_id] = spec
        multi.rl_module_specs = modules
        multi.inference_only = inference_only if multi.inference_only is None else multi.inference_only
        return multi

    def _complete_spec(
        self, module_id: str, own: RLModuleSpec | None, policy: PolicySpec, env: Any, spaces: Any
    ) -> RLModuleSpec:
        """A module's spec with everything that it leaves open filled in."""
        spec = (
            self._with_default_class(own or RLModuleSpec())
            if own is None or own.module_class is None
            else own
        )
        spec.observation_space, spec.action_space = self._module_spaces(
            module_id,
            spec.observation_space or policy.observation_space,
            spec.action_space or policy.action_space,
            env,
            spaces,
        )
        own_config = _given_settings(spec.model_config)
        spec.model_config = self.get_config_for_module(module_id).model_config | own_config
        return spec

    # ---------------------------------------------------------------------------------------------- pipelines

    def _default_env_to_module_pieces(self, observation_space: gym.Space) -> list[ConnectorV2]:
        """The pieces behind the user's env-to-module pieces. Algorithms override it.

        Args:
            observation_space: What comes out of the user's pieces.
        """
        is_flat = (
            isinstance(observation_space, gym.spaces.Box)
            and len(observation_space.shape) == 1
            and np.issubdtype(observation_space.dtype, np.floating)
        )
        return [FlattenObservations()] if self._uses_default_module() and not is_flat else []

    def _default_module_to_env_pieces(self) -> list[ConnectorV2]:
        """The module-to-env pieces; the user's run in front of the last one. Algorithms override it."""
        return [
            GetActions(),
            NormalizeAndClipActions(normalize_actions=self.normalize_actions, clip_actions=self.clip_actions),
        ]

    def _default_learner_pieces(self) -> list[ConnectorV2]:
        """The pieces behind the user's learner pieces. Algorithms override it."""
        return []

    def build_env_to_module_connector(
        self,
        env: Any = None,
        spaces: Mapping[str, tuple[gym.Space, gym.Space]] | None = None,
        device: Any = None,
    ) -> EnvToModulePipeline:
        """The pipeline from observations to the module's input: the user's pieces, then the default ones.

        Args:
            env: Environment; goes to the user's function, and gives the spaces if `spaces` does not.
            spaces: "__env_single__" (or "__env__") → spaces of one environment.
            device: Goes to the user's function.

        Raises:
            ValueError: If the user's function returns no connectors, the observation space is not known, or what
                comes out of the pieces does not fit the space that they declare.
            TypeError: If a piece has the wrong form.
        """
        observation_space, action_space = self._env_spaces(env, spaces)
        if observation_space is None and spaces and DEFAULT_MODULE_ID in spaces:
            observation_space, action_space = spaces[DEFAULT_MODULE_ID]
        if observation_space is None:
            raise ValueError(
                "The env-to-module pipeline needs to know the observation space: pass env= or "
                "spaces={'__env_single__': (observation_space, action_space)}, or set "
                "environment(observation_space=...)."
            )
        pipeline = EnvToModulePipeline(
            input_observation_space=observation_space,
            input_action_space=action_space,
            connectors=self._pieces("env_to_module_connector", (env, spaces, device)),
        )
        if self._env_to_module_connector is not None and isinstance(observation_space, gym.Space):
            where = f"the observation_space behind the env-to-module pieces {pipeline.names}"
            check_space(pipeline.observation_space, where)
        if self.add_default_connectors_to_env_to_module_pipeline:
            for piece in self._default_env_to_module_pieces(pipeline.observation_space):
                pipeline.append(piece)
        if self._env_to_module_connector is not None:
            check_pieces(pipeline)
            is_pure = not pipeline.host_pieces and not pipeline.is_host_piece
            if is_pure and isinstance(observation_space, gym.Space):
                scalar = jax.ShapeDtypeStruct((), np.float32)
                settings = {setting.name: scalar for setting in self._traced_settings()}
                fixed = {name: self.static_value(name) for name in self._static_settings}
                check_env_to_module(pipeline, settings | fixed)
        return pipeline

    def build_module_to_env_connector(
        self, env: Any = None, spaces: Mapping[str, tuple[gym.Space, gym.Space]] | None = None
    ) -> ModuleToEnvPipeline:
        """The pipeline from the module's outputs to the environment's actions.

        Args:
            env: Environment; goes to the user's function, and gives the spaces if `spaces` does not.
            spaces: "__env_single__" (or "__env__") → spaces of one environment.

        Raises:
            ValueError: If the user's function returns no connectors, or a piece does not fit these settings.
        """
        observation_space, action_space = self._env_spaces(env, spaces)
        add_defaults = self.add_default_connectors_to_module_to_env_pipeline
        defaults = self._default_module_to_env_pieces() if add_defaults else []
        pipeline = ModuleToEnvPipeline(
            input_observation_space=observation_space,
            input_action_space=action_space,
            connectors=[
                *defaults[:-1],
                *self._pieces("module_to_env_connector", (env, spaces)),
                *defaults[-1:],
            ],
        )
        check_pieces(pipeline)
        for name, piece in pipeline._flat_members():
            if isinstance(piece, ActionNoise):
                self._check_action_noise(name, piece)
        return pipeline

    def _check_action_noise(self, name: str, piece: ActionNoise) -> None:
        """Refuses noise that does not fit these settings. Algorithms that cannot learn from it override it."""
        if piece.normalize_actions != self.normalize_actions:
            raise ValueError(
                f"environment(normalize_actions={self.normalize_actions}) differs from connector {name!r}, which clips "
                f"for normalize_actions={piece.normalize_actions}: give it normalize_actions={self.normalize_actions}."
            )

    def build_learner_connector(
        self,
        input_observation_space: gym.Space | None,
        input_action_space: gym.Space | None,
        device: Any = None,
    ) -> LearnerConnectorPipeline:
        """The pipeline from recorded steps to the train batch: the user's pieces, then the algorithm's.

        Args:
            input_observation_space: Of the module (behind the env-to-module pipeline).
            input_action_space: Of the module.
            device: Without effect; batches are where the program runs.

        Raises:
            ValueError: If the user's function returns no connectors.
        """
        add_defaults = self.add_default_connectors_to_learner_pipeline
        pipeline = LearnerConnectorPipeline(
            input_observation_space=input_observation_space,
            input_action_space=input_action_space,
            connectors=[
                *self._pieces("learner_connector", (input_observation_space, input_action_space)),
                *(self._default_learner_pieces() if add_defaults else []),
            ],
        )
        check_pieces(pipeline)
        return pipeline

    def _pieces(self, name: str, arguments: tuple[Any, ...]) -> list[ConnectorV2]:
        """What the user's connector function returns, as a list."""
        setting = self._declarations.by_name[name]
        function = vars(self)[setting.attribute]
        if function is None:
            return []
        call = self._declarations.call(setting)
        count = _num_arguments(function, arguments, call)
        try:
            made = function(*arguments[:count])
        except Exception as error:
            error.add_note(f"Raised by the function of {call}.")
            raise
        pieces = list(made) if isinstance(made, (list, tuple)) else [made]
        for piece in pieces:
            if not isinstance(piece, ConnectorV2):
                raise ValueError(
                    f"{call}: the function returned {short(piece)}. It must return a ConnectorV2 or a list "
                    "of them."
                )
        return pieces

    # ----------------------------------------------------------------------------------------------- building

    def build_algo(self, env: Any = None, use_copy: bool = True) -> Algorithm:
        """The algorithm: validates a copy of this config, freezes it and builds everything.

        Args:
            env: Overrides `env`.
            use_copy: False hands this very config over, which is then frozen.

        Raises:
            ValueError: If settings are wrong or do not fit together, or the config belongs to no algorithm.
        """
        algo_class = self.algo_class
        if isinstance(algo_class, str):
            algo_class = get_algorithm_class(algo_class)
        if algo_class is None:
            raise ValueError(
                f"{type(self).__name__}() belongs to no algorithm. Build an algorithm's config, such as "
                f"PPOConfig(), or pass {type(self).__name__}(algo_class=...)."
            )
        config: Any = self.copy() if use_copy else self
        if env is not None:
            config.environment(env)
        config.validate()
        return algo_class(config=config)

    def build(self, env: Any = None, use_copy: bool = True) -> Algorithm:
        """Old name of `build_algo`; warns."""
        warn_deprecated("config.build() is now config.build_algo().")
        return self.build_algo(env, use_copy)

    def build_learner(
        self, *, env: Any = None, spaces: Mapping[str, tuple[gym.Space, gym.Space]] | None = None
    ) -> Learner:
        """A built Learner, for use without an Algorithm.

        Args:
            env: Environment to take missing spaces from.
            spaces: "default_policy" → the module's own spaces, or "__env_single__" → the environment's.
        """
        config: Any = self
        learner = self.learner_class(
            config=config, module_spec=self.get_multi_rl_module_spec(env=env, spaces=spaces)
        )
        learner.build()
        return learner

    def build_learner_group(
        self,
        *,
        env: Any = None,
        spaces: Mapping[str, tuple[gym.Space, gym.Space]] | None = None,
        rl_module_spec: RLModuleSpec | MultiRLModuleSpec | None = None,
        placement_group: Any = None,
    ) -> LearnerGroup:
        """A group of Learners; one, in this process, with ``num_learners=0``.

        Args:
            env: Environment to take missing spaces from.
            spaces: "default_policy" → the module's own spaces, or "__env_single__" → the environment's.
            rl_module_spec: Overrides this config's spec.
            placement_group: Ray placement group whose last ``num_learners`` bundles are the learners'.

        Raises:
            ValueError: If a placement group is given and the learner is local.
        """
        config: Any = self.copy()
        spec = rl_module_spec or self.get_multi_rl_module_spec(env=env, spaces=spaces)
        return LearnerGroup(config=config, module_spec=spec, placement_group=placement_group)

    def rollouts(self, *args: Any, **kwargs: Any) -> Self:
        """Gone: `env_runners`."""
        raise ValueError("config.rollouts(...) is gone. Use config.env_runners(...) instead.")

    def exploration(self, *args: Any, **kwargs: Any) -> Self:
        """Gone: `env_runners`."""
        raise ValueError(
            "config.exploration(...) is gone. Use env_runners(explore=...) and "
            "RLModule._forward_exploration() instead."
        )

    def get_marl_module_spec(self, *args: Any, **kwargs: Any) -> MultiRLModuleSpec:
        """Gone: `get_multi_rl_module_spec`."""
        raise ValueError(
            "config.get_marl_module_spec() is gone. Use config.get_multi_rl_module_spec() instead."
        )

    # ------------------------------------------------------------------------------------------------ display

    def _changed_settings(self) -> list[tuple[str, str, str, str]]:
        """(section, name, value, default) of what differs from the class's defaults."""
        rows = []
        for section in self._declarations.section_docs:
            for setting in self._declarations.in_section(section):
                value = vars(self)[setting.attribute]
                if setting.differs_from_default(value):
                    rows.append((section, setting.name, short(value, 70), short(setting.default, 30)))
        return rows

    def __repr__(self) -> str:
        rows = self._changed_settings()
        title = f"{type(self).__name__}{' (frozen)' if self._is_frozen else ''}"
        if not rows:
            return f"{title}: all settings at their defaults"
        header = ("section", "setting", "value", "default")
        widths = [max(len(row[i]) for row in [header, *rows]) for i in range(4)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            for row in [header, *rows]
        ]
        rule = "  ".join("-" * width for width in widths)
        return "\n".join([title, lines[0].rstrip(), rule, *(line.rstrip() for line in lines[1:])])

    def _repr_html_(self) -> str:
        """For notebooks: what differs from the defaults, and everything else folded away."""

        def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
            cells = "".join(f"<th style='text-align:left'>{html.escape(cell)}</th>" for cell in header)
            body = "".join(
                "<tr>"
                + "".join(f"<td style='text-align:left'>{html.escape(cell)}</td>" for cell in row)
                + "</tr>"
                for row in rows
            )
            return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"

        frozen = " (frozen)" if self._is_frozen else ""
        changed = self._changed_settings()
        parts = [f"<b>{html.escape(type(self).__name__)}</b>{frozen}"]
        parts.append(
            table(("section", "setting", "value", "default"), list(changed))
            if changed
            else "<div>all settings at their defaults</div>"
        )
        for section, doc in self._declarations.section_docs.items():
            settings = [s for s in self._declarations.in_section(section) if not s.hidden]
            if settings:
                rows = [(s.name, short(vars(self)[s.attribute]), s.kind, s.doc) for s in settings]
                summary = f"<summary><code>{section}()</code> {html.escape(doc)}</summary>"
                parts.append(
                    f"<details>{summary}{table(('setting', 'value', 'kind', 'meaning'), rows)}</details>"
                )
        return "".join(parts)


AlgorithmConfig._declare()


def _given_settings(model_config: Any) -> dict[str, Any]:
    """What a user's model config says: the entries of a dict, the fields given to a DefaultModelConfig."""
    return model_config.given() if isinstance(model_config, DefaultModelConfig) else dict(as_dict(model_config or {}))


def _searchable(value: Any) -> Any:
    """A model config that holds a search space as a dict: a tuner looks into dicts and lists only."""
    if isinstance(value, DefaultModelConfig) and any(map(is_search_space, as_dict(value).values())):
        return _given_settings(value)
    return value


def warn_deprecated(message: str) -> None:
    """A DeprecationWarning that points at the caller outside of this package's configs."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(
        "jaxrl_stack.algorithms"
    ):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, DeprecationWarning, stacklevel=level)


def _is_trained(policies_to_train: Any, module_id: str, batch: Any = None) -> bool:
    if policies_to_train is None:
        return True
    return (
        bool(policies_to_train(module_id, batch))
        if callable(policies_to_train)
        else module_id in policies_to_train
    )


def _num_arguments(function: Callable[..., Any], arguments: tuple[Any, ...], call: str) -> int:
    """How many of (env, spaces, device) a user's connector function takes by position.

    A parameter with a default and another name is the user's own (``n=n`` in a loop) and keeps its default.
    """
    if isinstance(function, type) and issubclass(function, ConnectorV2):
        return 0
    names = ("env", "spaces", "device") if "learner" not in call else ("observation_space", "action_space")
    names = names[: len(arguments)]
    count = 0
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            return len(arguments)
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
            raise ValueError(
                f"{call}: the function takes {parameter.name!r} by keyword only, without a default; it is called with "
                f"{', '.join(names)} by position. Write them in front of the *."
            )
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            continue
        if parameter.default is not parameter.empty and not any(name in parameter.name for name in names):
            break
        count += 1
    if count > len(arguments):
        raise ValueError(
            f"{call}: the function takes {count} arguments; it is called with {', '.join(names)}. Give the others a "
            f"default."
        )
    return count


def _plain(value: Any) -> Any:
    """A JSON value: other objects become text."""
    if isinstance(value, AlgorithmConfig):
        return value.serialize()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(item) for item in value), key=str)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, type) or inspect.isroutine(value):
        return f"{value.__module__}.{value.__qualname__}"
    if dataclasses.is_dataclass(value):
        return {name: _plain(item) for name, item in as_dict(value).items()}
    return repr(value)
