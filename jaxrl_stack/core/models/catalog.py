"""Catalogs: which models and distributions fit a pair of spaces and a model config."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxrl_stack.core.distribution.jax_distribution import get_action_dist_cls_for_space
from jaxrl_stack.core.models.configs import MLPEncoderConfig, ModelConfig
from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig, as_model_config_dict, check_model_config

if TYPE_CHECKING:
    import gymnasium as gym
    from flax import nnx

    from jaxrl_stack.core.distribution.distribution import Distribution


class Catalog:
    """Builds an encoder for an observation space and names the distribution for an action space.

    Override a method to change what a default module is made of.

    Args:
        observation_space: Space of one observation as the module gets it.
        action_space: Space of one action.
        model_config_dict: Settings of `DefaultModelConfig` (a dict or an instance); missing ones get their
            defaults, and names of a custom module's own settings are kept.

    Attributes:
        model_config_dict: All settings.
        latent_dims: Shape of the encoder's output, `(width,)`. Changing it changes what heads expect.

    Raises:
        ValueError: If a space is None, or for what looks like a misspelt setting.
    """

    rows_are_independent = True
    """Whether what it builds computes each row by itself; see `RLModule.rows_are_independent`."""

    def __init__(
        self,
        observation_space: gym.Space | None,
        action_space: gym.Space | None,
        model_config_dict: Mapping[str, Any] | DefaultModelConfig | None = None,
    ):
        if observation_space is None or action_space is None:
            raise ValueError(
                f"{type(self).__name__} got observation_space={observation_space}, action_space={action_space}: it "
                "chooses networks by both, so pass both to the RLModule or its spec."
            )
        self.observation_space = observation_space
        self.action_space = action_space
        settings = as_model_config_dict(model_config_dict)
        check_model_config(settings, custom_settings=True)
        self.model_config_dict: dict[str, Any] = as_model_config_dict(DefaultModelConfig()) | settings
        self._latent_dims: tuple[int, ...] | None = None

    @functools.cached_property
    def encoder_config(self) -> ModelConfig:
        """Describes the encoder; made when first asked for."""
        return self.get_tokenizer_config(self.observation_space, self.model_config_dict)

    @property
    def latent_dims(self) -> tuple[int, ...]:
        return self.encoder_config.output_dims if self._latent_dims is None else self._latent_dims

    @latent_dims.setter
    def latent_dims(self, value: tuple[int, ...]) -> None:
        self._latent_dims = tuple(value)

    def build_encoder(self, framework: str = "jax", *, rngs: nnx.Rngs) -> Any:
        """The encoder: an `nnx.Module` `{OBS: [..., d]}` -> `{ENCODER_OUT: [..., latent]}`.

        Args:
            framework: "jax".
            rngs: Where the initial weights come from; in a module's `setup()`, `self.rngs`.
        """
        return self.encoder_config.build(framework, rngs=rngs)

    def get_action_dist_cls(self, framework: str = "jax") -> type[Distribution]:
        """The distribution class for the action space."""
        return get_action_dist_cls_for_space(self.action_space)

    def _head_settings(self) -> dict[str, Any]:
        """Arguments that the configs of all heads share: the `head_fcnet_*` settings."""
        settings = self.model_config_dict
        return {
            "input_dims": self.latent_dims,
            **hidden_layers(settings, "head_fcnet"),
            **layer_initializers(settings, "head_fcnet", "output"),
        }

    @classmethod
    def get_tokenizer_config(
        cls, observation_space: gym.Space | None, model_config_dict: Mapping[str, Any]
    ) -> ModelConfig:
        """Describes the encoder of one observation space.

        Args:
            observation_space: A Box of rank 1.
            model_config_dict: All settings of `DefaultModelConfig`.

        Raises:
            ValueError: For other spaces, and for settings of encoders that do not exist yet.
        """
        import gymnasium as gym

        settings = model_config_dict
        if settings["use_lstm"]:
            raise ValueError(
                "model_config use_lstm=True: the default encoders have no LSTM yet; use use_lstm=False, or "
                "write an RLModule with get_initial_state()."
            )
        shape = observation_space.shape if isinstance(observation_space, gym.spaces.Box) else None
        if shape is None or len(shape) != 1:
            raise ValueError(
                f"No default encoder for the observation space {observation_space}: flatten or one-hot "
                "encode it with the FlattenObservations env-to-module connector, or write your own RLModule, for "
                "images with convolutions (nnx.Conv)."
            )
        return MLPEncoderConfig(input_dims=shape, **hidden_layers(settings, "fcnet"))


def hidden_layers(settings: Mapping[str, Any], part: str) -> dict[str, Any]:
    """The settings of one part of the networks, such as "fcnet", as arguments of its config."""
    return {
        "hidden_layer_dims": list(settings[f"{part}_hiddens"]),
        "hidden_layer_activation": settings[f"{part}_activation"],
        "hidden_layer_use_layernorm": settings[f"{part}_use_layernorm"],
        "compute_dtype": settings["compute_dtype"],
        **layer_initializers(settings, part, "hidden"),
    }


def layer_initializers(settings: Mapping[str, Any], part: str, layer: str) -> dict[str, Any]:
    """The initializers of one part of the networks as arguments for its hidden or its output layers."""
    return {
        f"{layer}_layer_{ours}_initializer{suffix}": settings[f"{part}_{name}_initializer{given}"]
        for ours, name in (("weights", "kernel"), ("bias", "bias"))
        for suffix, given in (("", ""), ("_config", "_kwargs"))
    }
