"""Networks of PPO's default module."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from jaxrl_stack.core.models.catalog import Catalog
from jaxrl_stack.core.models.configs import ActorCriticEncoderConfig, MLPHeadConfig

if TYPE_CHECKING:
    from flax import nnx


class PPOCatalog(Catalog):
    """Catalog of an actor-critic encoder, a policy head and a value head.

    The heads take the latent of `latent_dims`, and follow all `head_fcnet_*` settings, initializers included.

    Args:
        observation_space, action_space, model_config_dict: See `Catalog`.
    """

    rows_are_independent = True
    handles_resets = True

    @functools.cached_property
    def actor_critic_encoder_config(self) -> ActorCriticEncoderConfig:
        """Config of the encoder, or of the two encoders; created at the first access."""
        shared = self.model_config_dict["vf_share_layers"]
        return ActorCriticEncoderConfig(base_encoder_config=self.encoder_config, shared=shared)

    def build_actor_critic_encoder(self, framework: str = "jax", *, rngs: nnx.Rngs) -> Any:
        """Builds the encoder: `{OBS: [..., d]}` -> `{ENCODER_OUT: {ACTOR: [..., n], CRITIC: [..., n]}}`."""
        return self.actor_critic_encoder_config.build(framework, rngs=rngs)

    def build_encoder(self, framework: str = "jax", *, rngs: nnx.Rngs) -> Any:
        """Raises a ValueError: use `build_actor_critic_encoder`."""
        raise ValueError("PPOCatalog has no build_encoder(): use build_actor_critic_encoder().")

    def build_pi_head(self, framework: str = "jax", *, rngs: nnx.Rngs) -> Any:
        """Builds the policy head `[..., latent]` -> action distribution inputs.

        Raises:
            ValueError: For `free_log_std=True` with an action space that is not a Box.
        """
        return self._policy_head(framework, rngs)

    def build_vf_head(self, framework: str = "jax", *, rngs: nnx.Rngs) -> Any:
        """Builds the value head `[..., latent]` -> `[..., 1]`."""
        return MLPHeadConfig(**self._head_settings(), output_layer_dim=1).build(framework, rngs=rngs)
