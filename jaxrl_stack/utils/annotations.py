"""Decorators with RLlib's names: marks for the audience of a class or method, a check of overrides, and deprecation."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def override(parent_cls: type) -> Callable[[T], T]:
    """Decorator for a method that overrides a method of the class `parent_cls`.

    Args:
        parent_cls: The class that has the method already, itself or from its bases.

    Raises:
        NameError: `parent_cls` has no attribute of that name: a misspelt method overrides nothing.
    """

    def check(method: T) -> T:
        function = getattr(method, "fget", method)
        name = getattr(function, "__name__", None)
        # What is not here yet has its methods later.
        if name is not None and not hasattr(parent_cls, name) and not hasattr(parent_cls, "comes_later"):
            raise NameError(
                f"@override({parent_cls.__name__}): {parent_cls.__name__} has no method {name!r}. Correct the name, "
                "or remove @override."
            )
        return method

    return check


def PublicAPI(obj: T) -> T:
    """Marks a public API for users."""
    return obj


def DeveloperAPI(obj: T) -> T:
    """Marks an API for developers of extensions."""
    return obj


def ExperimentalAPI(obj: T) -> T:
    """Marks an API that may change from release to release."""
    return obj


def OldAPIStack(obj: T) -> T:
    """Marks a class or function of RLlib's old API stack; nothing in this package has this mark."""
    return obj


def OverrideToImplementCustomLogic(obj: T) -> T:
    """Decorator that marks a method which subclasses are meant to override; see `is_overridden`."""
    obj.__is_overridden__ = False  # type: ignore[attr-defined]
    return obj


def OverrideToImplementCustomLogic_CallToSuperRecommended(obj: T) -> T:
    """Decorator that marks a method which subclasses are meant to override with a call of ``super()``; see
    `is_overridden`.
    """
    return OverrideToImplementCustomLogic(obj)


def is_overridden(obj: Callable[..., Any]) -> bool:
    """Whether a subclass has overridden a method that its base class marks with ``OverrideToImplementCustomLogic``;
    False for the marked method itself.
    """
    return getattr(obj, "__is_overridden__", True)


def Deprecated(
    old: str | None = None, *, new: str | None = None, help: str | None = None, error: bool | type[Exception] = False
) -> Callable[[T], T]:
    """Decorator for a deprecated function or class.

    Args:
        old: Name in the message; None: the object's own.
        new: Replacement to use.
        help: A sentence in place of `new`.
        error: False: a DeprecationWarning at each use; True: a ValueError; or the class of the error.
    """

    def decorate(obj: Any) -> Any:
        instead = f" {help}" if help else f" Use {new} instead." if new else ""
        message = f"{old or obj.__name__} is deprecated.{instead}"

        used: Any = obj.__init__ if isinstance(obj, type) else obj

        @functools.wraps(used)
        def call(*args: Any, **kwargs: Any) -> Any:
            if error:
                raise (ValueError if error is True else error)(message)
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            return used(*args, **kwargs)

        if used is obj:
            return call
        obj.__init__ = call
        return obj

    return decorate
