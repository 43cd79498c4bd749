"""Networks of PQN's default module."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxrl_stack.algorithms.dqn.dqn_catalog import num_discrete_actions
from jaxrl_stack.core.models.catalog import Catalog
from jaxrl_stack.core.models.configs import CNNEncoderConfig, MLPHeadConfig

if TYPE_CHECKING:
    import gymnasium as gym
    from flax import nnx

    from jaxrl_stack.core.models.configs import ModelConfig
    from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig

PQN_MODEL_CONFIG: Mapping[str, Any] = {
    "epsilon": [(0, 1.0), (100_000, 0.05)],
    "epsilon_per_env": None,
    "layer_norm": True,
}
"""Settings of PQN's module besides `DefaultModelConfig`, with their defaults; a PQNConfig fills in its settings."""


class PQNCatalog(Catalog):
    """Catalog of an encoder and a head of Q-values, with layer normalisation before each activation.

    With ``layer_norm=False`` the settings ``fcnet_use_layernorm`` and ``head_fcnet_use_layernorm`` decide for fully
    connected layers, and convolutions have no normalisation.

    Args:
        observation_space: As in `Catalog`.
        action_space: Discrete.
        model_config_dict: Settings of `DefaultModelConfig` and of `PQN_MODEL_CONFIG`.

    Raises:
        ValueError: If the action space is not Discrete, or the action mask does not fit it.
    """

    rows_are_independent = True
    handles_resets = True

    def __init__(
        self,
        observation_space: gym.Space | None,
        action_space: gym.Space | None,
        model_config_dict: Mapping[str, Any] | DefaultModelConfig | None = None,
    ):
        super().__init__(observation_space, action_space, model_config_dict)
        self.model_config_dict = {**PQN_MODEL_CONFIG, **self.model_config_dict}
        if self.model_config_dict["layer_norm"]:
            self.model_config_dict |= {"fcnet_use_layernorm": True, "head_fcnet_use_layernorm": True}
        self.num_actions = num_discrete_actions(action_space, "PQN")

    def build_qf_head(self, framework: str = "jax", *, rngs: nnx.Rngs) -> Any:
        """Builds the head `[..., latent]` -> Q-values `[..., actions]`."""
        return MLPHeadConfig(**self._head_settings(), output_layer_dim=self.num_actions).build(framework, rngs=rngs)

    @classmethod
    def get_tokenizer_config(
        cls, observation_space: gym.Space | None, model_config_dict: Mapping[str, Any]
    ) -> ModelConfig:
        config = super().get_tokenizer_config(observation_space, model_config_dict)
        if isinstance(config, CNNEncoderConfig) and model_config_dict.get("layer_norm", True):
            return dataclasses.replace(config, cnn_use_layernorm=True)
        return config
