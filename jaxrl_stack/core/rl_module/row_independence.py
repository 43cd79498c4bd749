"""What the class of a module says of it: that it computes each row of a batch by itself, so that a batch may be split
up and padded; that its sequences may have starts of episodes in them; what the agents of a step share."""

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
    """Whether what a module computes for a row is the same whatever other rows its batch has.

    So it is where its class and its catalog say so (`RLModule.rows_are_independent`), and no activation function of a
    user could look across rows.
    """
    activations = [value for name, value in module.model_config.items() if name.endswith("activation")]
    return _say(_parts(module), "rows_are_independent") and not any(map(_is_of_a_user, activations))


def handles_resets(module: RLModule) -> bool:
    """Whether sequences that a module with a recurrent state learns from may have starts of episodes in them.

    So they may where its class and its catalog say so (`RLModule.handles_resets`), and the encoder that it has.
    """
    encoder = vars(module).get("encoder")
    return _say(_parts(module), "handles_resets") and (encoder is None or encoder_handles_resets(encoder))


def shared_observations(module: RLModule) -> tuple[str, ...]:
    """Keys of observations that are the same for all agents, as its class says (see `ValueFunctionAPI`)."""
    return _says_so(type(module), "shared_observations") or ()


def can_be_split(module: RLModule) -> bool:
    """Whether a batch gives the same outputs in several forward passes as in one: its rows are independent, and the
    module has no random streams, from which each pass would draw anew."""
    return rows_are_independent(module) and not nnx.to_flat_state(nnx.state(module, nnx.RngState))


def _parts(module: RLModule) -> list[type]:
    return [type(module), *([] if module.catalog is None else [type(module.catalog)])]


def _say(classes: list[type], name: str) -> bool:
    return all(_says_so(cls, name) for cls in classes)


def _says_so(cls: type, name: str) -> Any:
    """What the class says that is also the last one to define a function; False if there is none."""
    for kind in cls.__mro__:
        if name in vars(kind):
            return vars(kind)[name]
        if any(isinstance(found, _METHODS) for found in vars(kind).values()):
            return False
    return False


def _is_of_a_user(activation: object) -> bool:
    return callable(activation) and getattr(activation, "__module__", "").partition(".")[0] not in ("jax", "flax")
