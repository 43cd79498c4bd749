"""Whether a module computes each row of a batch by itself, so that a batch may be split up and padded."""

from __future__ import annotations

import functools
from types import FunctionType
from typing import TYPE_CHECKING

from flax import nnx

if TYPE_CHECKING:
    from jaxrl_stack.core.rl_module.rl_module import RLModule

_METHODS = (FunctionType, property, functools.cached_property, staticmethod, classmethod)


def rows_are_independent(module: RLModule) -> bool:
    """Whether what a module computes for a row is the same whatever other rows its batch has.

    So it is where its class and its catalog say so (`RLModule.rows_are_independent`), and no activation function of a
    user could look across rows.
    """
    parts = [type(module), *([] if module.catalog is None else [type(module.catalog)])]
    activations = [value for name, value in module.model_config.items() if name.endswith("activation")]
    return all(map(_says_so, parts)) and not any(map(_is_of_a_user, activations))


def can_be_split(module: RLModule) -> bool:
    """Whether a batch gives the same outputs in several forward passes as in one: its rows are independent, and the
    module has no random streams, from which each pass would draw anew."""
    return rows_are_independent(module) and not nnx.to_flat_state(nnx.state(module, nnx.RngState))


def _says_so(cls: type) -> bool:
    """What the class says that is also the last one to define a function; False if there is none."""
    for kind in cls.__mro__:
        if "rows_are_independent" in vars(kind):
            return vars(kind)["rows_are_independent"]
        if any(isinstance(found, _METHODS) for found in vars(kind).values()):
            return False
    return False


def _is_of_a_user(activation: object) -> bool:
    return callable(activation) and getattr(activation, "__module__", "").partition(".")[0] not in ("jax", "flax")
