"""Optional packages, imported inside of the functions that need them."""

from __future__ import annotations

import importlib
from typing import Any


def optional_import(module: str, *, purpose: str, install: str, package: str | None = None) -> Any:
    """Imports a module of an optional package and returns it. If the import fails, raises an ImportError that names the
    install command.

    Args:
        module: Full name of the module.
        purpose: Subject of the error's sentence, such as "Figures".
        install: Argument of ``pip install``, such as ``"jaxrl-stack[plots]"``.
        package: Name of the package; None for the first part of `module`.

    Raises:
        ImportError: If it cannot be imported; the message says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = package or module.partition(".")[0]
        raise ImportError(f"{purpose} needs {package} ({error}): pip install '{install}'.") from error
