"""How a setting is declared, and everything that follows from the declaration.

A config class lists `Section`s of `Setting`s. Its fluent methods (with signature and docstring), defaults,
checks, `to_dict`, the markdown table and the type stubs are made from that list, and so is the split into
what a compiled program takes as an argument (traced) and what it is compiled for (static).
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import inspect
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Literal, TypeGuard

import gymnasium as gym
import jax
import numpy as np

from jaxrl_stack.utils import schedules
from jaxrl_stack.utils.from_config import NotProvided

Kind = Literal["static", "traced", "host", "inert", "later"]
"""static: changes shapes or structure of a compiled program, or is baked into it.
traced: an argument of the compiled program; other values do not recompile.
host: only read by Python around the programs.
inert: accepted without effect; says so once, with what to use instead.
later: not supported yet; a value other than the default raises in `validate()`."""

Check = Callable[[Any], str | None]
"""Takes a value; returns what it must be if it is not, else None."""


@dataclasses.dataclass(frozen=True, eq=False)
class Setting:
    """One setting of a config.

    Attributes:
        name: Keyword of the fluent method.
        default: Value on a new config; containers are copied.
        doc: One or two sentences.
        type: Annotation, as text.
        kind: See `Kind`.
        attribute: Name under which the config stores it, if that is not `name`.
        schedulable: Whether it may be ``[[0, v0], [t1, v1], ...]`` (traced settings only).
        off: Values that switch a traced setting off; on ↔ off is static.
        check: What a value must be.
        check_when_set: False leaves the check to `validate()`.
        convert: Applied to a value when it is set.
        merge: Whether a dict updates the present dict instead of replacing it, or a function of both that gives
            the new one.
        instead: What to use instead (inert), or what to do until then (later).
        positional: Whether the fluent method takes it by position.
        when_omitted: What a call of the fluent method without it means.
        per_module: Whether it can differ between the modules of one algorithm.
        hidden: Kept for its default only: no argument of the fluent method.
        read_by: Who acts on it: "runner", "learner", "algorithm", "evaluation", "config", or "actors"
            (without effect on the on-device driver).
        takes_none: Whether None passes whatever `check` says: so it is where None is the default, and stays so where
            an algorithm has another one.
    """

    name: str
    default: Any
    doc: str
    type: str = "Any"
    kind: Kind = "static"
    attribute: str = ""
    schedulable: bool = False
    off: tuple[Any, ...] = (None,)
    check: Check | None = None
    check_when_set: bool = True
    convert: Callable[[Any], Any] | None = None
    merge: bool | Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]] = False
    instead: str = ""
    positional: bool = False
    when_omitted: Any = NotProvided
    per_module: bool = False
    hidden: bool = False
    read_by: str = "config"
    takes_none: bool = False

    def __post_init__(self) -> None:
        if not self.attribute:
            object.__setattr__(self, "attribute", self.name)
        if self.kind == "traced":
            object.__setattr__(self, "per_module", True)
        if self.default is None:
            object.__setattr__(self, "takes_none", True)
        if self.kind in ("inert", "later") and not self.instead:
            raise ValueError(f"The {self.kind} setting {self.name!r} must say what to use instead.")
        if self.schedulable and self.kind != "traced":
            raise ValueError(f"Only traced settings can be schedules; {self.name!r} is {self.kind}.")

    def problem_with(self, value: Any) -> str | None:
        """What `value` must be, or None if it is fine (as search spaces are: a tuner resolves them)."""
        if self.check is None or is_search_space(value) or (value is None and self.takes_none):
            return None
        return self.check(value)

    def differs_from_default(self, value: Any) -> bool:
        """Whether `value` is another one than the default."""
        return not same(value, self.default)


@dataclasses.dataclass(frozen=True, eq=False)
class Section:
    """A group of settings: one fluent method.

    Attributes:
        name: Name of the method.
        doc: First line of its docstring.
        settings: The settings that this class adds to the section.
        also: Names of settings of other sections that the method of this one takes, too.
    """

    name: str
    doc: str
    settings: tuple[Setting, ...] = ()
    also: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class OldName:
    """A name of RLlib's past.

    Attributes:
        name: The old name.
        instead: What to write today; empty if nothing replaces it.
        maps_to: Setting that the value goes to, with a warning. Empty: the name raises.
        sections: Only old as an argument of these methods (elsewhere it is a current name); empty:
            everywhere.
        only_as_key: Maps as a key of `update_from_dict` only; everywhere else it raises.
    """

    name: str
    instead: str = ""
    maps_to: str = ""
    sections: tuple[str, ...] = ()
    only_as_key: bool = False

    def message(self) -> str:
        """The sentence for the user."""
        if not self.instead:
            return f"{self.name!r} is gone, and nothing takes its place: leave it out."
        return f"{self.name!r} is gone. Use {self.instead} instead."


class Declarations:
    """All settings of one config class, its own and inherited ones."""

    def __init__(
        self,
        parent: Declarations | None = None,
        sections: Iterable[Section] = (),
        defaults: Mapping[str, Any] | None = None,
        old_names: Iterable[OldName] = (),
        owner: str = "",
    ):
        """Args:
        parent: Declarations of the base class.
        sections: What this class adds.
        defaults: Setting name → default that this class changes.
        old_names: Old names that this class knows beside the inherited ones.
        owner: Name of the class, for error messages.

        Raises:
            ValueError: If a name is declared twice or a changed default belongs to no setting.
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
                    raise ValueError(f"{owner}: the setting {setting.name!r} is declared twice.")
                # An old name of the base may be a current one of an algorithm.
                self.old.pop(setting.name, None)
                self.by_name[setting.name] = setting
                self.section_of[setting.name] = section.name
        for name, default in (defaults or {}).items():
            if name not in self.by_name:
                raise ValueError(f"{owner}: default of an unknown setting {name!r}.")
            self.by_name[name] = dataclasses.replace(self.by_name[name], default=default)
        self.old.update({old.name: old for old in old_names})
        self.by_attribute = {setting.attribute: setting for setting in self.by_name.values()}

    def find(self, name: str) -> Setting | None:
        """The setting with this keyword or attribute name."""
        return self.by_name.get(name) or self.by_attribute.get(name)

    def in_section(self, section: str) -> list[Setting]:
        """The settings of one section, in the order of declaration."""
        return [s for s in self.by_name.values() if self.takes(section, s.name)]

    def takes(self, section: str, name: str) -> bool:
        """Whether the method of a section has an argument for this setting."""
        return self.section_of[name] == section or name in self.also.get(section, ())

    def _names_in(self, section: str | None) -> frozenset[str]:
        return frozenset(s.name for s in self.in_section(section)) if section else frozenset()

    def call(self, setting: Setting, value: str = "...") -> str:
        """How a user sets it: ``training(lr=...)``."""
        return f"{self.section_of[setting.name]}({setting.name}={value})"

    def old_name(self, name: str, section: str | None = None) -> OldName | None:
        """The old name, if it is one in this place (`section` None: as a key or attribute)."""
        old = self.old.get(name)
        if old is None or (old.sections and section not in old.sections):
            return None
        return old

    def suggestion(self, name: str, extra: Iterable[str] = (), section: str | None = None) -> str:
        """A "did you mean" sentence; empty if nothing is close."""
        if name in MODEL_KEYS:
            return (
                f" It is a setting of the network: rl_module(model_config=DefaultModelConfig({name}=...))."
                " (import it from jaxrl_stack.core.rl_module.default_model_config)"
            )
        setting = self.find(name)
        if setting is not None and section is not None:
            return f" It belongs to {self.section_of[setting.name]}(): write {self.call(setting)}."
        alias = OTHER_LIBRARIES.get(name)
        if alias in self.by_name:
            close = [alias]
        else:
            visible = [s.name for s in self.by_name.values() if not s.hidden]
            close = _closest(name.lower(), [*visible, *extra], preferred=self._names_in(section))
        if not close:
            return ""
        calls = [self.call(self.by_name[c]) if c in self.by_name else c for c in close]
        return f" Did you mean {' or '.join(calls)}?"


def _closest(name: str, candidates: Iterable[str], preferred: frozenset[str]) -> list[str]:
    """The one or two candidates that a name most likely means."""

    def score(candidate: str) -> float:
        ratio = difflib.SequenceMatcher(None, name, candidate).ratio()
        has_all_words = set(name.strip("_").split("_")) <= set(candidate.strip("_").split("_"))
        return ratio + (0.3 if has_all_words else 0.0) + (0.1 if candidate in preferred else 0.0)

    scores = sorted(((score(candidate), candidate) for candidate in candidates), reverse=True)
    best = scores[0][0]
    return [candidate for value, candidate in scores[:2] if value >= max(0.7, best - 0.1)]


OTHER_LIBRARIES = {
    "learning_rate": "lr",
    "discount": "gamma",
    "gae_lambda": "lambda_",
    "lam": "lambda_",
    "clip_range": "clip_param",
    "clip_coef": "clip_param",
    "ent_coef": "entropy_coeff",
    "vf_coef": "vf_loss_coeff",
    "max_grad_norm": "grad_clip",
    "n_epochs": "num_epochs",
    "update_epochs": "num_epochs",
    "num_minibatches": "minibatch_size",
    "batch_size": "train_batch_size_per_learner",
    "n_steps": "rollout_fragment_length",
    "num_steps": "rollout_fragment_length",
    "n_envs": "num_envs_per_env_runner",
    "num_envs": "num_envs_per_env_runner",
}
"""What other libraries call a setting."""

MODEL_KEYS = frozenset(
    {
        f"{part}_{what}"
        for part in ("fcnet", "head_fcnet", "conv", "lstm", "fusionnet")
        for what in (
            "hiddens",
            "activation",
            "use_layernorm",
            "filters",
            "kernel_initializer",
            "kernel_initializer_kwargs",
            "bias_initializer",
            "bias_initializer_kwargs",
        )
    }
    | {
        "free_log_std",
        "log_std_clip_param",
        "use_lstm",
        "lstm_cell_size",
        "lstm_use_prev_action",
        "lstm_use_prev_reward",
        "max_seq_len",
    }
)
"""Fields of DefaultModelConfig, which users like to pass to `training()`."""


# ----------------------------------------------------------------------------------------------------- checks


def is_search_space(value: Any) -> bool:
    """Whether a tuner picks the value: ``{"grid_search": [...]}`` or an object with a `sample` method."""
    if isinstance(value, dict):
        return set(value) == {"grid_search"}
    # Spaces sample, too, but they are values.
    return callable(getattr(type(value), "sample", None)) and not isinstance(value, gym.Space)


def boolean(value: Any) -> str | None:
    """True or False."""
    return None if isinstance(value, (bool, np.bool_)) else "True or False"


def integer(minimum: int | None = None, also: tuple[Any, ...] = (), maximum: int | None = None) -> Check:
    """An integer, at least `minimum` and at most `maximum`, or one of `also`."""
    limits = [
        *([f"of at least {minimum}"] if minimum is not None else []),
        *([f"at most {maximum}"] if maximum is not None else []),
    ]
    wanted = " ".join(["an integer", " and ".join(limits)]).rstrip()

    def check(value: Any) -> str | None:
        if _is_in(value, also):
            return None
        is_integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        if is_integer and (minimum is None or value >= minimum) and (maximum is None or value <= maximum):
            return None
        return wanted + _or(also)

    return check


def number(
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    also: tuple[Any, ...] = (),
    or_schedule: bool = False,
    finite: bool = False,
) -> Check:
    """A number in the given range, or one of `also`; with `or_schedule` a schedule of such numbers.

    Infinity is a number that stands for no limit; `finite` refuses it.
    """
    limits = [
        *([f"at least {minimum:g}"] if minimum is not None else []),
        *([f"above {above:g}"] if above is not None else []),
        *([f"at most {maximum:g}"] if maximum is not None else []),
    ]
    wanted = " ".join(["a finite number" if finite else "a number", " and ".join(limits)]).rstrip()

    def one(value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
            return False
        in_range = (minimum is None or value >= minimum) and (maximum is None or value <= maximum)
        if finite and not np.isfinite(value):
            return False
        return bool(in_range and (above is None or value > above) and value == value)

    def check(value: Any) -> str | None:
        if _is_in(value, also):
            return None
        if or_schedule and schedules.is_schedule(value):
            problem = schedules.schedule_problem(value)
            if problem is not None:
                return f"{wanted}, or a schedule [[0, value], [timestep, value], ...], but {problem}"
            return None if all(one(v) for _, v in value) else f"a schedule of numbers, each {wanted}"
        if one(value):
            return None
        return (
            wanted
            + _or(also)
            + (", or a schedule [[0, value], [timestep, value], ...]" if or_schedule else "")
        )

    return check


def one_of(*choices: Any) -> Check:
    """One of `choices`."""

    def check(value: Any) -> str | None:
        return None if _is_in(value, choices) else "one of " + ", ".join(repr(c) for c in choices)

    return check


def instance(*types: type, what: str, also: tuple[Any, ...] = ()) -> Check:
    """An instance of one of `types`, or one of `also`."""

    def check(value: Any) -> str | None:
        return None if isinstance(value, types) or _is_in(value, also) else what + _or(also)

    return check


def subclass_of(base: type, what: str) -> Check:
    """A subclass of `base`, the class itself included."""

    def check(value: Any) -> str | None:
        return None if isinstance(value, type) and issubclass(value, base) else what

    return check


def amounts(value: Any) -> str | None:
    """A dict from name to a number of at least 0."""
    one = number(0, finite=True)
    if isinstance(value, dict) and all(isinstance(k, str) and one(v) is None for k, v in value.items()):
        return None
    return "a dict from the name of a resource to a number of at least 0, such as {'slots': 1}"


def function(value: Any) -> str | None:
    """A callable."""
    return None if callable(value) else "a function"


def functions(value: Any) -> str | None:
    """A callable or a list of callables."""
    items = value if isinstance(value, (list, tuple)) else [value]
    return None if all(callable(item) for item in items) else "a function or a list of functions"


def _is_in(value: Any, choices: Iterable[Any]) -> bool:
    # True == 1 in Python, but not here.
    return any(value is c or (type(value) is type(c) and value == c) for c in choices)


def _or(also: tuple[Any, ...]) -> str:
    return "".join(f" or {value!r}" for value in also)


# ----------------------------------------------------------------------------------------------------- values


_Array = (np.ndarray, jax.Array)


def same(a: Any, b: Any) -> bool:
    """Equality that copes with arrays and with containers of them."""
    if a is b:
        return True
    if isinstance(a, _Array) or isinstance(b, _Array):
        return isinstance(a, _Array) and isinstance(b, _Array) and a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if _is_record(a) and type(a) is type(b):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if isinstance(a, bool) != isinstance(b, bool):
        return False
    return bool(a == b)


def _is_record(value: Any) -> TypeGuard[Any]:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def copy_value(value: Any) -> Any:
    """A copy whose containers and dataclasses are new and whose other objects are shared.

    Environments, functions, classes and spaces keep their identity, so that a copied config still matches the
    programs that were compiled for the original.
    """
    if isinstance(value, dict):
        # type(value) keeps ordered and default dicts what they are.
        new = copy.copy(value)
        for key in new:
            new[key] = copy_value(new[key])
        return new
    if type(value) in (list, tuple, set):
        return type(value)(copy_value(item) for item in value)
    if _is_record(value):
        new = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(new, field.name, copy_value(getattr(value, field.name)))
        return new
    return value


def as_dict(value: Any) -> dict[str, Any]:
    """The fields of a dataclass, not copied; a mapping as a new dict."""
    if _is_record(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return dict(value)


class _ByEquality:
    """Makes an unhashable object a part of a key: compared by value, hashed by its type."""

    def __init__(self, value: Any):
        self.value = value

    def __hash__(self) -> int:
        return hash(type(self.value))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByEquality) and same(self.value, other.value)


def fingerprint_of(value: Any) -> Hashable:
    """A hashable form of a setting's value: equal iff the values are interchangeable in a program."""
    if isinstance(value, dict):
        return ("dict", frozenset((key, fingerprint_of(item)) for key, item in value.items()))
    if isinstance(value, (list, tuple)):
        return ("list", tuple(fingerprint_of(item) for item in value))
    if isinstance(value, (set, frozenset)):
        return ("set", frozenset(fingerprint_of(item) for item in value))
    if isinstance(value, _Array):
        array = np.asarray(value)
        return ("array", array.shape, array.dtype.str, array.tobytes())
    if _is_record(value):
        fields = tuple(fingerprint_of(getattr(value, field.name)) for field in dataclasses.fields(value))
        return (type(value), fields)
    try:
        hash(value)
    except TypeError:
        return _ByEquality(value)
    # The type keeps 1, 1.0 and True apart.
    return (type(value), value)


def traced_value(setting: Setting, value: Any) -> np.ndarray | schedules.ScheduleArrays:
    """What a program takes for a traced setting: ``float32[]``; arrays of a schedule if it may be one."""
    if setting.schedulable:
        return schedules.encode(value)
    return np.asarray(value, np.float32)


# ------------------------------------------------------------------------------------------ generated methods


def fluent_method(
    owner: type, declarations: Declarations, section: str, own: Iterable[str]
) -> Callable[..., Any]:
    """The method of one section.

    Args:
        owner: The class that gets the method.
        declarations: All settings of that class.
        section: Name of the section.
        own: Names of the settings that this class adds; the others go to the base class's method, which a
            class in between may have overridden.
    """
    settings = [s for s in declarations.in_section(section) if not s.hidden]
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
                    f"{type(self).__name__}.{section}() got {name!r} twice, by position and by keyword."
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
    """Signature of a fluent method, `self` included."""
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    for setting in sorted(settings, key=lambda s: not s.positional):
        parameters.append(
            inspect.Parameter(
                setting.name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD
                if setting.positional
                else inspect.Parameter.KEYWORD_ONLY,
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
        "    This config, so that calls chain. What is not passed stays as it is.",
        "",
        "Raises:",
        "    TypeError: If an argument is no setting of this section; names the setting that was probably "
        "meant.",
        "    ValueError: If a value cannot be right, or a name has been replaced by another.",
        "    AttributeError: If the config is frozen.",
    ]
    return "\n".join(lines)


def describe(setting: Setting) -> str:
    """Meaning, default and nature of a setting in one line."""
    notes = [f"Default: {short(setting.default)}."]
    if setting.schedulable:
        notes.append("Number or schedule [[0, value], [timestep, value], ...]; traced.")
    elif setting.kind == "traced":
        notes.append("Traced: other values do not recompile.")
    elif setting.kind == "inert":
        notes.append(f"No effect here: {setting.instead}")
    elif setting.kind == "later":
        notes.append(f"Other values come later; {setting.instead}")
    return " ".join([setting.doc, *notes])


def short(value: Any, width: int = 60) -> str:
    """A value for tables: names of classes and functions, and nothing longer than `width`."""
    if isinstance(value, type) or inspect.isroutine(value):
        text = getattr(value, "__qualname__", repr(value))
    elif _is_record(value):
        fields = [f for f in dataclasses.fields(value) if not same(getattr(value, f.name), _default_of(f))]
        text = f"{type(value).__name__}({', '.join(f'{f.name}={getattr(value, f.name)!r}' for f in fields)})"
    else:
        text = repr(value)
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "…"


def _default_of(field: dataclasses.Field) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def settings_table(declarations: Declarations) -> str:
    """All settings as markdown, one table per section."""
    blocks = []
    for section, doc in declarations.section_docs.items():
        settings = [s for s in declarations.in_section(section) if not s.hidden]
        rows = [f"### `{section}()`", doc, "", "| setting | default | kind | meaning |", "|---|---|---|---|"]
        for s in settings:
            kind = f"{s.kind}, schedulable" if s.schedulable else s.kind
            meaning = s.doc if s.kind not in ("inert", "later") else f"{s.doc} ({s.instead})"
            rows.append(f"| {s.name} | `{_cell(short(s.default))}` | {kind} | {_cell(meaning)} |")
        blocks.append("\n".join(rows))
    return "\n\n".join(blocks) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
