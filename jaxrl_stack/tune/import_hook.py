"""Code that runs right after a certain module is imported. Needs nothing but the standard library."""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class AfterImport(importlib.abc.MetaPathFinder):
    """Stands at the front of ``sys.meta_path`` and passes every import on; an import of a watched module calls back.

    Args:
        callbacks: Full name of a module -> what to call, without arguments, when its code has run. Whatever it raises,
            the import of that module raises.
    """

    def __init__(self, callbacks: Mapping[str, Callable[[], None]]):
        self._callbacks = dict(callbacks)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of the other finders; for a watched module with a loader that calls back."""
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
