"""`from_config` builds an object from a description: a class, its path, or a dict with arguments. `NotProvided` is the
sentinel for arguments that were not passed.
"""

from __future__ import annotations

import importlib
import json
import pathlib
from collections.abc import Mapping
from typing import Any


class _ShortRepr(type):
    def __repr__(cls) -> str:
        # Signatures show it dozens of times.
        return cls.__name__


class NotProvided(metaclass=_ShortRepr):
    """Default of config arguments: an argument that was not passed leaves its setting unchanged. In contrast, the
    argument None sets its setting to None.

    Used as the class itself, never instantiated.
    """


def from_config(cls: Any, config: Any = None, **kwargs: Any) -> Any:
    """Builds an object from a description: a class, its path, or a dict with arguments.

    Args:
        cls: Class of the object, unless `config` names another one. A text or dict without `config` is used as
            `config`.
        config: The description:

            * None: builds an object of `cls`.
            * An object of `cls`: is returned unchanged.
            * A class or function: is called.
            * A dict: keyword arguments, and under "type" a class, a function or a text.
            * A text: a name in the ``__type_registry__`` of `cls`, ``"module.Class"``, a class in the module of `cls`,
              a JSON text, or the path of a ``.json`` or ``.yaml`` file with such a dict.
        **kwargs: Keyword arguments, which take precedence over `config`. "_args" is the list of positional arguments;
            "type" is the class if `config` is None.

    Returns:
        The object.

    Raises:
        ValueError: If no class has the name that the text gives.
        TypeError: If no class is given, or it does not accept the arguments.
    """
    if config is None and isinstance(cls, str | Mapping):
        cls, config = None, cls
    if isinstance(cls, type) and isinstance(config, cls):
        return config
    if isinstance(config, str):
        config = _described(config)
    arguments = {**config, **kwargs} if isinstance(config, Mapping) else {"type": config, **kwargs}
    kind = arguments.pop("type", None)
    if not isinstance(config, Mapping) and config is not None:
        kind = config
    positional = arguments.pop("_args", ())
    make = cls if kind is None else _constructor(cls, kind)
    if not callable(make):
        raise TypeError(f"from_config({cls!r}, {config!r}): no class is given. Add it to the config as 'type'.")
    return make(*(positional if isinstance(positional, list | tuple) else (positional,)), **arguments)


def _described(text: str) -> Any:
    """Reads the description of an object from `text`.

    If `text` is the path of a JSON or YAML file, loads the file; if `text` is a JSON object, parses it. Returns any
    other text, such as a class path, unchanged.
    """
    suffix = pathlib.PurePath(text).suffix
    if suffix in (".json", ".yaml", ".yml"):
        content = pathlib.Path(text).read_text()
        return json.loads(content) if suffix == ".json" else importlib.import_module("yaml").safe_load(content)
    return json.loads(text) if text.lstrip().startswith("{") else text


def _constructor(cls: Any, kind: Any) -> Any:
    registry = getattr(cls, "__type_registry__", None) or {}
    if isinstance(kind, str | int) and kind in registry:
        return registry[kind]
    if not isinstance(kind, str):
        return kind
    module, _, name = kind.rpartition(".")
    try:
        return getattr(importlib.import_module(module or cls.__module__), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"from_config: the class {kind!r} cannot be imported. Give the class itself, its path 'module.Class', or "
            f"the name of a class that is in the same module as {cls!r}."
        ) from error
