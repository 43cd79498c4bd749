"""Declarations of settings, and the collection of all settings of a config class.

A config class lists `Section`s of `Setting`s. Its fluent methods (with signature and docstring), defaults, checks,
`to_dict`, the markdown table and the type stubs are generated from that list. The list also separates arguments of a
compiled program (traced) from values that it is compiled for (static).
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import numpy as np

from jaxrl_stack.algorithms.setting_checks import Check
from jaxrl_stack.algorithms.setting_values import is_search_space, same
from jaxrl_stack.algorithms.settings_display import short
from jaxrl_stack.compat import other_libraries
from jaxrl_stack.compat.old_settings import OldName
from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig
from jaxrl_stack.utils import schedules
from jaxrl_stack.utils.from_config import NotProvided

Kind = Literal["static", "traced", "host", "inert", "later"]
"""static: changes shapes or structure of a compiled program, or is baked into it.
traced: an argument of the compiled program; other values do not recompile.
host: only read by Python around the programs.
inert: accepted without effect; says so once, with what to use instead.
later: not supported yet; a value other than the default raises in `validate()`."""

RUNNER, LEARNER, ALGORITHM, EVALUATION, CONFIG = "runner", "learner", "algorithm", "evaluation", "config"
ACTORS = "actors"
"""Readers of a setting. Settings that only actors read have no effect if the environment runs on the device."""
DATA = "data"
"""Reader of settings for recorded data. Such settings have no effect if training samples an environment."""


@dataclasses.dataclass(frozen=True, eq=False)
class Setting:
    """Declaration of one config setting.

    Attributes:
        name: Keyword of the fluent method.
        default: Value on a new config; containers are copied.
        check: Check of values, with their annotation.
        doc: Description in one or two sentences.
        read_by: The reader of the setting: one of the constants in this module.
        kind: See `Kind`.
        type: Annotation, as text; empty for the annotation of `check`, with None if that is the default.
        attribute: Attribute of the config that stores it, if different from `name`.
        off: Values that switch a traced setting off; switching on or off is static.
        check_when_set: False leaves the check to `validate()`.
        convert: Function that converts a value when it is set.
        merge: Whether a dict updates the present dict instead of replacing it, or a function of both that returns the
            new dict.
        instead: Replacement for an inert setting, or workaround for an unsupported one (later).
        positional: Whether the fluent method takes it by position.
        when_omitted: Value that a call of the fluent method without it sets.
        per_module: Whether it can differ between the modules of one algorithm.
        deprecated: Replacement of a deprecated setting; setting it warns.
        takes_none: Whether None passes independently of `check`. True if None is the base default, also for algorithms
            with another default.
        is_initial: Whether only the start of training reads it (traced settings only).
    """

    name: str
    default: Any
    check: Check
    doc: str
    read_by: str = CONFIG
    kind: Kind = "static"
    type: str = ""
    attribute: str = ""
    off: tuple[Any, ...] = (None,)
    check_when_set: bool = True
    convert: Callable[[Any], Any] | None = None
    merge: bool | Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]] = False
    instead: str = ""
    positional: bool = False
    when_omitted: Any = NotProvided
    per_module: bool = False
    deprecated: str = ""
    takes_none: bool = False
    is_initial: bool = False

    def __post_init__(self) -> None:
        fill = functools.partial(object.__setattr__, self)
        fill("attribute", self.attribute or self.name)
        fill("per_module", self.per_module or self.kind == "traced")
        fill("takes_none", self.takes_none or self.default is None)
        can_be_none = self.default is None and "None" not in self.check.type
        fill("type", self.type or self.check.type + (" | None" if can_be_none else ""))
        if self.kind in ("inert", "later") and not self.instead:
            raise ValueError(
                f"The setting {self.name!r} of kind {self.kind!r} needs a text that tells users what to use instead. "
                f"Declare the setting with instead='...'."
            )
        if self.schedulable and self.kind != "traced":
            raise ValueError(
                f"The setting {self.name!r} of kind {self.kind!r} has a check that takes schedules, but only traced "
                f"settings can be schedules. Declare it with kind='traced', or use a check without or_schedule=True."
            )

    @property
    def schedulable(self) -> bool:
        """Whether the value of the setting may be a schedule ``[[0, v0], [t1, v1], ...]``. Only settings that compiled
        programs take as arguments accept schedules.
        """
        return self.check.takes_schedules

    def problem_with(self, value: Any) -> str | None:
        """Describes the valid values if `value` is invalid, else returns None. Search spaces are valid, because a tuner
        replaces them.
        """
        if is_search_space(value) or (value is None and self.takes_none):
            return None
        return self.check(value)

    def differs_from_default(self, value: Any) -> bool:
        """Whether `value` differs from the setting's default."""
        return not same(value, self.default)


static = Setting
traced = functools.partial(Setting, kind="traced", read_by=LEARNER)
host = functools.partial(Setting, kind="host")
inert = functools.partial(Setting, kind="inert")
later = functools.partial(Setting, kind="later")
actors = functools.partial(Setting, kind="host", read_by=ACTORS)
per_module = functools.partial(Setting, read_by=LEARNER, per_module=True)


@dataclasses.dataclass(frozen=True, eq=False)
class Section:
    """Settings of one config method, such as ``training()``.

    Attributes:
        name: Name of the method.
        doc: First line of the method's docstring.
        settings: Settings that this class adds to the section.
        also: Names of settings of other sections that this method also takes.
    """

    name: str
    doc: str
    settings: tuple[Setting, ...] = ()
    also: tuple[str, ...] = ()


class Declarations:
    """All settings of a config class, including inherited ones."""

    def __init__(
        self,
        parent: Declarations | None = None,
        sections: Iterable[Section] = (),
        defaults: Mapping[str, Any] | None = None,
        old_names: Iterable[OldName] = (),
        owner: str = "",
        checks: Mapping[str, Check] | None = None,
    ):
        """Collects the settings that a config class declares and inherits.

        Args:
            parent: Declarations of the base class.
            sections: Sections that this class adds.
            defaults: Setting name → default that this class changes.
            checks: Setting name → check that this class changes.
            old_names: Old names that this class adds.
            owner: Name of the class, for error messages.

        Raises:
            ValueError: If a name is declared twice, or a changed default belongs to no setting.
        """
        self.section_docs: dict[str, str] = dict(parent.section_docs) if parent else {}
        self.section_of: dict[str, str] = dict(parent.section_of) if parent else {}
        self.by_name: dict[str, Setting] = dict(parent.by_name) if parent else {}
        self.old: dict[str, OldName] = dict(parent.old) if parent else {}
        self.also: dict[str, tuple[str, ...]] = dict(parent.also) if parent else {}
        for section in sections:
            if section.doc:
                self.section_docs[section.name] = section.doc
            self.also[section.name] = (*self.also.get(section.name, ()), *section.also)
            for setting in section.settings:
                if setting.name in self.by_name:
                    raise ValueError(
                        f"{owner}: the setting {setting.name!r} is declared twice. To change the default of an "
                        f"inherited setting, use _defaults."
                    )
                # An old name of the base may be a current one of an algorithm.
                self.old.pop(setting.name, None)
                self.by_name[setting.name] = setting
                self.section_of[setting.name] = section.name
        for name, default in (defaults or {}).items():
            if name not in self.by_name:
                raise ValueError(
                    f"{owner}._defaults has a default for the unknown setting {name!r}. Declare the setting in "
                    f"_sections, or correct its name."
                )
            self.by_name[name] = dataclasses.replace(self.by_name[name], default=default)
        for name, check in (checks or {}).items():
            self.by_name[name] = dataclasses.replace(self.by_name[name], check=check)
        self.old.update({old.name: old for old in old_names})
        self.by_attribute = {setting.attribute: setting for setting in self.by_name.values()}

    def find(self, name: str) -> Setting | None:
        """The setting with this keyword or attribute name; None if there is none."""
        return self.by_name.get(name) or self.by_attribute.get(name)

    def in_section(self, section: str) -> list[Setting]:
        """Settings that the config method of a section takes, in order of declaration."""
        return [s for s in self.by_name.values() if self.takes(section, s.name)]

    def takes(self, section: str, name: str) -> bool:
        """Whether the config method `section`, such as ``training``, has an argument for the setting `name`."""
        return self.section_of.get(name) == section or name in self.also.get(section, ())

    def _names_in(self, section: str | None) -> frozenset[str]:
        return frozenset(s.name for s in self.in_section(section)) if section else frozenset()

    def call(self, setting: Setting, value: str = "...") -> str:
        """Text of the call that sets a setting, such as ``training(lr=...)``, for messages."""
        return f"{self.section_of[setting.name]}({setting.name}={value})"

    def check(self, setting: Setting, value: Any) -> None:
        """Raises a ValueError if a value is invalid for a setting.

        Raises:
            ValueError: If the value is invalid.
        """
        problem = setting.problem_with(value)
        if problem is not None:
            raise ValueError(f"{self.call(setting, short(value))}: must be {problem}.")

    def old_name(self, name: str, section: str | None = None) -> OldName | None:
        """Returns the `OldName` entry if `name` is a setting's name from an older RLlib version, else None.

        `section` is the config method that was called with the argument `name`; some names are old only in certain
        methods. Pass ``section=None`` if `name` is an attribute of the config or a key of a config dict.
        """
        old = self.old.get(name)
        if old is None or (old.sections and section not in old.sections):
            return None
        return old

    def suggestion(self, name: str, extra: Iterable[str] = (), section: str | None = None) -> str:
        """Returns a hint to append to an error about an unknown setting, such as a similar name; empty if there is
        none.
        """
        if name in DefaultModelConfig.__dataclass_fields__:
            return (
                f" It is a setting of the network: rl_module(model_config=DefaultModelConfig({name}=...))."
                " (import it from jaxrl_stack.core.rl_module.default_model_config)"
            )
        setting = self.find(name)
        if setting is not None and section == "evaluation":
            return f" Write evaluation(evaluation_config={{{name!r}: ...}}), or {self.call(setting)} for training, too."
        if setting is not None and section is not None:
            return f" It belongs to {self.section_of[setting.name]}(): write {self.call(setting)}."
        # PureJaxRL writes its settings in capitals.
        theirs = name.lower()
        close = [ours for ours in other_libraries.SETTINGS.get(theirs, ()) if ours in self.by_name][:2]
        if not close and theirs in other_libraries.ANSWERS:
            return f" {other_libraries.ANSWERS[theirs]}"
        if not close:
            current = [s.name for s in self.by_name.values() if not s.deprecated]
            close = _closest(theirs, [*current, *extra], preferred=self._names_in(section))
        if not close:
            return f" help(config.{section}) lists what there is." if section else ""
        calls = [self.call(self.by_name[c]) if c in self.by_name else c for c in close]
        return f" Did you mean {' or '.join(calls)}?"


def _closest(name: str, candidates: Iterable[str], preferred: frozenset[str]) -> list[str]:
    """Returns one or two candidates that are most similar to a misspelled name."""

    def score(candidate: str) -> float:
        ratio = difflib.SequenceMatcher(None, name, candidate).ratio()
        has_all_words = set(name.strip("_").split("_")) <= set(candidate.strip("_").split("_"))
        return ratio + (0.3 if has_all_words else 0.0) + (0.1 if candidate in preferred else 0.0)

    scores = sorted(((score(candidate), candidate) for candidate in candidates), reverse=True)
    best = scores[0][0]
    return [candidate for value, candidate in scores[:2] if value >= max(0.7, best - 0.1)]


def traced_value(setting: Setting, value: Any) -> np.ndarray | schedules.ScheduleArrays:
    """Converts a setting's value to an argument of compiled programs: ``float32[]``, or arrays of a schedule if the
    setting accepts schedules.
    """
    if setting.schedulable:
        return schedules.encode(value)
    return np.asarray(value, np.float32)
