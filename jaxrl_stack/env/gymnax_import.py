"""Import of gymnax without the plotting libraries that its environments import."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

_PLOTTING = ("matplotlib", "matplotlib.pyplot", "matplotlib.colors", "seaborn")


class _Deferred(types.ModuleType):
    """Placeholder for the module of a plotting library. The first access to an attribute imports the library. Only
    gymnax gets these placeholders.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def import_gymnax() -> Any:
    """Imports gymnax, including its environment ids, `make` and `register`, without plotting libraries; returns the
    module.

    Some of its environments import matplotlib and seaborn (and with it pandas and scipy.stats) for rendering. This
    takes more than a second, most of the import. Here they get placeholders, which import the libraries when something
    is rendered. Afterwards, `sys.modules` does not contain the placeholders.
    """
    if "gymnax" not in sys.modules:
        deferred = {name: _Deferred(name) for name in _PLOTTING if name not in sys.modules}
        if "matplotlib" in deferred:
            # `from matplotlib import colors` asks a package for its path, and then for the attribute.
            children = {name.partition(".")[2]: module for name, module in deferred.items() if "." in name}
            vars(deferred["matplotlib"]).update(children, __path__=[])
        sys.modules.update(deferred)
        try:
            importlib.import_module("gymnax")
        finally:
            for name, module in deferred.items():
                if sys.modules.get(name) is module:
                    del sys.modules[name]
    return sys.modules["gymnax"]
