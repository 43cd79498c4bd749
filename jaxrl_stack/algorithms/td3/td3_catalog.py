"""Networks of TD3's default module."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import gymnasium as gym

from jaxrl_stack.algorithms.sac.sac_catalog import SACCatalog, is_vector_of_floats
from jaxrl_stack.core.distribution.jax_distribution import SquashedDeterministic
from jaxrl_stack.core.models.configs import MLPHeadConfig

if TYPE_CHECKING:
    from flax import nnx

    from jaxrl_stack.core.distribution.distribution import Distribution


class TD3Catalog(SACCatalog):
    """`SACCatalog` for continuous actions; the policy head has one output per action component.

    Args:
        observation_space, action_space, model_config_dict: See `Catalog`.

    Raises:
        ValueError: For an action space that is not a Box of floats of rank 1.
    """

    rows_are_independent = True
    handles_resets = True

    @property
    def is_continuous(self) -> bool:
        """True, because actions must be vectors of floats; raises for all other action spaces.

        Raises:
            ValueError: If the action space is not a Box of floats of rank 1.
        """
        if is_vector_of_floats(self.action_space):
            return True
        if isinstance(self.action_space, gym.spaces.Discrete):
            remedy = "Use DQN or PQN for discrete actions."
        else:
            remedy = "Flatten a Box of another rank in the environment, or use PPO."
        raise ValueError(
            f"TD3 supports action spaces Box(shape=(n,), dtype=float32), not {self.action_space}. {remedy}"
        )

    def build_pi_head(self, framework: str = "jax", *, rngs: nnx.Rngs) -> Any:
        """Builds the policy head: `[..., latent]` -> actions before `tanh`, `[..., n]`."""
        num_components = math.prod(cast(gym.spaces.Box, self.action_space).shape)
        return MLPHeadConfig(**self._head_settings(), output_layer_dim=num_components).build(framework, rngs=rngs)

    def get_action_dist_cls(self, framework: str = "jax") -> type[Distribution]:
        """`SquashedDeterministic`: deterministic actions in [-1, 1]."""
        return SquashedDeterministic
