"""Checks of setting values. For an invalid value, a check returns a description of valid values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable
from typing import Any

import gymnasium as gym
import numpy as np

from jaxrl_stack.utils import schedules
from jaxrl_stack.utils.signatures import call_problem


@dataclasses.dataclass(frozen=True, eq=False)
class Check:
    """Check of a setting's value, which also describes valid values for error messages.

    Attributes:
        problem: Function of a value; returns the description if the value is invalid, else None.
        type: Annotation of valid values, as text.
        takes_schedules: Whether a schedule ``[[0, v0], [t1, v1], ...]`` of valid values passes.
    """

    problem: Callable[[Any], str | None]
    type: str = "Any"
    takes_schedules: bool = False

    def __call__(self, value: Any) -> str | None:
        """Returns a description of valid values if `value` is invalid, else None."""
        return self.problem(value)


def check_of(annotation: str) -> Callable[[Callable[[Any], str | None]], Check]:
    """Decorator that converts a function to a `Check`."""
    return lambda problem: Check(problem, annotation)


def fits(test: Callable[[Any], bool], what: str, annotation: str) -> Check:
    """Creates a `Check` that accepts a value if ``test(value)`` is True. `what` describes valid values in error
    messages.
    """
    return Check(lambda value: None if test(value) else what, annotation)


def anything(annotation: str) -> Check:
    """Creates a check that accepts all values."""
    return Check(lambda value: None, annotation)


def function_of(*positional: str, keywords: tuple[str, ...] = (), annotation: str = "Callable[..., Any]") -> Check:
    """Creates a check that a value is a function which accepts the given arguments.

    Args:
        positional: Names of the positional arguments.
        keywords: Names of the keyword arguments.
        annotation: See `Check`.
    """
    parameters = ", ".join([*positional, *(["*", *keywords] if keywords else [])])

    def check(value: Any) -> str | None:
        if not callable(value):
            return f"a function f({parameters})"
        problem = call_problem(value, *positional, **dict.fromkeys(keywords))
        if problem is None:
            return None
        return f"a function that can be called as f({parameters}), and this one cannot: {problem}"

    return Check(check, annotation)


def _is_in(value: Any, choices: Iterable[Any]) -> bool:
    # True == 1 in Python, but not here.
    return any(value is c or (type(value) is type(c) and value == c) for c in choices)


def _or(also: tuple[Any, ...]) -> str:
    return "".join(f" or {value!r}" for value in also)


def _types(choices: tuple[Any, ...]) -> str:
    names = ("None" if choice is None else type(choice).__name__ for choice in choices)
    return "".join(f" | {name}" for name in dict.fromkeys(names))


def _in_limits(kind: str, *limits: tuple[str, float | None]) -> str:
    given = [f"{relation} {limit}" for relation, limit in limits if limit is not None]
    return " ".join([kind, *([" and ".join(given)] if given else [])])


def integer(minimum: int | None = None, also: tuple[Any, ...] = (), maximum: int | None = None) -> Check:
    """Creates a check for integers from `minimum` to `maximum`; the values in `also` are valid, too."""
    wanted = _in_limits("an integer", ("of at least", minimum), ("at most", maximum))

    def check(value: Any) -> str | None:
        if _is_in(value, also):
            return None
        is_integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        if is_integer and (minimum is None or value >= minimum) and (maximum is None or value <= maximum):
            return None
        return wanted + _or(also)

    return Check(check, "int" + _types(also))


def number(
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    below: float | None = None,
    also: tuple[Any, ...] = (),
    or_schedule: bool = False,
    finite: bool = False,
) -> Check:
    """Creates a check for numbers in a range; the values in `also` are valid, too. With `or_schedule`, schedules of
    such numbers are valid as well.

    Infinity passes, and means no limit; `finite` refuses it.
    """
    kind = "a finite number" if finite else "a number"
    wanted = _in_limits(kind, ("at least", minimum), ("above", above), ("below", below), ("at most", maximum))

    def one(value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
            return False
        in_range = (minimum is None or value >= minimum) and (maximum is None or value <= maximum)
        if finite and not np.isfinite(value):
            return False
        inside = (above is None or value > above) and (below is None or value < below)
        return bool(in_range and inside and value == value)

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
        return wanted + _or(also) + (", or a schedule [[0, value], [timestep, value], ...]" if or_schedule else "")

    schedule = " | list[list[float]] | list[tuple[int, float]]" if or_schedule else ""
    return Check(check, "float" + _types(also) + schedule, or_schedule)


def one_of(*choices: Any) -> Check:
    """Creates a check that a value is one of `choices`."""
    return fits(lambda value: _is_in(value, choices), "one of " + ", ".join(map(repr, choices)), _types(choices)[3:])


def instance(*types: type, what: str, also: tuple[Any, ...] = (), annotation: str = "Any") -> Check:
    """Creates a check for instances of `types`; the values in `also` are valid, too."""
    return fits(lambda value: isinstance(value, types) or _is_in(value, also), what + _or(also), annotation)


def subclass_of(base: type, what: str, annotation: str = "type") -> Check:
    """Creates a check that a value is `base` or one of its subclasses."""
    return fits(lambda value: isinstance(value, type) and issubclass(value, base), what, annotation)


@check_of("dict[str, float]")
def amounts(value: Any) -> str | None:
    """Checks that a setting is a dict from names of resources to finite numbers of at least 0.

    Returns a description of valid values if `value` is invalid, else None.
    """
    one = number(0, finite=True)
    if isinstance(value, dict) and all(isinstance(k, str) and one(v) is None for k, v in value.items()):
        return None
    return "a dict from the name of a resource to a number of at least 0, such as {'slots': 1}"


@check_of("Callable[..., Any] | list[Callable[..., Any]]")
def functions(value: Any) -> str | None:
    """Checks that a setting is a callable or a list of callables. Returns a description of valid values if `value` is
    invalid, else None.
    """
    items = value if isinstance(value, (list, tuple)) else [value]
    return None if all(map(callable, items)) else "a function or a list of functions"


@check_of("int | Collection[int]")
def iterations(value: Any) -> str | None:
    """Checks that a setting is an iteration number (an integer of at least 1), or a collection of such numbers.

    Returns a description of valid values if `value` is invalid, else None.
    """
    one = integer(1)
    numbers = [value] if isinstance(value, (int, np.integer)) else value
    if isinstance(numbers, Collection) and not isinstance(numbers, str) and all(one(n) is None for n in numbers):
        return None
    return "the number of an iteration, from 1, or a collection of them, such as [3, 4] or range(3, 5)"


boolean = fits(lambda value: isinstance(value, (bool, np.bool_)), "True or False", "bool")
amount_or_schedule = number(0, or_schedule=True, finite=True)
text = instance(str, what="a string", annotation="str")
texts = instance(dict, what="a dict", annotation="dict[str, str]")
dictionary = instance(dict, what="a dict", annotation="dict[str, Any]")
name_list = instance(list, tuple, what="a list of column names", annotation="list[str]")
is_class = instance(type, what="a class", annotation="type")
space = instance(gym.Space, what="a gymnasium space", annotation="gym.Space")
