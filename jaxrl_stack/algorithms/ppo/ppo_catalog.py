"""Networks of PPO's default module."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from jaxrl_stack.core.models.catalog import Catalog
from jaxrl_stack.core.models.configs import ActorCriticEncoderConfig, MLPHeadConfig, ModelConfig
from jaxrl_stack.core.observation_keys import OBSERVATION_KEYS, VALUE_OBS_KEY

if TYPE_CHECKING:
    from flax import nnx


class PPOCatalog(Catalog):
    """Catalog of an actor-critic encoder, a policy head and a value head.

    The input of a head is an encoder's output, of shape `latent_dims`. All `head_fcnet_*` settings, including
    initializers, apply to the heads. If `policy_obs_key` and `value_obs_key` select different observation keys, the
    value function has a separate encoder with its own inputs.

    Args:
        observation_space, action_space, model_config_dict: See `Catalog`.
    """

    rows_are_independent = True
    handles_resets = True
    observation_key_settings = OBSERVATION_KEYS

    @functools.cached_property
    def critic_encoder_config(self) -> ModelConfig | None:
        """Config of the value function's encoder, if this encoder reads other observation keys than the policy's
        encoder; None if `encoder_config` describes both encoders.
        """
        keys = self.observed_keys
        return None if keys is None or len(set(keys.values())) == 1 else self._encoder_config_of(VALUE_OBS_KEY)

    @functools.cached_property
    def actor_critic_encoder_config(self) -> ActorCriticEncoderConfig:
        """Config of the encoders of policy and value function, created at the first access.

        With ``vf_share_layers=True``, policy and value function share one encoder; otherwise, each has a separate one.
        """
        return ActorCriticEncoderConfig(
            base_encoder_config=self.encoder_config,
            critic_encoder_config=self.critic_encoder_config,
            shared=self.model_config_dict["vf_share_layers"],
        )

    def build_actor_critic_encoder(self, framework: str = "jax", *, rngs: nnx.Rngs) -> Any:
        """Builds the encoder. It maps observations `{OBS: ...}` to latents for the policy head and the value head,
        `{ENCODER_OUT: {ACTOR: [..., latent], CRITIC: [..., latent]}}`.
        """
        return self.actor_critic_encoder_config.build(framework, rngs=rngs)

    def build_encoder(self, framework: str = "jax", *, rngs: nnx.Rngs) -> Any:
        """Always raises a ValueError, because PPO needs latents for both the policy and the value function. Use
        `build_actor_critic_encoder`.
        """
        raise ValueError("PPOCatalog has no build_encoder(): use build_actor_critic_encoder().")

    def build_pi_head(self, framework: str = "jax", *, rngs: nnx.Rngs) -> Any:
        """Builds the policy head `[..., latent]` -> action distribution inputs.

        Raises:
            ValueError: For `free_log_std=True` with an action space that is not a Box.
        """
        return self._policy_head(framework, rngs)

    def build_vf_head(self, framework: str = "jax", *, rngs: nnx.Rngs) -> Any:
        """Builds the value head `[..., latent]` -> `[..., 1]`."""
        settings, critic = self._head_settings(), self.critic_encoder_config
        if critic is not None and self._latent_dims is None:
            settings["input_dims"] = critic.output_dims
        return MLPHeadConfig(**settings, output_layer_dim=1).build(framework, rngs=rngs)
