"""Helpers that import optional game packages. As in RLlib, `EnvContext` can be imported from here, too, and the
episode buffer `InfiniteLookbackBuffer` from the submodule `infinite_lookback_buffer`.
"""

from __future__ import annotations

from typing import Any

from jaxrl_stack.env.env_context import EnvContext as EnvContext  # RLlib's path, too
from jaxrl_stack.utils.optional_packages import optional_import


def try_import_pyspiel(error: bool = False) -> Any:
    """Imports OpenSpiel.

    Args:
        error: Raise if OpenSpiel is not installed.

    Returns:
        The module `pyspiel`; None if it cannot be imported.

    Raises:
        ImportError: With `error`: it is not installed; says how to install it.
    """
    return _tried("pyspiel", error)


def try_import_open_spiel(error: bool = False) -> Any:
    """Imports OpenSpiel's Python package; see `try_import_pyspiel`."""
    return _tried("open_spiel", error)


def _tried(module: str, error: bool) -> Any:
    try:
        return optional_import(
            module, purpose="A game of OpenSpiel", install="jaxrl-stack[open_spiel]", package="open_spiel"
        )
    except ImportError:
        if error:
            raise
        return None


__all__ = ["try_import_open_spiel", "try_import_pyspiel"]
