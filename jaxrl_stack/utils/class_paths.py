"""Conversion of classes and functions to text, and back. The conversion back imports only modules of this package; see
`ClassLoader` for other code.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

PACKAGE = "jaxrl_stack"
_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_MAX_LENGTH = 300
_registered: dict[str, Any] = {}

T = TypeVar("T")


def path_of(thing: type | Callable[..., Any]) -> str:
    """Converts a class or function to a text ``"module:Qualified.Name"``, from which `ClassLoader.load` can find it
    again.

    Raises:
        ValueError: If it cannot be found under that name again: a lambda, or something defined inside a function.
    """
    name = getattr(thing, "__qualname__", None)
    module = getattr(thing, "__module__", None)
    if not isinstance(name, str) or not isinstance(module, str):
        raise ValueError(
            f"{thing!r} is neither a class nor a function, so it cannot be stored by name. Pass a class or a function."
        )
    if "<" in name:
        raise ValueError(
            f"{name} is a lambda, or is defined inside a function, so it cannot be stored by name. Define it with def "
            "or class at the top level of a module."
        )
    return f"{module}:{name}"


def register_class(thing: T) -> T:
    """Allows checkpoints to refer to your class or function. Functions that load checkpoints, such as
    ``from_checkpoint``, then need no ``allow=`` for it.

    Works as a decorator. Nothing is imported when a checkpoint names it: the object given here is used.

    Raises:
        ValueError: If it is a lambda, or defined inside a function.
    """
    _registered[path_of(thing)] = thing  # pyright: ignore[reportArgumentType]
    return thing


class NotAllowedError(ValueError):
    """Raised if a checkpoint refers to code that the caller has not allowed."""


class ClassLoader:
    """Finds classes and functions by the names that a checkpoint stores.

    Classes of this package are imported. A class that the running script (``__main__``) defines is found if it is a
    subclass of the expected class. All others must be registered (`register_class`) or passed here; they are never
    imported.

    Args:
        allow: Classes and functions that a checkpoint may name, and texts ``"module:Name"`` of environments; or a
            single one. A class or function also matches a stored name with another module, if no other one in `allow`
            has the same name: a class may have moved from a script to a module.
        own: A further class, if it can be stored by name.
        named: Further classes and functions, named by objects that the caller passed.
        written_here: Further classes and functions by name, which a checkpoint of this process names.

    Attributes:
        given: Names of the classes and functions in `allow`.
    """

    def __init__(
        self, allow: Any = (), own: type | None = None, named: Iterable[Any] = (), written_here: Mapping[str, Any] = {}
    ):
        allow = tuple(allow) if isinstance(allow, Iterable) and not isinstance(allow, str | type) else (allow,)
        self._texts = frozenset(thing for thing in allow if isinstance(thing, str))
        given = {path_of(thing): thing for thing in allow if not isinstance(thing, str)}
        self.given = tuple(given)
        self._known = {**written_here, **_registered, **{path_of(thing): thing for thing in named}, **given}
        self._moved = _by_qualified_name(given)
        if own is not None:
            with contextlib.suppress(ValueError):
                self._known[path_of(own)] = own

    def allows_text(self, text: str) -> bool:
        """Whether the caller has allowed the code with this name, such as ``"my_module:MyEnv"``."""
        return text in self._texts

    def load(self, path: Any, *, what: str, base: type | None = None, expected: Iterable[str] = ()) -> Any:
        """Returns the class or function for a text ``"module:Qualified.Name"``.

        Args:
            path: The text.
            what: Name of the object that needs it, for messages.
            base: Required base class; None for any class, or a function that the caller allowed.
            expected: Without `base`, classes as text: the running script's subclasses of these are found.

        Raises:
            ValueError: If `path` has another form, or the class or function is not allowed, does not exist, or is no
                subclass of `base`.
        """
        if not isinstance(path, str) or len(path) > _MAX_LENGTH or not _PATH.fullmatch(path):
            shown = repr(path)[:100]
            raise ValueError(
                f"{what} names the class {shown}, which is not in the form 'module:Name': the checkpoint is damaged. "
                f"Load an unchanged copy."
            )
        bases = {path_of(base)} if base is not None else {*expected}
        found = self._known[path] if path in self._known else _extension_in_main(path, bases)
        if found is None:
            found = self._moved.get(path.partition(":")[2]) or self._own(path, what)
        if base is not None and not (isinstance(found, type) and issubclass(found, base)):
            raise ValueError(
                f"{what} names {path!r}, which is not a subclass of {base.__name__}: the checkpoint is damaged, or "
                f"stores another kind of object. Load a checkpoint that stores a {base.__name__}."
            )
        return found

    def _own(self, path: str, what: str) -> type:
        module_name, _, qualname = path.partition(":")
        parts = module_name.split(".")
        if parts[0] != PACKAGE or "__main__" in parts:
            name = qualname.split(".")[-1]
            raise NotAllowedError(
                f"{what} needs {path!r}, which is not part of {PACKAGE}. If you trust it, use "
                f"from_checkpoint(path, allow=[{name}]), or call {PACKAGE}.utils.checkpoints.register_class({name}) "
                f"first. For an Algorithm, from_checkpoint(path, config=config) with {name} in the config also works."
            )
        try:
            found: Any = importlib.import_module(module_name)
            for part in qualname.split("."):
                found = vars(found)[part]
        except (ImportError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(
                f"{what} needs {path!r}, which this release of {PACKAGE} does not have. Load the checkpoint with the "
                f"release that wrote it."
            ) from error
        if path in _registered:  # functions, by the module that has just been imported
            return _registered[path]
        # What such a module has imported from elsewhere is none of its own.
        if not isinstance(found, type) or found.__module__ != module_name or found.__qualname__ != qualname:
            raise ValueError(
                f"{what} names {path!r}, which is no class of {PACKAGE}: the checkpoint is damaged. Load an "
                f"unchanged copy."
            )
        return found


def _by_qualified_name(given: Mapping[str, Any]) -> dict[str, Any]:
    """Shortens the keys of ``{"module:Name": class or function}`` to ``"Name"``, to find code that was moved to another
    module. Names that several modules share are left out.
    """
    names = [path.partition(":")[2] for path in given]
    return {name: thing for name, thing in zip(names, given.values(), strict=True) if names.count(name) == 1}


def _extension_in_main(path: str, bases: Collection[str]) -> type | None:
    """Finds a class that the running script defines, by its name ``"__main__:Name"``.

    Returns None if the script has no such class, or if the class is not a subclass of a class in `bases` (names
    ``"module:Name"``).

    Imports nothing, and reads no attribute that a module or class could compute.
    """
    module_name, _, qualname = path.partition(":")
    found: Any = sys.modules.get(module_name)
    if module_name != "__main__" or found is None:
        return None
    for part in qualname.split("."):
        found = vars(found).get(part) if isinstance(found, type | types.ModuleType) else None
    if not isinstance(found, type) or found.__module__ != module_name or found.__qualname__ != qualname:
        return None
    return found if any(f"{cls.__module__}:{cls.__qualname__}" in bases for cls in found.__mro__) else None
