"""Config methods for each section of settings, with signatures and docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from jaxrl_stack.algorithms.settings import Declarations, Setting
from jaxrl_stack.algorithms.settings_display import describe
from jaxrl_stack.utils.from_config import NotProvided


def fluent_method(owner: type, declarations: Declarations, section: str, own: Iterable[str]) -> Callable[..., Any]:
    """Creates the config method of one section, such as ``training()``, which sets the section's settings from its
    arguments and returns the config.

    Args:
        owner: Class that gets the method.
        declarations: All settings of that class.
        section: Name of the section.
        own: Names of the settings that this class adds. The base class's method, possibly overridden in between, gets
            the others.
    """
    settings = declarations.in_section(section)
    own_names = frozenset(own)
    positional = [s.name for s in settings if s.positional]
    inherited = any(section in vars(base) for base in owner.__mro__[1:])

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) > len(positional):
            raise TypeError(
                f"{type(self).__name__}.{section}() takes {len(positional)} positional argument(s), got "
                f"{len(args)}. Pass settings by keyword, such as {section}({settings[-1].name}=...)."
            )
        for name, value in zip(positional, args, strict=False):
            if name in kwargs:
                raise TypeError(
                    f"{type(self).__name__}.{section}() got {name!r} twice, by position and by keyword. Pass it once: "
                    f"{section}({name}=...)."
                )
            kwargs[name] = value
        mine = kwargs
        if inherited:
            mine = {name: value for name, value in kwargs.items() if name in own_names}
            getattr(super(owner, self), section)(**{n: v for n, v in kwargs.items() if n not in own_names})
        else:
            for setting in settings:
                if setting.when_omitted is not NotProvided:
                    mine.setdefault(setting.name, setting.when_omitted)
        self._set_in_section(section, mine)
        return self

    method.__name__ = section
    method.__qualname__ = f"{owner.__name__}.{section}"
    method.__module__ = owner.__module__
    method.__doc__ = _docstring(declarations, section, settings)
    # What inspect and notebooks show; pyright knows functions without it.
    method.__signature__ = signature(settings)  # pyright: ignore[reportFunctionMemberAccess]
    return method


def signature(settings: Iterable[Setting]) -> inspect.Signature:
    """Signature of a config method whose parameters are `self` and the given settings."""
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    for setting in sorted(settings, key=lambda s: not s.positional):
        parameters.append(
            inspect.Parameter(
                setting.name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD if setting.positional else inspect.Parameter.KEYWORD_ONLY,
                default=setting.when_omitted,
                annotation=setting.type,
            )
        )
    return inspect.Signature(parameters, return_annotation="Self")


def _docstring(declarations: Declarations, section: str, settings: list[Setting]) -> str:
    lines = [declarations.section_docs[section], "", "Args:"]
    for setting in settings:
        lines.append(f"    {setting.name}: {describe(setting)}")
    lines += [
        "",
        "Returns:",
        "    This config, so that calls chain. Settings that are not passed keep their values.",
        "",
        "Raises:",
        "    TypeError: If an argument is no setting of this section; names the setting that was probably meant.",
        "    ValueError: If a value cannot be right, or a name has been replaced by another.",
        "    AttributeError: If the config is frozen.",
    ]
    return "\n".join(lines)
