"""Networks of DQN's default module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from jaxrl_stack.algorithms.dqn.noisy import NoisyMLPHeadConfig
from jaxrl_stack.core.models.catalog import Catalog
from jaxrl_stack.core.models.configs import MLPHeadConfig

if TYPE_CHECKING:
    from flax import nnx

    from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig

DQN_MODEL_CONFIG: Mapping[str, Any] = {
    "double_q": True,
    "dueling": True,
    "epsilon": [(0, 1.0), (10000, 0.05)],
    "noisy": False,
    "num_atoms": 1,
    "std_init": 0.5,
    "v_max": 10.0,
    "v_min": -10.0,
}
"""Settings that DQN's module reads in addition to `DefaultModelConfig`, with defaults. A module that is built from a
DQNConfig gets the settings of this config instead of the defaults.
"""


class DQNCatalog(Catalog):
    """Catalog of an encoder and a head of Q-values. With ``dueling`` it has two heads instead: advantages and state
    values.

    With ``num_atoms > 1`` heads have an output for each atom of the value distribution. All `head_fcnet_*` settings
    apply to the heads; with ``noisy`` the layers of the heads are noisy.

    Args:
        observation_space: See `Catalog`.
        action_space: A Discrete space.
        model_config_dict: Settings of `DefaultModelConfig` and of `DQN_MODEL_CONFIG`.

    Attributes:
        num_atoms: Number of atoms of the value distributions; 1 for expected values only.
        af_head_config: Config of the head of Q-values or advantages.
        vf_head_config: Config of the head of state values.

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
        self.model_config_dict = {**DQN_MODEL_CONFIG, **self.model_config_dict}
        num_actions = num_discrete_actions(action_space)
        self.num_atoms = int(self.model_config_dict["num_atoms"])
        self.af_head_config = self._head_config(num_actions * self.num_atoms)
        self.vf_head_config = self._head_config(self.num_atoms)

    def build_af_head(self, framework: str = "jax", *, rngs: nnx.Rngs) -> Any:
        """Builds the head of Q-values or, with ``dueling``, of advantages: `[..., latent]` -> `[..., actions]` (with
        atoms `[..., actions * atoms]`).
        """
        return self.af_head_config.build(framework, rngs=rngs)

    def build_vf_head(self, framework: str = "jax", *, rngs: nnx.Rngs) -> Any:
        """Builds the head `[..., latent]` -> state values `[..., 1]` (with atoms `[..., atoms]`)."""
        return self.vf_head_config.build(framework, rngs=rngs)

    def _head_config(self, output_dim: int) -> MLPHeadConfig:
        settings = {**self._head_settings(), "output_layer_dim": output_dim}
        if self.model_config_dict["noisy"]:
            return NoisyMLPHeadConfig(**settings, std_init=float(self.model_config_dict["std_init"]))
        return MLPHeadConfig(**settings)


def num_discrete_actions(action_space: gym.Space | None, algorithm: str = "DQN") -> int:
    """Number of actions of an action space, which must be Discrete.

    Args:
        action_space: The space.
        algorithm: Name of the algorithm, for the error.

    Raises:
        ValueError: If the space is not Discrete.
    """
    if not isinstance(action_space, gym.spaces.Discrete):
        raise ValueError(
            f"{algorithm} needs a Discrete action space, got {action_space}. Use SAC for a Box of floats or PPO for "
            "other spaces, or make the environment's actions Discrete with a wrapper."
        )
    return int(action_space.n)
