"""Conversion of values and classes to plain data, by functions with RLlib's names. Spaces have another JSON format than
in RLlib.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl_stack.utils import spaces
from jaxrl_stack.utils.error import NotSerializable

NOT_SERIALIZABLE = "__not_serializable__"

space_to_dict = gym_space_to_dict = spaces.space_to_dict
space_from_dict = gym_space_from_dict = spaces.space_from_dict


def convert_numpy_to_python_primitives(obj: Any) -> Any:
    """Converts NumPy and JAX values in dicts, lists and tuples to Python numbers, strings and lists."""
    if isinstance(obj, Mapping):
        return {key: convert_numpy_to_python_primitives(value) for key, value in obj.items()}
    if isinstance(obj, tuple | list):
        values = [convert_numpy_to_python_primitives(value) for value in obj]
        return values if isinstance(obj, list) else tuple(values)
    # Arrays and NumPy's scalars have it; of nothing else here.
    return obj.tolist() if hasattr(obj, "dtype") and hasattr(obj, "tolist") else obj


def check_if_args_kwargs_serializable(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises NotSerializable if an argument cannot be pickled, and so cannot be sent to other processes.

    Raises:
        NotSerializable: Names the argument that cannot.
    """
    dumps = importlib.import_module("ray.cloudpickle").dumps
    for name, value in [*enumerate(args), *kwargs.items()]:
        try:
            dumps(value)
        except Exception as error:
            what = f"argument {name}" if isinstance(name, int) else f"argument {name}="
            raise NotSerializable(
                f"{what}{value!r} cannot be sent to another process: {error}. Replace it by an object that pickle can "
                "copy."
            ) from error


def serialize_type(type_: type | str) -> str:
    """Converts a class to ``"module.Class"``; returns a str unchanged."""
    return type_ if isinstance(type_, str) else f"{type_.__module__}.{type_.__qualname__}"


def deserialize_type(module: str | type, error: bool = False) -> Any:
    """Imports the class with the name ``"module.Class"``. Call this function only for names from trusted sources.

    Checkpoints are not read with it; see `jaxrl_stack.utils.checkpoints.register_class`.

    Args:
        module: The text; a class stays as it is.
        error: Raise if there is no such class, instead of returning the text.

    Raises:
        ValueError: It is neither a class nor a text, or there is no such class and `error`.
    """
    if isinstance(module, type):
        return module
    if not isinstance(module, str):
        raise ValueError(f"deserialize_type({module!r}): must be a class or a text 'module.Class'.")
    module_name, _, name = module.rpartition(".")
    try:
        return getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as reason:
        if error:
            raise ValueError(
                f"deserialize_type({module!r}): this class cannot be imported ({reason}). Install its module, or add "
                "its folder to PYTHONPATH."
            ) from reason
        return module
