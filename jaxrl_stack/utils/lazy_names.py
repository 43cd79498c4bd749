"""Names of a package that are imported when they are asked for."""

from __future__ import annotations

import difflib
import importlib
import importlib.abc
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any


def lazy_names(
    package: str,
    modules: Mapping[str, tuple[str, ...]],
    elsewhere: Callable[[str, str, Sequence[str]], Any] | None = None,
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__, __dir__`` of a package whose names live in modules that are expensive to import.

    Args:
        package: The package's ``__name__``.
        modules: Module, relative to the package -> names that it defines. Those in the package are attributes, too.
        elsewhere: Asked with `package`, a name that none of them has, and the names that they have: returns what the
            name stands for, or raises.
    """
    homes = {name: f".{module}" for module, names in modules.items() for name in names}
    children = {module.partition(".")[0] for module in modules if not module.startswith(".")}

    def get(name: str) -> Any:
        if name in homes:
            return getattr(importlib.import_module(homes[name], package), name)
        if name in children:
            return importlib.import_module(f"{package}.{name}")
        if elsewhere is not None:
            return elsewhere(package, name, [*homes, *children])
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes, *children})

    return get, listed


class NearNameError(ImportError):
    """A name that a package does not have, with the one that it has and that may be meant."""


class NearNames(importlib.abc.MetaPathFinder):
    """Comes after all other finders, and answers misspelt names of packages with the nearest name that there is.

    ``from package import name`` looks for a module of a name that is no attribute: so it is asked, while ``hasattr``
    stays False.

    Args:
        package: The package that it answers for, with all packages in it.
    """

    def __init__(self, package: str):
        self._package = package

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """No spec of any module.

        Raises:
            NearNameError: If the package has a name like that of the module.
        """
        parent, _, name = fullname.rpartition(".")
        if parent.partition(".")[0] != self._package or name.startswith("_") or parent not in sys.modules:
            return
        known = [known for known in dir(sys.modules[parent]) if not known.startswith("_")]
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
        if near and name not in known:
            raise NearNameError(
                f"There is no {name} in {parent}: did you mean {near[0]} (from {parent} import {near[0]})?",
                name=fullname,
            )
