"""PPO with a penalty on the mean weight of the network in its loss."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_stack.algorithms.ppo.ppo_learner import PPOLearner


class PPOLearnerWithWeightRegularizerLoss(PPOLearner):
    """Adds ``regularizer_coeff`` times the mean of the module's weights to PPO's loss.

    The coefficient comes from ``learners(learner_config_dict={"regularizer_coeff": 0.02})``.
    """

    def compute_loss_for_module(self, *, module_id: str, config: Any, batch: Any, fwd_out: Any) -> jax.Array:
        loss = super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)
        means = [jnp.mean(parameter[...]) for parameter in self.get_parameters(self.module[module_id])]
        mean_weight = jnp.mean(jnp.stack(means))
        self.metrics.log_value((module_id, "mean_weight"), mean_weight)
        return loss + config.learner_config_dict["regularizer_coeff"] * mean_weight
