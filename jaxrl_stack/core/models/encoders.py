"""Encoders: from a batch's columns to latent features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.models.base import ACTOR, CRITIC, ENCODER_OUT
from jaxrl_stack.core.models.mlp import MLP


class MLPEncoder(MLP):
    """An MLP over flat observations: `{OBS: [..., d]}` -> `{ENCODER_OUT: [..., latent]}`."""

    def __call__(self, inputs: dict[str, Any]) -> dict[str, jax.Array]:  # type: ignore[override]
        return {ENCODER_OUT: super().__call__(inputs[Columns.OBS])}


class ActorCriticEncoder(nnx.Module):
    """Latents for the policy and for the value function, from one encoder or from one each.

    Its encoders are the attribute `shared`, or the attributes `actor` and `critic`.

    Args:
        build: Makes one encoder.
        shared: One encoder for both.
        inference_only: Leave the critic's encoder out.
    """

    def __init__(self, build: Callable[[], Any], *, shared: bool, inference_only: bool = False):
        self.is_shared = shared
        if shared:
            self.shared = build()
        else:
            self.actor = build()
            if not inference_only:
                self.critic = build()

    def __call__(self, inputs: dict[str, Any], critic: bool = True) -> dict[str, dict[str, jax.Array]]:
        """`{ENCODER_OUT: {ACTOR: [..., latent], CRITIC: [..., latent]}}`; CRITIC only if `critic`."""
        if self.is_shared:
            latent = self.shared(inputs)[ENCODER_OUT]
            return {ENCODER_OUT: {ACTOR: latent, CRITIC: latent} if critic else {ACTOR: latent}}
        latents = {ACTOR: self.actor(inputs)[ENCODER_OUT]}
        if critic:
            latents[CRITIC] = self.critic(inputs)[ENCODER_OUT]
        return {ENCODER_OUT: latents}

    def critic_latent(self, inputs: dict[str, Any]) -> jax.Array:
        """The latent for the value function alone, `[..., latent]`."""
        encoder = self.shared if self.is_shared else self.critic
        return encoder(inputs)[ENCODER_OUT]
