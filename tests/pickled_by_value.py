"""Modules whose classes and functions travel to Ray's actors with their code, since actors cannot import them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any


@contextlib.contextmanager
def pickled_by_value(ray: Any, *modules: ModuleType) -> Iterator[None]:
    """Pickle what these modules define by value, and by name again afterwards.

    Args:
        ray: The fixture `ray_session`.
        *modules: Modules of tests.
    """
    for module in modules:
        ray.cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            ray.cloudpickle.unregister_pickle_by_value(module)
