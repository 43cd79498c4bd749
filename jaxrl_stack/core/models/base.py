"""Base class of encoders, and helpers for recurrent states and batches."""

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
    """Base class of encoders, for subclassing: maps columns ``{column: pytree [..., d]}`` to latents ``{ENCODER_OUT:
    [..., latent]}``.

    Build encoders in ``setup()`` of an RLModule, or by a custom ``ModelConfig`` in a catalog.
    """

    handles_resets = False
    """Whether the encoder restarts from its initial state where `RESETS` is True; see `RLModule.handles_resets`."""

    def get_initial_state(self) -> Any:
        """Returns the recurrent state at the start of an episode: a dict of arrays without batch axis, {} for a
        stateless encoder.
        """
        return {}

    def has_inputs(self, inputs: dict[str, Any]) -> bool:
        """Whether a batch has all columns and observation keys that the encoder reads."""
        return True

    def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Encodes a batch's columns. For a recurrent encoder, columns are `[B, T, ...]` and include `STATE_IN`, and the
        result includes `STATE_OUT`.
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not override __call__(self, inputs). Implement it: "
            "return {ENCODER_OUT: latents}."
        )


def initial_state_of(encoder: Any) -> Any:
    """Returns the initial recurrent state of an encoder; {} for other modules."""
    return encoder.get_initial_state() if isinstance(encoder, Encoder) else {}


def batched_state(state: Any, number: int) -> Any:
    """Repeats a recurrent state without batch axis for `number` environments or sequences, ``[number, ...]``."""
    return jax.tree.map(lambda x: jnp.broadcast_to(jnp.asarray(x), (number, *jnp.shape(x))), state)


def as_sequences(columns: dict[str, Any]) -> dict[str, Any]:
    """Converts steps ``[B, ...]`` to sequences of one step, ``[B, 1, ...]``, which recurrent modules need. A batch
    without the column ``STATE_IN`` (recurrent states) is returned unchanged.
    """
    return of_steps(columns, lambda x: x[:, None]) if Columns.STATE_IN in columns else columns


def of_steps(columns: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Applies the function `change` to all columns of a batch except recurrent states, which have one entry per
    sequence instead of per step.
    """
    states = (Columns.STATE_IN, Columns.STATE_OUT)
    return {name: own if name in states else jax.tree.map(change, own) for name, own in columns.items()}


def state_out_of(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns ``{STATE_OUT: state}`` from the outputs of an encoder or module; {} if the outputs contain no recurrent
    state.
    """
    return {Columns.STATE_OUT: outputs[Columns.STATE_OUT]} if Columns.STATE_OUT in outputs else {}


def has_inputs(encoder: Any, inputs: dict[str, Any]) -> bool:
    """Whether a batch has all columns and observation keys that an encoder reads. True for modules that are not
    `Encoder`s, because they may lack the method `has_inputs`.
    """
    return not isinstance(encoder, Encoder) or encoder.has_inputs(inputs)


def handles_resets(encoder: Any) -> bool:
    """Whether an encoder restarts from its initial state in the steps that the column ``RESETS`` marks; False for
    modules that are not `Encoder`s."""
    return isinstance(encoder, Encoder) and encoder.handles_resets
