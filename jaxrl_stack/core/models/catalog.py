"""Catalogs, which choose encoders, heads and distributions for an observation space, an action space and a model
config.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.default_observations import (
    check_action_mask,
    has_images,
    is_image,
    is_looked_up,
    observations_space,
)
from jaxrl_stack.core.distribution.jax_distribution import DiagGaussian, get_action_dist_cls_for_space
from jaxrl_stack.core.models.configs import (
    CNNEncoderConfig,
    FreeLogStdMLPHeadConfig,
    MLPEncoderConfig,
    MLPHeadConfig,
    ModelConfig,
    MultiStreamEncoderConfig,
    ObservationKeysEncoderConfig,
    RecurrentEncoderConfig,
)
from jaxrl_stack.core.models.filters import default_filters
from jaxrl_stack.core.observation_keys import POLICY_OBS_KEY, check_observation_keys, observed_keys, selected_space
from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig, as_model_config_dict, check_model_config
from jaxrl_stack.utils.notices import notice_once

if TYPE_CHECKING:
    from flax import nnx

    from jaxrl_stack.core.distribution.distribution import Distribution

_RAW_ATARI = (210, 160, 3)


class Catalog:
    """Builds the encoder for an observation space, and selects the action distribution for an action space.

    Override a method to change the networks of a default module.

    Args:
        observation_space: Space of one observation as the module receives it; with an action mask
            ``Dict(action_mask=..., observations=...)``.
        action_space: Space of one action.
        model_config_dict: Settings of `DefaultModelConfig` (a dict or an instance); missing settings get their
            defaults, and additional settings of a custom module are kept.

    Attributes:
        model_config_dict: All settings.
        latent_dims: Shape of the encoder's output, `(width,)`; assign a shape to build heads for a different width.
        observed_keys: ``{"policy_obs_key": keys, ...}``, keys of Dict observations that the networks read; None: all
            keys.

    Raises:
        ValueError: If a space is None, an action mask does not fit the actions, a setting seems to be misspelt, or a
            setting selects keys that observations do not have or that the networks cannot select.
    """

    rows_are_independent = True
    """Whether the built networks compute each row independently; see `RLModule.rows_are_independent`."""
    handles_resets = True
    """Whether the built networks follow the column ``RESETS``; see `RLModule.handles_resets`."""
    encodes_actions = False
    """Whether the catalog also builds an encoder of actions, which follows the ``fcnet_*`` settings."""
    observation_key_settings: tuple[str, ...] = ()
    """Settings that select keys of Dict observations and that the networks read: some of ``"policy_obs_key"``, which
    `encoder_config` follows, and ``"value_obs_key"``."""

    def __init__(
        self,
        observation_space: gym.Space | None,
        action_space: gym.Space | None,
        model_config_dict: Mapping[str, Any] | DefaultModelConfig | None = None,
    ):
        if observation_space is None or action_space is None:
            raise ValueError(
                f"{type(self).__name__} got observation_space={observation_space}, action_space={action_space}, but "
                "needs both spaces to choose networks. Pass both to the RLModule or the RLModuleSpec."
            )
        self.observation_space = observation_space
        self.action_space = action_space
        settings = as_model_config_dict(model_config_dict)
        check_model_config(settings, custom_settings=True)
        self.model_config_dict: dict[str, Any] = as_model_config_dict(DefaultModelConfig()) | settings
        check_action_mask(observation_space, action_space)
        check_observation_keys(self.model_config_dict, self.observation_key_settings, type(self).__name__)
        self.observed_keys = observed_keys(
            observations_space(observation_space), self.model_config_dict, self.observation_key_settings
        )
        self._latent_dims: tuple[int, ...] | None = None
        hiddens = self.model_config_dict["fcnet_hiddens"]
        is_set = list(hiddens or ()) != DefaultModelConfig().fcnet_hiddens
        if is_set and not self.encodes_actions and is_image(observations_space(observation_space)):
            notice_once(
                f"model_config fcnet_hiddens={hiddens!r} has no effect: observations are images, which convolutions "
                "encode. Set head_fcnet_hiddens for layers after them."
            )
        if self.model_config_dict["conv_filters"] is not None and not has_images(observation_space):
            notice_once(
                f"model_config conv_filters={self.model_config_dict['conv_filters']!r} has no effect: no part of the "
                f"observation space {observation_space} is an image, [height, width, channels]."
            )

    @functools.cached_property
    def encoder_config(self) -> ModelConfig:
        """Config of the policy's encoder, created at the first access. The encoder's input contains no action mask.

        With ``use_lstm``, an LSTM follows the encoder of `get_tokenizer_config`.
        """
        return self._encoder_config_of(POLICY_OBS_KEY)

    def _encoder_config_of(self, setting: str) -> ModelConfig:
        """Returns the config of an encoder, which may read only some keys of the observations.

        If the model config selects observation keys, the encoder reads the keys that `setting` (``"policy_obs_key"`` or
        ``"value_obs_key"``) selects, or all keys if this setting is None. Otherwise the encoder reads complete
        observations.
        """
        settings, space = self.model_config_dict, observations_space(self.observation_space)
        if self.observed_keys is None:
            tokenizer = self.get_tokenizer_config(space, settings)
        else:
            assert isinstance(space, gym.spaces.Dict)
            selected = gym.spaces.Dict({key: space[key] for key in self.observed_keys[setting]})
            tokenizer = ObservationKeysEncoderConfig(
                base_encoder_config=self.get_tokenizer_config(selected_space(selected), settings),
                observation_space=selected,
            )
        return _recurrent_encoder_config(tokenizer, settings) if settings["use_lstm"] else tokenizer

    @property
    def latent_dims(self) -> tuple[int, ...]:
        return self.encoder_config.output_dims if self._latent_dims is None else self._latent_dims

    @latent_dims.setter
    def latent_dims(self, value: tuple[int, ...]) -> None:
        self._latent_dims = tuple(value)

    def build_encoder(self, framework: str = "jax", *, rngs: nnx.Rngs) -> Any:
        """Builds the encoder: an `nnx.Module` `{OBS: [..., d]}` -> `{ENCODER_OUT: [..., latent]}`.

        Args:
            framework: "jax".
            rngs: Source of random numbers for the initial weights; in a module's `setup()`, `self.rngs`.
        """
        return self.encoder_config.build(framework, rngs=rngs)

    def get_action_dist_cls(self, framework: str = "jax") -> type[Distribution]:
        """Returns the distribution class for the action space."""
        return get_action_dist_cls_for_space(self.action_space)

    def _policy_head(self, framework: str, rngs: nnx.Rngs) -> Any:
        """Builds the policy head, which maps latents `[..., latent]` to the inputs of the action distribution.

        Raises:
            ValueError: If `free_log_std` is True and the action space is not a Box.
        """
        dist_cls = self.get_action_dist_cls(framework)
        is_gaussian = issubclass(dist_cls, DiagGaussian)
        free_log_std = self.model_config_dict["free_log_std"]
        if free_log_std and not is_gaussian:
            raise ValueError(
                f"model_config free_log_std=True needs a Box action space, got {self.action_space}. "
                "Set free_log_std=False."
            )
        config_cls = FreeLogStdMLPHeadConfig if free_log_std else MLPHeadConfig
        return config_cls(
            **self._head_settings(),
            output_layer_dim=dist_cls.required_input_dim(self.action_space),
            clip_log_std=is_gaussian,
            log_std_clip_param=self.model_config_dict["log_std_clip_param"],
        ).build(framework, rngs=rngs)

    def _head_settings(self) -> dict[str, Any]:
        """Returns the arguments that the configs of all heads have in common, from the `head_fcnet_*` settings."""
        settings = self.model_config_dict
        return {
            "input_dims": self.latent_dims,
            **hidden_layers(settings, "head_fcnet"),
            **initializers(settings, "head_fcnet", "output_layer"),
        }

    @classmethod
    def get_tokenizer_config(
        cls, observation_space: gym.Space | None, model_config_dict: Mapping[str, Any]
    ) -> ModelConfig:
        """Returns the config of the encoder for single observations (before an LSTM): convolutions for images, an MLP
        for vectors.

        For a Dict, each entry has an encoder, and the latents of all encoders are concatenated.

        Args:
            observation_space: A Box of rank 1 or 3 (``[height, width, channels]``), a large Discrete (`is_looked_up`),
                or a Dict of such spaces.
            model_config_dict: All settings of `DefaultModelConfig`.

        Raises:
            ValueError: For other spaces, and for images whose channels seem to come first while ``conv_filters`` is
                None.
        """
        settings = model_config_dict
        if isinstance(observation_space, gym.spaces.Dict) and observation_space.spaces:
            parts = observation_space.spaces.items()
            return MultiStreamEncoderConfig(
                base_encoder_configs={key: cls.get_tokenizer_config(part, settings) for key, part in parts},
                hidden_layer_dims=(),
                within=Columns.OBS,
            )
        if is_image(observation_space):
            return _image_encoder_config(observation_space, settings)
        if is_looked_up(observation_space):
            n = int(observation_space.n)
            return MLPEncoderConfig(input_dims=(n,), num_values={Columns.OBS: n}, **hidden_layers(settings, "fcnet"))
        shape = observation_space.shape if isinstance(observation_space, gym.spaces.Box) else None
        if shape is None or len(shape) != 1:
            raise ValueError(
                f"No default encoder for the observation space {observation_space}: flatten or one-hot "
                "encode it with the FlattenObservations env-to-module connector, or write your own RLModule."
            )
        return MLPEncoderConfig(input_dims=shape, **hidden_layers(settings, "fcnet"))


def _recurrent_encoder_config(tokenizer: ModelConfig, settings: Mapping[str, Any]) -> RecurrentEncoderConfig:
    return RecurrentEncoderConfig(
        input_dims=tokenizer.output_dims,
        recurrent_layer_type="lstm",
        hidden_dim=settings["lstm_cell_size"],
        num_layers=1,
        **initializers(settings, "lstm", "hidden"),
        tokenizer_config=tokenizer,
    )


def _image_encoder_config(space: Any, settings: Mapping[str, Any]) -> CNNEncoderConfig:
    filters = settings["conv_filters"]
    if filters is None and tuple(space.shape) == _RAW_ATARI:
        notice_once(
            "Observations are Atari's raw frames, [210, 160, 3]: smaller gray ones, in stacks, are faster and learned "
            "from sooner; see jaxrl_stack.env.wrappers.atari_wrappers.wrap_atari_for_new_api_stack()."
        )
    return CNNEncoderConfig(
        input_dims=space.shape,
        cnn_filter_specifiers=default_filters(space.shape) if filters is None else filters,
        cnn_activation=settings["conv_activation"],
        **initializers(settings, "conv", "cnn"),
        # Planes of bits and the like keep their numbers.
        scale_uint8=space.dtype == np.uint8 and bool(np.max(space.high) == 255),
        compute_dtype=settings["compute_dtype"],
    )


_HIDDEN_LAYERS = {
    "fcnet": ("fcnet_hiddens", "fcnet_activation", "fcnet_use_layernorm"),
    "head_fcnet": ("head_fcnet_hiddens", "head_fcnet_activation", "head_fcnet_use_layernorm"),
}
"""Part of the networks -> settings of its layers: widths, activation, layer normalisation."""

_INITIALIZERS = {
    "fcnet": (
        "fcnet_kernel_initializer",
        "fcnet_kernel_initializer_kwargs",
        "fcnet_bias_initializer",
        "fcnet_bias_initializer_kwargs",
    ),
    "head_fcnet": (
        "head_fcnet_kernel_initializer",
        "head_fcnet_kernel_initializer_kwargs",
        "head_fcnet_bias_initializer",
        "head_fcnet_bias_initializer_kwargs",
    ),
    "fusionnet": (
        "fusionnet_kernel_initializer",
        "fusionnet_kernel_initializer_kwargs",
        "fusionnet_bias_initializer",
        "fusionnet_bias_initializer_kwargs",
    ),
    "conv": (
        "conv_kernel_initializer",
        "conv_kernel_initializer_kwargs",
        "conv_bias_initializer",
        "conv_bias_initializer_kwargs",
    ),
    "lstm": (
        "lstm_kernel_initializer",
        "lstm_kernel_initializer_kwargs",
        "lstm_bias_initializer",
        "lstm_bias_initializer_kwargs",
    ),
}
"""Part of the networks -> settings of its initializers: kernel, its arguments, bias, its arguments."""

_INITIALIZER_ARGUMENTS = {
    "hidden_layer": (
        "hidden_layer_weights_initializer",
        "hidden_layer_weights_initializer_config",
        "hidden_layer_bias_initializer",
        "hidden_layer_bias_initializer_config",
    ),
    "output_layer": (
        "output_layer_weights_initializer",
        "output_layer_weights_initializer_config",
        "output_layer_bias_initializer",
        "output_layer_bias_initializer_config",
    ),
    "hidden": (
        "hidden_weights_initializer",
        "hidden_weights_initializer_config",
        "hidden_bias_initializer",
        "hidden_bias_initializer_config",
    ),
    "cnn": (
        "cnn_kernel_initializer",
        "cnn_kernel_initializer_config",
        "cnn_bias_initializer",
        "cnn_bias_initializer_config",
    ),
}
"""Layers of a `ModelConfig` -> its arguments for their initializers, in the same order."""


def hidden_layers(settings: Mapping[str, Any], part: str) -> dict[str, Any]:
    """Returns the arguments of a model config, such as `MLPEncoderConfig`, that describe hidden layers. `part` selects
    the settings: "fcnet" for ``fcnet_*``, "head_fcnet" for ``head_fcnet_*``.
    """
    hiddens, activation, use_layernorm = _HIDDEN_LAYERS[part]
    return {
        "hidden_layer_dims": list(settings[hiddens]),
        "hidden_layer_activation": settings[activation],
        "hidden_layer_use_layernorm": settings[use_layernorm],
        "compute_dtype": settings["compute_dtype"],
        **initializers(settings, part, "hidden_layer"),
    }


def initializers(settings: Mapping[str, Any], part: str, layers: str) -> dict[str, Any]:
    """Converts the initializer settings of one part of the networks, such as "conv", to arguments of a model config
    that select weight and bias initializers.

    Args:
        settings: All settings of `DefaultModelConfig`.
        part: "fcnet", "head_fcnet", "fusionnet", "conv" or "lstm".
        layers: "hidden_layer", "output_layer", "hidden" (of a `RecurrentEncoderConfig`) or "cnn".
    """
    values = [settings[name] for name in _INITIALIZERS[part]]
    return dict(zip(_INITIALIZER_ARGUMENTS[layers], values, strict=True))
