"""Misspelt names of packages: the error has the nearest name."""

from __future__ import annotations

import difflib
import importlib.abc
import sys
from collections.abc import Sequence
from types import ModuleType


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
