"""Imports of deep-learning frameworks that may not be installed; this package uses JAX."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any


def try_import_jax(error: bool = False) -> tuple[ModuleType, ModuleType]:
    """Returns ``(jax, flax)``, which are always installed.

    Args:
        error: Has no effect.
    """
    return importlib.import_module("jax"), importlib.import_module("flax")


def try_import_torch(error: bool = False) -> tuple[ModuleType | None, Any]:
    """Returns ``(torch, torch.nn)`` if PyTorch is installed, else None and a placeholder. This package does not need
    PyTorch.

    Args:
        error: Raise if it is not installed.

    Returns:
        Without PyTorch: None, and a stand-in for ``torch.nn`` whose names may be base classes and annotations in a
        file; making an object of one raises an ImportError.

    Raises:
        ImportError: It is not installed, and `error`.
    """
    torch = _imported("torch", _NO_TORCH if error else None)
    return (None, _Absent("torch.nn")) if torch is None else (torch, torch.nn)


def try_import_tf(error: bool = False) -> tuple[ModuleType | None, ModuleType | None, int | None]:
    """Returns ``(tf.compat.v1, tf, major version)`` if TensorFlow is installed, else ``(None, None, None)``.

    Raises:
        ImportError: It is not installed, and `error`.
    """
    message = "TensorFlow is not installed. Networks and learners are JAX here."
    tf = _imported("tensorflow", message if error else None)
    return (None, None, None) if tf is None else (tf.compat.v1, tf, int(tf.__version__.partition(".")[0]))


def try_import_tfp(error: bool = False) -> ModuleType | None:
    """``tensorflow_probability``, if it is installed, else None.

    Raises:
        ImportError: It is not installed, and `error`.
    """
    message = "tensorflow_probability is not installed. Distributions are in jaxrl_stack.core.distribution."
    return _imported("tensorflow_probability", message if error else None)


def _imported(name: str, message: str | None) -> Any:
    """Imports a module. If it is not installed, raises ImportError with `message`, or returns None if `message` is
    None.
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        if message is None:
            return None
        raise ImportError(message) from None


def check_framework(function: str, framework: str | None) -> None:
    """Raises a ValueError for a framework other than JAX or its aliases."""
    if framework not in (None, "jax", "torch"):
        raise ValueError(f"{function}(framework={framework!r}): the only framework is 'jax'. Leave framework out.")


def convert_to_tensor(struct: Any, framework: str = "jax", device: Any = None) -> Any:
    """Converts all numbers and NumPy arrays in nested data (dicts, tuples and lists) to JAX arrays.

    Args:
        struct: Any nesting of dicts, tuples and lists.
        framework: "jax"; "torch" stands for it.
        device: A JAX device; None: the default one.
    """
    check_framework("convert_to_tensor", framework)
    import jax
    import jax.numpy as jnp

    arrays = jax.tree.map(jnp.asarray, struct)
    return arrays if device is None else jax.device_put(arrays, device)


_NO_TORCH = (
    "PyTorch is not installed. Modules, learners and distributions are JAX here: subclass "
    "jaxrl_stack.core.rl_module.RLModule and build its layers with flax.nnx."
)


class _Absent:
    """Placeholder for a module that is not installed; each class in it raises ImportError when it is instantiated."""

    def __init__(self, name: str):
        self.__name__ = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name.islower():
            return _Absent(f"{self.__name__}.{name}")

        def refuse(cls: type, *args: Any, **kwargs: Any) -> Any:
            raise ImportError(f"{cls.__name__} is a {self.__name__}.{name}, but {_NO_TORCH}")

        return type(name, (), {"__module__": self.__name__, "__new__": refuse})
