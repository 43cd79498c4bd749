"""Networks of SAC's default module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import gymnasium as gym
import numpy as np

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.distribution.jax_distribution import Categorical, SquashedGaussian
from jaxrl_stack.core.models.catalog import Catalog, hidden_layers, initializers
from jaxrl_stack.core.models.configs import MLPEncoderConfig, MLPHeadConfig, ModelConfig, MultiStreamEncoderConfig

if TYPE_CHECKING:
    from flax import nnx

    from jaxrl_stack.core.distribution.distribution import Distribution
    from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig


def is_vector_of_floats(space: gym.Space | None) -> bool:
    """Whether the action space is a vector of floats, for which a squashed Gaussian is suitable."""
    return isinstance(space, gym.spaces.Box) and len(space.shape) == 1 and np.issubdtype(space.dtype, np.floating)


class SACCatalog(Catalog):
    """Catalog of encoders and heads for the policy and the critics.

    A critic of continuous actions encodes observation and action separately (`fcnet_*` settings) and joins them
    (`fusionnet_*`); with `fusionnet_hiddens=None` it is one MLP (`fcnet_*`) over their concatenation. A critic of
    discrete actions encodes the observation and has one output per action. All `head_fcnet_*` settings apply to the
    heads.

    Args:
        observation_space, action_space, model_config_dict: See `Catalog`.

    Raises:
        ValueError: For an action space that is neither Discrete nor a Box of floats of rank 1.
    """

    rows_are_independent = True
    handles_resets = True
    encodes_actions = True

    def __init__(
        self,
        observation_space: gym.Space | None,
        action_space: gym.Space | None,
        model_config_dict: Mapping[str, Any] | DefaultModelConfig | None = None,
    ):
        super().__init__(observation_space, action_space, model_config_dict)
        # Asked for here, so that a space that does not go shows before any network is built.
        has_plain_critics = self.is_continuous and self.model_config_dict["fusionnet_hiddens"] is None
        if has_plain_critics and not isinstance(self.encoder_config, MLPEncoderConfig):
            raise ValueError(
                "rl_module(model_config={'fusionnet_hiddens': None}) needs an MLP encoder (vector observations, no "
                f"LSTM), but this model config builds another encoder for the observation space {observation_space}. "
                "Set fusionnet_hiddens to a list: [256]."
            )

    @property
    def is_continuous(self) -> bool:
        """Whether actions are vectors of floats; otherwise they are discrete.

        Raises:
            ValueError: If SAC has no distribution for the action space.
        """
        space = self.action_space
        if isinstance(space, gym.spaces.Discrete):
            return False
        if is_vector_of_floats(space):
            return True
        raise ValueError(
            f"SAC supports the action spaces Discrete and Box(shape=(n,), dtype=float32), not {space}. Flatten a Box "
            f"of another rank in the environment, or use PPO."
        )

    @property
    def qf_encoder_config(self) -> ModelConfig:
        """Config of a critic's encoder."""
        if not self.is_continuous:
            return self.encoder_config
        settings, action_dim = self.model_config_dict, cast(gym.spaces.Box, self.action_space).shape[0]
        hidden = hidden_layers(settings, "fcnet")
        if settings["fusionnet_hiddens"] is None:
            of_obs = cast(MLPEncoderConfig, self.encoder_config)
            assert of_obs.input_dims is not None
            return MLPEncoderConfig(
                input_dims=(of_obs.input_dims[0] + action_dim,),
                columns=(Columns.OBS, Columns.ACTIONS),
                num_values=of_obs.num_values,
                **hidden,
            )
        action_encoder_config = MLPEncoderConfig(
            input_dims=(action_dim,),
            **{**hidden, "hidden_layer_dims": hidden["hidden_layer_dims"][:-1]},
            output_layer_dim=self.latent_dims[0],
            output_layer_activation=settings["fcnet_activation"],
            output_layer_use_layernorm=settings["fcnet_use_layernorm"],
            **initializers(settings, "fcnet", "output_layer"),
        )
        return MultiStreamEncoderConfig(
            base_encoder_configs={Columns.OBS: self.encoder_config, Columns.ACTIONS: action_encoder_config},
            hidden_layer_dims=settings["fusionnet_hiddens"],
            hidden_layer_activation=settings["fusionnet_activation"],
            **initializers(settings, "fusionnet", "hidden_layer"),
            output_layer_dim=self.latent_dims[0],
            output_layer_activation=settings["fusionnet_activation"],
            **initializers(settings, "fusionnet", "output_layer"),
            compute_dtype=settings["compute_dtype"],
        )

    @property
    def qf_output_dim(self) -> int:
        """Number of a critic's outputs: 1, or the number of discrete actions."""
        return 1 if self.is_continuous else int(cast(gym.spaces.Discrete, self.action_space).n)

    def build_qf_encoder(self, framework: str = "jax", *, rngs: nnx.Rngs) -> Any:
        """Builds a critic's encoder: `{OBS: [..., d], ACTIONS: [..., n]}` -> `{ENCODER_OUT: [..., latent]}`.

        A critic of discrete actions does not read `ACTIONS`.
        """
        return self.qf_encoder_config.build(framework, rngs=rngs)

    def build_qf_head(self, framework: str = "jax", *, rngs: nnx.Rngs) -> Any:
        """Builds a critic's head: `[..., latent]` -> `[..., qf_output_dim]`."""
        settings = {**self._head_settings(), "input_dims": self.qf_encoder_config.output_dims}
        return MLPHeadConfig(**settings, output_layer_dim=self.qf_output_dim).build(framework, rngs=rngs)

    def build_vf_head(self, framework: str = "jax", *, rngs: nnx.Rngs) -> Any:
        """Builds the head of a value function of states: `[..., latent]` -> `[..., 1]`."""
        return MLPHeadConfig(**self._head_settings(), output_layer_dim=1).build(framework, rngs=rngs)

    def build_pi_head(self, framework: str = "jax", *, rngs: nnx.Rngs) -> Any:
        """Builds the policy head `[..., latent]` -> action distribution inputs.

        Raises:
            ValueError: For `free_log_std=True`, which a squashed Gaussian does not support.
        """
        if self.model_config_dict["free_log_std"]:
            raise ValueError(
                "rl_module(model_config={'free_log_std': True}): SAC's standard deviation always depends on the "
                "observation. Set free_log_std to False."
            )
        return MLPHeadConfig(
            **self._head_settings(),
            output_layer_dim=self.get_action_dist_cls(framework).required_input_dim(self.action_space),
            clip_log_std=self.is_continuous,
            log_std_clip_param=self.model_config_dict["log_std_clip_param"],
        ).build(framework, rngs=rngs)

    def get_action_dist_cls(self, framework: str = "jax") -> type[Distribution]:
        """`SquashedGaussian` in [-1, 1], or `Categorical` for discrete actions."""
        return SquashedGaussian if self.is_continuous else Categorical
