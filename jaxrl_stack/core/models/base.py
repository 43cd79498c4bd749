"""What encoders have in common."""

from __future__ import annotations

from typing import Any

from flax import nnx

ENCODER_OUT = "encoder_out"
ACTOR = "actor"
CRITIC = "critic"


class Encoder(nnx.Module):
    """Base of encoders, default ones and your own: ``{column: pytree [..., d]}`` -> ``{ENCODER_OUT: [..., latent]}``.

    Built in ``setup()`` of an RLModule, or by a ``ModelConfig`` of your own in a catalog.
    """

    def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Encode a batch's columns."""
        raise NotImplementedError(f"{type(self).__name__} does not override __call__(self, inputs).")
