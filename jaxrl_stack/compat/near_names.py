"""Import errors for misspelt names in this package; each error suggests the most similar name."""

from __future__ import annotations

import difflib
import importlib.abc
import sys
from collections.abc import Sequence
from types import ModuleType


class NearNameError(ImportError):
    """Import error for a misspelt name in this package; it suggests the most similar name."""


class NearNames(importlib.abc.MetaPathFinder):
    """Import finder that raises an error with the nearest name if a name of this package is misspelt; last in
    ``sys.meta_path``.

    ``from package import name`` searches for a module if the name is not an attribute, which calls this finder, while
    ``hasattr`` stays False.

    Args:
        package: Package for which it answers, with all packages in it.
    """

    def __init__(self, package: str):
        self._package = package

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Raises an error for a missing module if its parent package or module contains a similar name.

        Handles only imports of modules in the finder's package. Otherwise returns None, never a spec.

        Raises:
            NearNameError: If the parent contains a name similar to the module's.
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
