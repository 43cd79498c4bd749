"""Store of a config's settings: the values, and which of them were set."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from jaxrl_stack.algorithms.model_settings import given_settings
from jaxrl_stack.algorithms.registry import get_algorithm_class
from jaxrl_stack.algorithms.setting_values import DefaultNumber, as_dict, copy_value, is_record, is_search_space, same
from jaxrl_stack.algorithms.settings_display import short
from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig
from jaxrl_stack.runs.stored_checkpoints import WITHOUT_FOLDER
from jaxrl_stack.utils.class_paths import ClassLoader
from jaxrl_stack.utils.from_config import NotProvided
from jaxrl_stack.utils.notices import notice_once

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.algorithms.settings import Setting
    from jaxrl_stack.compat.old_settings import OldName

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

INTERNAL_DEFAULTS: dict[str, Any] = {
    "algo_class": None,
    "in_evaluation": False,
    "_is_online": True,
    "_dont_auto_sync_env_runner_states": False,
}
"""Attributes that are no settings but may be set by subclasses and builders."""

NOT_IN_CHECKPOINTS = frozenset({"compilation_cache_dir", "loggers", *WITHOUT_FOLDER})
"""Settings of one process on one machine. Compiled programs are read, and run, from where the first one points to; a
checkpoint does not say where others write."""


class Settings:
    """Values of one config's settings, and the names of the settings that were set.

    Args:
        config_class: Class of the config, which declares the settings.
        values: Dict for the values. It is the config's ``__dict__``: reading ``config.lr`` takes no call.

    Attributes:
        owner: Name of the config's class, for messages.
        declarations: Settings that the class declares.
        values: ``{attribute: value}``.
        explicitly_set: Names of the settings that were set, even if to their default.
        own_names: Names of a subclass's own settings, which its ``__init__`` assigned.
        is_constructed: Whether the constructor has returned: then no names are added.
        is_frozen: Whether changes raise.
    """

    __slots__ = ("declarations", "explicitly_set", "is_constructed", "is_frozen", "own_names", "owner", "values")

    def __init__(self, config_class: type[AlgorithmConfig], values: dict[str, Any]):
        self.owner = config_class.__name__
        self.declarations = config_class._declarations
        self.values = values
        self.explicitly_set: set[str] = set()
        self.own_names: set[str] = set()
        self.is_constructed = False
        self.is_frozen = False

    def set_defaults(self) -> None:
        """Sets all settings to their defaults."""
        defaults = {s.attribute: copy_value(s.default) for s in self.declarations.by_name.values()}
        self.values.update(INTERNAL_DEFAULTS | defaults)

    # -------------------------------------------------------------------------------------------------- setting values

    def set_in_section(self, section: str, values: Mapping[str, Any]) -> None:
        """Sets the arguments of a config method (section). If one is invalid, sets none of them.

        Args:
            section: Name of the method.
            values: Its arguments by name.
        """
        method = f"{self.owner}.{section}()"
        self.check_not_frozen(method, [name for name, value in values.items() if value is not NotProvided])
        todo: list[tuple[Setting, Any]] = []
        for name, value in values.items():
            if value is NotProvided:
                continue
            old = self.declarations.old_name(name, section)
            if old is not None:
                setting = self._mapped(old, value, f"{method[:-2]}({name}={short(value)})", is_key=False)
            elif self.declarations.takes(section, name):
                setting = self.declarations.by_name[name]
            else:
                hint = self.declarations.suggestion(name, section=section)
                raise TypeError(f"{method} has no setting {name!r}.{hint}")
            if setting is not None:
                todo.append((setting, value))
        checked = [(setting, self._checked(setting, value)) for setting, value in todo]
        for setting, value in checked:
            self._store(setting, value, merge=True)

    def set_attribute(self, name: str, value: Any) -> None:
        """Implements ``config.name = value``. In the constructor of a config, an unknown name adds a setting;
        afterwards, unknown names raise.

        Raises:
            AttributeError: If the config is frozen, or the name is unknown (with a suggestion).
        """
        self.check_not_frozen(f"{name!r}", [name])
        if self._take(name, value, f"config.{name} = {short(value)}", is_key=False):
            return
        if not self.is_constructed:
            # A subclass's own setting, RLlib's way: assigned in its __init__.
            self.own_names.add(name)
            self.values[name] = value
        else:
            hint = self.suggestion(name)
            raise AttributeError(
                f"{self.owner} has no setting {name!r}.{hint} Put your own settings into env_config, "
                "learner_config_dict or model_config, or assign them in the __init__ of a subclass of the config."
            )

    def set_key(self, key: str, value: Any) -> None:
        """Sets one setting. `key` is a name in a dict of settings: the setting's keyword, attribute or key of
        `to_dict`.

        Raises:
            ValueError: If the name is unknown (with a suggestion) or old, or the value is invalid.
        """
        name = KEY_TRANSLATIONS.get(key, key)
        setting = self.declarations.find(name)
        if setting is not None and setting.deprecated and same(value, self.values[setting.attribute]):
            return
        if not self._take(name, value, f"config key {key!r}", is_key=True):
            raise ValueError(f"{self.owner} has no setting {key!r}.{self.suggestion(name)}")

    def check_not_frozen(self, what: str, names: Iterable[str]) -> None:
        """Raises if the config is frozen.

        Args:
            what: Description of the change, for the message.
            names: Names of the settings to change.

        Raises:
            AttributeError: If the config is frozen.
        """
        if not self.is_frozen:
            return
        found = [self.declarations.find(KEY_TRANSLATIONS.get(name, name)) for name in names]
        traced = ", ".join(f"{own.name}=..." for own in found if own is not None and own.kind == "traced")
        raise AttributeError(
            f"Cannot change {what}: an Algorithm uses this {self.owner}, so it is frozen. "
            + (f"To change it in training, call algo.change_settings({traced}). " if traced else "")
            + "To build another algorithm, change a copy: config.copy(copy_frozen=False)."
        )

    def _mapped(self, old: OldName, value: Any, where: str, is_key: bool) -> Setting | None:
        """Returns the setting that replaces an old setting name, and issues a deprecation warning.

        If the given value has no effect, prints a notice and returns None instead.

        Raises:
            ValueError: If the old name stands for no setting.
        """
        is_neutral = old.neutral is not None and (value is None or same(value, old.neutral))
        if is_neutral or (value is None and not old.maps_to):
            notice_once(f"{where} has no effect with this value. Leave it out. {old.message()}")
            return None
        is_taken = old.takes is None or old.takes(value)
        if not old.maps_to or not is_taken or (old.only_as_key and not is_key):
            raise ValueError(f"{where}: {old.message()}")
        warn_deprecated(f"{where}: {old.message()}")
        return self.declarations.by_name[old.maps_to]

    def _checked(self, setting: Setting, value: Any) -> Any:
        """Checks a value that is given for a setting, and returns the value to store.

        If the setting has `check_when_set=False`, `validate` checks the value later instead. If the setting has a
        converter, converts the value, except if the value is a search space.

        Raises:
            ValueError: If the value is invalid.
        """
        if setting.check_when_set:
            self.declarations.check(setting, value)
        return value if setting.convert is None or is_search_space(value) else setting.convert(value)

    def _store(self, setting: Setting, value: Any, merge: bool) -> None:
        present = self.values.get(setting.attribute)
        if merge and setting.merge and isinstance(present, dict) and isinstance(value, dict):
            value = setting.merge(present, value) if callable(setting.merge) else {**present, **value}
        self.values[setting.attribute] = copy_value(value)
        if isinstance(value, DefaultNumber):
            # Out of another config's `to_dict`, in which it was not set either.
            self.explicitly_set.discard(setting.name)
        elif self.is_constructed:
            self.explicitly_set.add(setting.name)
            if setting.deprecated:
                warn_deprecated(f"{self.declarations.call(setting, short(value))}: use {setting.deprecated}.")
        if setting.kind == "inert" and setting.differs_from_default(value):
            notice_once(f"{self.declarations.call(setting, short(value))} has no effect: {setting.instead}")

    def _take(self, name: str, value: Any, where: str, is_key: bool) -> bool:
        """Sets the setting with the keyword, attribute or old name `name`. Returns False if no setting has this name.

        If `is_key` is True, the name is a key of a dict of settings: old names that are valid only as keys are
        accepted, and the dict values of some settings are merged into the present values.
        """
        setting = self.declarations.find(name)
        if setting is None and (name in INTERNAL_DEFAULTS or name in self.own_names):
            self.values[name] = _algorithm_class(value) if name == "algo_class" else value
            if name in self.own_names and self.is_constructed:
                self.explicitly_set.add(name)
            return True
        old = None if setting is not None else self.declarations.old_name(name)
        if old is not None:
            setting = self._mapped(old, value, where, is_key)
        if setting is not None:
            self._store(setting, self._checked(setting, value), merge=is_key)
        return (setting or old) is not None

    # -------------------------------------------------------------------------------------------------- reading values

    def read(self, name: str) -> Any:
        """Implements ``config.name`` for a setting that is stored under an attribute of another name.

        Raises:
            AttributeError: If there is none (with a suggestion), or the name is old.
        """
        setting = self.declarations.by_name.get(name)
        if setting is not None and setting.attribute in self.values:
            return self.values[setting.attribute]
        old = self.declarations.old_name(name)
        if old is not None:
            raise AttributeError(f"{self.owner}.{name}: {old.message()}")
        raise AttributeError(f"{self.owner} has no setting {name!r}.{self.declarations.suggestion(name)}")

    def read_key(self, key: str) -> Any:
        """Returns the stored value of a setting: the user's value or the default.

        Unlike ``config[key]``, ignores properties that compute another value from the stored value. `key` is the
        setting's key in a config dict.

        Raises:
            KeyError: If there is no such setting.
        """
        name = KEY_TRANSLATIONS.get(key, key)
        old = self.declarations.old_name(name)
        if old is not None and old.maps_to and name not in self.declarations.by_name:
            key = old.maps_to
        return self.values[self.attribute_of(key)]

    def find(self, name: str) -> Setting | None:
        """Returns the declaration (name, default, checks) of a setting, or None if no setting has this name.

        `name` can be the setting's keyword, attribute or key of `to_dict`, or an old name that the setting replaces.
        """
        found = self.declarations.find(KEY_TRANSLATIONS.get(name, name))
        old = self.declarations.old_name(name) if found is None else None
        return self.declarations.by_name[old.maps_to] if old is not None and old.maps_to else found

    def known_attribute(self, key: str) -> str | None:
        """Returns the name of the attribute that stores a setting. `key` can be the setting's keyword, attribute or key
        of `to_dict`. Returns None for unknown names.
        """
        name = KEY_TRANSLATIONS.get(key, key)
        setting = self.declarations.find(name)
        if setting is not None:
            return setting.attribute
        return name if name in self.own_names or name in INTERNAL_DEFAULTS else None

    def attribute_of(self, key: str) -> str:
        """Returns the attribute that stores a setting. `key` can be the setting's keyword, attribute or key of
        `to_dict`. Raises for unknown names.

        Raises:
            KeyError: If there is no such setting (with a suggestion).
        """
        attribute = self.known_attribute(key)
        if attribute is None:
            raise KeyError(f"{self.owner} has no setting {key!r}.{self.suggestion(key)}")
        return attribute

    def suggestion(self, name: str) -> str:
        """Returns a hint to append to an error about an unknown setting, such as a similar name; empty if there is
        none.
        """
        return self.declarations.suggestion(name, self.own_names)

    def to_dict(self) -> dict[str, Any]:
        """Returns copies of all setting values, ``{attribute name: value}``. Instead of the attribute name, a few
        settings have RLlib's key, such as "lambda".
        """
        names = [setting.attribute for setting in self.declarations.by_name.values()]
        names += [*sorted(self.own_names), "in_evaluation", "_is_online"]
        return {ATTRIBUTE_TRANSLATIONS.get(name, name): _searchable(copy_value(self.values[name])) for name in names}

    # -------------------------------------------------------------------------------------------------- copies, pickles

    def copy_into(self, copy: Settings) -> None:
        """Copies all setting values, and the names of settings that were set, to another config of the same class."""
        copy.values.update({name: copy_value(value) for name, value in self.values.items()})
        copy.explicitly_set, copy.own_names = set(self.explicitly_set), set(self.own_names)
        copy.is_constructed, copy.is_frozen = self.is_constructed, self.is_frozen

    def get_state(self) -> dict[str, Any]:
        """State for pickling: the setting values, and the names of the settings that were set."""
        return {
            **self.values,
            "_is_constructed": self.is_constructed,
            "_is_frozen": self.is_frozen,
            "_explicitly_set": self.explicitly_set,
            "_own_names": self.own_names,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores setting values, and the names of the settings that were set, from a result of `get_state`."""
        values = dict(state)
        self.is_constructed, self.is_frozen = values.pop("_is_constructed"), values.pop("_is_frozen")
        self.explicitly_set, self.own_names = set(values.pop("_explicitly_set")), set(values.pop("_own_names"))
        self.values.update(values)
        self.values["algo_class"] = _algorithm_class(values.get("algo_class"))


def _algorithm_class(value: Any) -> Any:
    """Replaces the name of an algorithm by its class; other values stay as they are."""
    return get_algorithm_class(value) if isinstance(value, str) else value


def _searchable(value: Any) -> Any:
    """Converts a model config with a search space to a dict, because tuners only look into dicts and lists."""
    if isinstance(value, DefaultModelConfig) and any(map(is_search_space, as_dict(value).values())):
        return given_settings(value)
    return value


def warn_deprecated(message: str) -> None:
    """Issues a DeprecationWarning that points to the first caller outside of this package's configs."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("jaxrl_stack.algorithms"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, DeprecationWarning, stacklevel=level)


# ----------------------------------------------------------------------------------------------------- config classes

_Config = TypeVar("_Config")


class _ConfigMeta(type):
    """Metaclass of configs. After the constructors of a config have run, including subclasses' constructors, the config
    refuses new attributes.
    """

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
            raise TypeError(
                f"{cls.__name__}({unknown[0]}=...): settings are arguments of methods, not of the class.{hint}"
            ) from error
        config._settings.is_constructed = True
        return config


# ---------------------------------------------------------------------------------------------- settings of checkpoints


def check_trusted(values: Mapping[str, Any], loader: ClassLoader) -> None:
    """Raises if settings in a checkpoint would import code that the caller has not allowed."""
    for setting in _all_names(values):
        if setting in NOT_IN_CHECKPOINTS:
            raise ValueError(
                f"The checkpoint contains the setting {setting}, which is never saved in checkpoints: the checkpoint's "
                "files were changed. Use an unchanged checkpoint."
            )
    for kind, text, setting in texts_that_import(values):
        if not loader.allows_text(text):
            raise ValueError(
                f"The checkpoint needs the {kind} {text!r}, and loading would import its module. If you trust this "
                f"module, call from_checkpoint(path, allow=[{text!r}]). Otherwise call from_checkpoint(path, "
                f"{setting}=...)."
            )


def _dicts_in(value: Any) -> Iterator[Mapping[Any, Any]]:
    """Yields all dicts and dataclasses in a value (including the value itself), each as a dict."""
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
    """Yields ``(kind, text, setting)`` for each string in `value` that names code to import.

    Such a string is an environment such as ``"module:id"``, or the import path of a replay buffer. `value` contains
    settings, as Python objects or in their JSON form. Loading these settings would import the code.
    """
    for items in _dicts_in(value):
        for name, item in items.items():
            # "env_id" is what gymnasium's wrappers for environments of older APIs call it.
            if name in ("env", "env_id") and isinstance(item, str) and ":" in item:
                yield "environment", item, "env"
            buffer = item.get("type") if name == "replay_buffer_config" and isinstance(item, Mapping) else None
            if isinstance(buffer, str) and any(mark in buffer for mark in ".:"):
                yield "replay buffer", buffer, name
