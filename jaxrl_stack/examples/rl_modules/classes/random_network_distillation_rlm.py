"""RLModule for random network distillation: one network learns to predict the outputs of a random network. The
prediction error is large for new observations.
"""

from __future__ import annotations

from typing import Any, cast

import gymnasium as gym
import jax
import jax.numpy as jnp

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.models.configs import MLPHeadConfig
from jaxrl_stack.core.models.heads import MLPHead
from jaxrl_stack.core.rl_module.apis import SelfSupervisedLossAPI
from jaxrl_stack.core.rl_module.rl_module import RLModule
from jaxrl_stack.core.rl_module.target_networks import make_target_network


class RandomNetworkDistillation(RLModule, SelfSupervisedLossAPI):
    """Random network distillation (Burda et al., 2018, arXiv:1810.12894): intrinsic rewards from prediction errors.
    Only learners use this module: set ``RLModuleSpec(learner_only=True)``.

    The intrinsic reward of a step is the mean squared difference between two networks' outputs for the observation
    after it; its mean is the loss. One network keeps its first, random weights; the other one is trained.

    Observations are a Box of rank 1. Model config: ``feature_dim`` (64) and ``hiddens`` (64, 64) of both networks.
    """

    rows_are_independent = True

    def setup(self) -> None:
        self.predictor = self._network()
        # No `nnx.Param`s are left in it: it is stored with the module, and no optimizer sees it.
        self.target = make_target_network(self._network())

    def _network(self) -> MLPHead:
        (num_obs,) = cast(gym.spaces.Box, self.observation_space).shape
        config = MLPHeadConfig(
            input_dims=[num_obs],
            hidden_layer_dims=list(self.model_config.get("hiddens", (64, 64))),
            hidden_layer_activation="relu",
            output_layer_dim=self.model_config.get("feature_dim", 64),
        )
        return config.build(rngs=self.rngs)

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Computes INTRINSIC_REWARDS, one reward for each observation in NEXT_OBS: the mean squared difference between
        the outputs of the trained network and of the random network.
        """
        next_obs = batch[Columns.NEXT_OBS]
        error = self.predictor(next_obs) - self.target(next_obs)
        return {Columns.INTRINSIC_REWARDS: jnp.mean(jnp.square(error), axis=-1)}

    def compute_self_supervised_loss(
        self, *, learner: Any, module_id: str, config: Any, batch: dict[str, Any], fwd_out: dict[str, Any]
    ) -> jax.Array:
        loss = learner.masked_mean(fwd_out[Columns.INTRINSIC_REWARDS], batch)
        learner.metrics.log_value((module_id, "mean_intrinsic_rewards"), loss, window=1)
        return loss
