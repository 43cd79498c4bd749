"""The store of a config: what is set, by which name, read back as a dict, copied and frozen."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import TYPE_CHECKING, Any, TypeVar

from jaxrl_stack.algorithms.fluent_methods import fluent_method
from jaxrl_stack.algorithms.model_settings import given_settings
from jaxrl_stack.algorithms.setting_checks import Check
from jaxrl_stack.algorithms.setting_values import DefaultNumber, as_dict, copy_value, is_record, is_search_space, same
from jaxrl_stack.algorithms.settings import Declarations, Section, Setting
from jaxrl_stack.algorithms.settings_display import config_html, config_text, short
from jaxrl_stack.checkpoints.plain_data import Plain
from jaxrl_stack.compat.old_settings import OldName
from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig
from jaxrl_stack.env.registry import get_env_creator, note_env
from jaxrl_stack.runs.writers import as_json
from jaxrl_stack.utils.class_paths import ClassLoader
from jaxrl_stack.utils.from_config import NotProvided
from jaxrl_stack.utils.notices import notice_once

if TYPE_CHECKING:
    from typing import Self

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

NOT_IN_CHECKPOINTS = frozenset({"compilation_cache_dir", "results_dir", "keep_best", "loggers"})
"""Settings of one process on one machine. Compiled programs are read, and run, from where the first one points to; a
checkpoint does not say where others write."""

_CACHES = ("_configs_of_modules", "_resolved_envs")


def _check_trusted(values: Mapping[str, Any], loader: ClassLoader) -> None:
    """Refuse settings of a checkpoint that lead to code outside of it."""
    for setting in _all_names(values):
        if setting in NOT_IN_CHECKPOINTS:
            raise ValueError(f"The checkpoint sets {setting}, which is never taken from one: it was tampered with.")
    for kind, text, setting in texts_that_import(values):
        if not loader.allows_text(text):
            raise ValueError(
                f"The checkpoint names the {kind} {text!r}, which is imported from a module of that name. Say that you "
                f"trust it, from_checkpoint(path, allow=[{text!r}]), or pass another one: {setting}=..."
            )


def _dicts_in(value: Any) -> Iterator[Mapping[Any, Any]]:
    """All dicts and dataclasses that a value contains, as dicts."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from _dicts_in(item)
    if is_record(value):
        value = vars(value)
    if isinstance(value, Mapping):
        yield value
        for item in value.values():
            yield from _dicts_in(item)


def _all_names(value: Any) -> Iterator[Any]:
    for names in _dicts_in(value):
        yield from names


def texts_that_import(value: Any) -> Iterator[tuple[str, str, str]]:
    """``(kind, text, setting)`` of the texts in settings, or in their JSON, that name something to import."""
    for items in _dicts_in(value):
        for name, item in items.items():
            # "env_id" is what gymnasium's wrappers for environments of older APIs call it.
            if name in ("env", "env_id") and isinstance(item, str) and ":" in item:
                yield "environment", item, "env"
            buffer = item.get("type") if name == "replay_buffer_config" and isinstance(item, Mapping) else None
            if isinstance(buffer, str) and any(mark in buffer for mark in ".:"):
                yield "replay buffer", buffer, name


_Config = TypeVar("_Config")


class _ConfigMeta(type):
    """Closes a config for new names once its whole constructor, subclasses' included, has run."""

    @property
    def __signature__(cls) -> inspect.Signature:
        # inspect would show __call__'s (*args, **kwargs).
        parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
        return inspect.Signature(parameters)

    def __call__(cls: type[_Config], *args: Any, **kwargs: Any) -> _Config:
        try:
            config = super().__call__(*args, **kwargs)
        except TypeError as error:
            unknown = [name for name in kwargs if name not in inspect.signature(cls).parameters]
            declarations = getattr(cls, "_declarations", None)
            if not unknown or declarations is None:
                raise
            setting = declarations.find(unknown[0])
            hint = (
                f" Write {cls.__name__}().{declarations.call(setting)}."
                if setting
                else declarations.suggestion(unknown[0])
            )
            raise TypeError(f"{cls.__name__}({unknown[0]}=...): settings are set by methods.{hint}") from error
        vars(config)["_is_constructed"] = True
        return config


class ConfigStore(Plain, metaclass=_ConfigMeta):
    """Values of declared settings: `AlgorithmConfig` without what is specific to algorithms."""

    _sections: tuple[Section, ...] = ()
    _defaults: Mapping[str, Any] = {}
    _checks: Mapping[str, Check] = {}
    _old_names: tuple[OldName, ...] = ()
    _declarations = Declarations()

    def __init__(self, algo_class: type | str | None = None):
        own = {"_is_constructed": False, "_is_frozen": False, "_explicitly_set": set(), "_own_names": set()}
        settings = {s.attribute: copy_value(s.default) for s in self._declarations.by_name.values()}
        vars(self).update(_INTERNAL_DEFAULTS | own | settings | {"algo_class": algo_class})

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
            parent,
            sections,
            own.get("_defaults"),
            own.get("_old_names", ()),
            owner=cls.__name__,
            checks=own.get("_checks"),
        )
        for section in sections:
            names = [setting.name for setting in section.settings]
            if section.name not in own:
                setattr(cls, section.name, fluent_method(cls, cls._declarations, section.name, names))

    # -------------------------------------------------------------------------------------------------- setting values

    def _set_in_section(self, section: str, values: Mapping[str, Any]) -> None:
        """Set what a call of a section's method passed: all of it or, if something is wrong, nothing."""
        method = f"{type(self).__name__}.{section}()"
        self._check_not_frozen(method, [name for name, value in values.items() if value is not NotProvided])
        todo: list[tuple[Setting, Any]] = []
        for name, value in values.items():
            if value is NotProvided:
                continue
            old = self._declarations.old_name(name, section)
            if old is not None:
                setting = self._mapped(old, value, f"{method[:-2]}({name}={short(value)})", is_key=False)
            elif self._declarations.takes(section, name):
                setting = self._declarations.by_name[name]
            else:
                hint = self._declarations.suggestion(name, section=section)
                raise TypeError(f"{method} has no setting {name!r}.{hint}")
            if setting is not None:
                todo.append((setting, value))
        checked = [(setting, self._checked(setting, value)) for setting, value in todo]
        for setting, value in checked:
            self._store(setting, value, merge=True)

    def _mapped(self, old: OldName, value: Any, where: str, is_key: bool) -> Setting | None:
        """The setting that an old name stands for, after a warning; None if the value asks for nothing.

        Raises:
            ValueError: If it is not mapped.
        """
        is_neutral = old.neutral is not None and (value is None or same(value, old.neutral))
        if is_neutral or (value is None and not old.maps_to):
            notice_once(f"{where} asks for what is so anyway: leave it out. {old.message()}")
            return None
        is_taken = old.takes is None or old.takes(value)
        if not old.maps_to or not is_taken or (old.only_as_key and not is_key):
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
        if isinstance(value, DefaultNumber):
            # Out of another config's `to_dict`, in which it was not set either.
            self._explicitly_set.discard(setting.name)
        elif self._is_constructed:
            self._explicitly_set.add(setting.name)
            if setting.deprecated:
                warn_deprecated(f"{self._declarations.call(setting, short(value))}: use {setting.deprecated}.")
        if setting.kind == "inert" and setting.differs_from_default(value):
            notice_once(f"{self._declarations.call(setting, short(value))} has no effect: {setting.instead}")

    def _check_not_frozen(self, what: str, names: Iterable[str]) -> None:
        if not vars(self).get("_is_frozen"):
            return
        found = [self._declarations.find(KEY_TRANSLATIONS.get(name, name)) for name in names]
        traced = ", ".join(f"{own.name}=..." for own in found if own is not None and own.kind == "traced")
        raise AttributeError(
            f"Cannot change {what}: the {type(self).__name__} is frozen, as an Algorithm uses it. "
            + (f"While it trains, call algo.change_settings({traced}). " if traced else "")
            + "Change a copy to build another one: config.copy(copy_frozen=False)."
        )

    def __setattr__(self, name: str, value: Any) -> None:
        self._check_not_frozen(f"{name!r}", [name])
        if self._take(name, value, f"config.{name} = {short(value)}", is_key=False):
            return
        if not self._is_constructed:
            # A subclass's own setting, RLlib's way: assigned in its __init__.
            self._own_names.add(name)
            vars(self)[name] = value
        else:
            hint = self.suggestion(name)
            raise AttributeError(
                f"{type(self).__name__} has no setting {name!r}.{hint} Settings of your own go into "
                "env_config, learner_config_dict or model_config, or into the __init__ of a subclass of the "
                "config."
            )

    def _take(self, name: str, value: Any, where: str, is_key: bool) -> bool:
        """Set what has this name, a key of a dict or an attribute; whether there is anything that has it."""
        setting = self._declarations.find(name)
        if setting is None and name in {*_INTERNAL_DEFAULTS, *self._own_names}:
            vars(self)[name] = value
            if name in self._own_names and self._is_constructed:
                self._explicitly_set.add(name)
            return True
        old = None if setting is not None else self._declarations.old_name(name)
        if old is not None:
            setting = self._mapped(old, value, where, is_key)
        if setting is not None:
            self._store(setting, self._checked(setting, value), merge=is_key)
        return (setting or old) is not None

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

    # ------------------------------------------------------------------------------------------------------- as a dict

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
        self._check_not_frozen("by update_from_dict()", config_dict)
        for key, value in config_dict.items():
            if key == "multiagent":
                self.multi_agent(**value)
                continue
            name = KEY_TRANSLATIONS.get(key, key)
            setting = self._declarations.find(name)
            if setting is not None and setting.deprecated and same(value, vars(self)[setting.attribute]):
                continue
            if not self._take(name, value, f"config key {key!r}", is_key=True):
                hint = self.suggestion(name)
                raise ValueError(f"{type(self).__name__} has no setting {key!r}.{hint}")
        return self

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any]) -> Self:
        """A config with the settings of a dict, such as `to_dict` makes."""
        config = cls()
        changed = {}
        for key, value in config_dict.items():
            # What is at its default was not set.
            attribute = config._known_attribute(key)
            if attribute is None or not same(vars(config)[attribute], value):
                changed[key] = value
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
    def from_state(cls, state: Mapping[str, Any]) -> ConfigStore:
        """The config whose `get_state` returned `state`; of the class that is named there."""
        state = dict(state)
        config_class: type[ConfigStore] = state.pop("class", cls)
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
        return vars(self)[self._attribute_of(name)]

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
        return {config._attribute_of(name): value for name, value in kwargs.items()}

    def suggestion(self, name: str) -> str:
        """What to write for an unknown name: a sentence that follows another one; empty if there is nothing to say."""
        return self._declarations.suggestion(name, self._own_names)

    def _attribute_of(self, key: str) -> str:
        attribute = self._known_attribute(key)
        if attribute is None:
            hint = self.suggestion(key)
            raise KeyError(f"{type(self).__name__} has no setting {key!r}.{hint}")
        return attribute

    def _known_attribute(self, key: str) -> str | None:
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
            item = old.maps_to
        return vars(self)[self._attribute_of(item)]

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

    # ------------------------------------------------------------------------------------------------ copies, freezing

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
        if isinstance(evaluation, ConfigStore):
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
            note_env(name, creator, replaces=False)

    def freeze(self) -> None:
        """Makes every later change raise an AttributeError."""
        vars(self)["_is_frozen"] = True
        if isinstance(self.evaluation_config, ConfigStore):
            self.evaluation_config.freeze()

    @property
    def is_frozen(self) -> bool:
        """Whether changes raise."""
        return self._is_frozen

    # -------------------------------------------------------------------------------------------------------- display

    def __repr__(self) -> str:
        return config_text(self)

    def _repr_html_(self) -> str:
        """For notebooks: what differs from the defaults, and everything else folded away."""
        return config_html(self)


def _searchable(value: Any) -> Any:
    """A model config that holds a search space as a dict: a tuner looks into dicts and lists only."""
    if isinstance(value, DefaultModelConfig) and any(map(is_search_space, as_dict(value).values())):
        return given_settings(value)
    return value


def warn_deprecated(message: str) -> None:
    """A DeprecationWarning that points at the caller outside of this package's configs."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("jaxrl_stack.algorithms"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, DeprecationWarning, stacklevel=level)


def _plain(value: Any) -> Any:
    """A JSON value: other objects become text."""
    if isinstance(value, ConfigStore):
        return value.serialize()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(item) for item in value), key=str)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if is_record(value):
        return {name: _plain(item) for name, item in as_dict(value).items()}
    return value if isinstance(value, float) else as_json(value)
