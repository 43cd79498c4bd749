"""Calls functions right after a watched module is imported. This code needs only the standard library."""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class AfterImport(importlib.abc.MetaPathFinder):
    """Import finder that calls a function after certain modules were imported. It is the first finder in
    ``sys.meta_path``, and finds the modules with the other finders.

    Args:
        callbacks: Full name of a module -> function to call, without arguments, after its code has run. Its errors are
            raised by the import of that module.
    """

    def __init__(self, callbacks: Mapping[str, Callable[[], None]]):
        self._callbacks = dict(callbacks)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Finds a module whose import must be followed by a function call, and returns the module's spec.

        Finds the module with the other finders in ``sys.meta_path``. Changes the loader of the spec that they find, so
        that the loader calls the module's function in `callbacks` after the module's code has run. Returns None if the
        module is not in `callbacks`, or is not found.
        """
        callback = self._callbacks.get(fullname)
        if callback is None:
            return None
        for finder in sys.meta_path:
            # Old finders have no find_spec; the import system passes over them, too.
            find = getattr(finder, "find_spec", None)
            spec = None if finder is self or find is None else find(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    _call_after_execution(spec.loader, callback)
                return spec
        return None


def _call_after_execution(loader: Any, callback: Callable[[], None]) -> None:
    # On the instance, which serves this one module: it stays the loader of that module.
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        del loader.exec_module
        callback()

    loader.exec_module = exec_module
