"""Custom algorithm: PPO with an additional loss term, and a setting for its weight.

jaxrl train file skeleton.py
"""

from __future__ import annotations

import jax.numpy as jnp

from jaxrl_stack import Columns
from jaxrl_stack.algorithms.ppo.ppo import PPO, PPOConfig
from jaxrl_stack.algorithms.ppo.ppo_learner import PPOLearner


class SkeletonPPOConfig(PPOConfig):
    """Config of PPO with the additional setting `logit_coeff`."""

    def __init__(self, algo_class=None):
        super().__init__(algo_class or SkeletonPPO)
        self.logit_coeff = 1e-3

    def training(self, *, logit_coeff=None, **kwargs):
        """Sets PPO's training settings, and `logit_coeff`, the weight of the penalty on large logits."""
        super().training(**kwargs)
        if logit_coeff is not None:
            self.logit_coeff = logit_coeff
        return self

    def get_default_learner_class(self):
        return SkeletonPPOLearner


class SkeletonPPOLearner(PPOLearner):
    """Learner of PPO that adds a penalty on large logits to the loss: the mean square of the policy's outputs, weighted
    by `logit_coeff`.
    """

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        loss = super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)
        # A mean over rows leaves out those that a mask excludes.
        penalty = self.masked_mean(jnp.mean(fwd_out[Columns.ACTION_DIST_INPUTS] ** 2, axis=-1), batch)
        self.metrics.log_value((module_id, "logit_penalty"), penalty)
        return loss + config.logit_coeff * penalty


class SkeletonPPO(PPO):
    """PPO with an additional loss term: a penalty on large logits, weighted by `logit_coeff`. Override `training_step`
    to change the work of an iteration.
    """

    @classmethod
    def get_default_config(cls):
        return SkeletonPPOConfig(algo_class=cls)


config = SkeletonPPOConfig.tuned("gymnax/CartPole-v1").training(logit_coeff=1e-3)
stop = {"env_runners/episode_return_mean": 450.0, "num_env_steps_sampled_lifetime": 400_000}
