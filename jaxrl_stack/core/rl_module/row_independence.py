"""Properties that a module's class declares: independent rows, handling of resets, observations shared by agents.

If the rows of a batch are independent, the batch may be split and padded. A module that handles resets processes
training sequences in which episodes start. Shared observations are equal for all agents of a step.
"""

from __future__ import annotations

import functools
from types import FunctionType
from typing import TYPE_CHECKING, Any

from flax import nnx

from jaxrl_stack.core.models.base import handles_resets as encoder_handles_resets

if TYPE_CHECKING:
    from jaxrl_stack.core.rl_module.rl_module import RLModule

_METHODS = (FunctionType, property, functools.cached_property, staticmethod, classmethod)


def rows_are_independent(module: RLModule) -> bool:
    """Whether a module's outputs for a row are independent of the other rows of the batch.

    True if its class and its catalog declare it (`RLModule.rows_are_independent`), and no activation function comes
    from the user, which could combine rows.
    """
    activations = [value for name, value in module.model_config.items() if name.endswith("activation")]
    return _say(_parts(module), "rows_are_independent") and not any(map(_is_of_a_user, activations))


def handles_resets(module: RLModule) -> bool:
    """Whether a recurrent module correctly processes training sequences in which a new episode starts.

    True if its class and its catalog declare it (`RLModule.handles_resets`), and its encoder, if any.
    """
    encoder = vars(module).get("encoder")
    return _say(_parts(module), "handles_resets") and (encoder is None or encoder_handles_resets(encoder))


def shared_observations(module: RLModule) -> tuple[str, ...]:
    """Returns the observation keys whose values are equal for all agents, as the module's class declares (see
    `ValueFunctionAPI`).
    """
    return _says_so(type(module), "shared_observations") or ()


def can_be_split(module: RLModule) -> bool:
    """Whether a module can process a batch in several parts (along the batch axis): the outputs equal the outputs of
    one forward pass on the whole batch.

    True if rows are independent, and the module has no random streams, from which each pass would draw again.
    """
    return rows_are_independent(module) and not nnx.to_flat_state(nnx.state(module, nnx.RngState))


def _parts(module: RLModule) -> list[type]:
    return [type(module), *([] if module.catalog is None else [type(module.catalog)])]


def _say(classes: list[type], name: str) -> bool:
    return all(_says_so(cls, name) for cls in classes)


def _says_so(cls: type, name: str) -> Any:
    """Returns the value of a class attribute that declares a property of a module, such as ``rows_are_independent``.

    Returns False if no class declares the property, or if a subclass of the declaring class defines a method.
    """
    for kind in cls.__mro__:
        if name in vars(kind):
            return vars(kind)[name]
        if any(isinstance(found, _METHODS) for found in vars(kind).values()):
            return False
    return False


def _is_of_a_user(activation: object) -> bool:
    return callable(activation) and getattr(activation, "__module__", "").partition(".")[0] not in ("jax", "flax")
