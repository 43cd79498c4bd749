"""What encoders have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxrl_stack.core.columns import Columns

ENCODER_OUT = "encoder_out"
ACTOR = "actor"
CRITIC = "critic"


class Encoder(nnx.Module):
    """Base of encoders, default ones and your own: ``{column: pytree [..., d]}`` -> ``{ENCODER_OUT: [..., latent]}``.

    Built in ``setup()`` of an RLModule, or by a ``ModelConfig`` of your own in a catalog.
    """

    handles_resets = False
    """Whether it starts from its initial state where the column `RESETS` says so; see `RLModule.handles_resets`."""

    def get_initial_state(self) -> Any:
        """Recurrent state at the start of an episode: a dict of arrays without batch axis; {} = stateless."""
        return {}

    def has_inputs(self, inputs: dict[str, Any]) -> bool:
        """Whether a batch has all columns, and all keys of its observations, that the encoder reads."""
        return True

    def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Encode a batch's columns. With a recurrent state these are `[B, T, ...]`, with `STATE_IN` among them, and
        `STATE_OUT` is among what is returned."""
        raise NotImplementedError(f"{type(self).__name__} does not override __call__(self, inputs).")


def initial_state_of(encoder: Any) -> Any:
    """`Encoder.get_initial_state` of any module that serves as an encoder."""
    return encoder.get_initial_state() if isinstance(encoder, Encoder) else {}


def batched_state(state: Any, number: int) -> Any:
    """A state without batch axis for so many environments or sequences, ``[number, ...]``."""
    return jax.tree.map(lambda x: jnp.broadcast_to(jnp.asarray(x), (number, *jnp.shape(x))), state)


def as_sequences(columns: dict[str, Any]) -> dict[str, Any]:
    """What a module gets of steps ``[B, ...]``: with a recurrent state sequences of one step, ``[B, 1, ...]``."""
    return of_steps(columns, lambda x: x[:, None]) if Columns.STATE_IN in columns else columns


def of_steps(columns: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """With all columns changed but for the recurrent states, which belong to no step."""
    states = (Columns.STATE_IN, Columns.STATE_OUT)
    return {name: own if name in states else jax.tree.map(change, own) for name, own in columns.items()}


def state_out_of(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """``{STATE_OUT: state}`` of what an encoder or module returned; {} if that has none."""
    return {Columns.STATE_OUT: outputs[Columns.STATE_OUT]} if Columns.STATE_OUT in outputs else {}


def has_inputs(encoder: Any, inputs: dict[str, Any]) -> bool:
    """`Encoder.has_inputs` of any module that serves as an encoder."""
    return not isinstance(encoder, Encoder) or encoder.has_inputs(inputs)


def handles_resets(encoder: Any) -> bool:
    """`Encoder.handles_resets` of any module that serves as an encoder."""
    return isinstance(encoder, Encoder) and encoder.handles_resets
