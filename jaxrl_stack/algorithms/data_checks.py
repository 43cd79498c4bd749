"""Checks of settings for recorded data: its paths, reader and file system."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from jaxrl_stack.algorithms.setting_checks import check_of, number

_STORES = ("gcs", "s3", "abs")


@check_of("str | list[str] | dict[str, float]")
def recorded_data(value: Any) -> str | None:
    paths = list(value) if isinstance(value, list | tuple | Mapping) else [value]
    weights = value.values() if isinstance(value, Mapping) else ()
    is_path = all(isinstance(path, str | os.PathLike) for path in paths)
    if is_path and all(number(above=0, finite=True)(weight) is None for weight in weights):
        return None
    return "a path, a list of paths, or a dict from path to a weight above 0"


@check_of("str | Callable[..., Any]")
def reader(value: Any) -> str | None:
    if isinstance(value, str) or callable(value):
        return None
    return "the name of a reader of ray.data, such as 'read_json', or a function of paths that returns a Ray Dataset"


@check_of("str | Any")
def file_system(value: Any) -> str | None:
    is_of_fsspec = any(base.__module__.startswith("fsspec") for base in type(value).__mro__)
    is_of_pyarrow = any(base.__module__.startswith("pyarrow") for base in type(value).__mro__)
    if value is None or value in _STORES or is_of_fsspec or is_of_pyarrow:
        return None
    return f"one of {', '.join(map(repr, _STORES))}, or a file system of pyarrow or fsspec"
