"""Lazy imports of a package's names: a module is imported when one of its names is first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_names(
    package: str,
    modules: Mapping[str, tuple[str, ...]],
    elsewhere: Callable[[str, str, Sequence[str]], Any] | None = None,
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns the functions ``__getattr__`` and ``__dir__`` of a package that exports names of other modules.

    The package assigns the two functions to these names. Each module is imported only when one of its names is used,
    because imports are slow.

    Args:
        package: The package's ``__name__``.
        modules: ``{module, relative to the package: names that it defines}``. Modules inside of the package also become
            attributes.
        elsewhere: Function for all other names, called with `package`, the name, and the list of known names. Returns
            the object with this name, or raises an error.
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
