"""Learner with the loss of vanilla policy gradients."""

from __future__ import annotations

from typing import Any

import jax

from jaxrl_stack.connectors.learner import ComputeReturnsToGo
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.learner.learner import Learner


class VPGLearner(Learner):
    """REINFORCE loss ``-mean(log pi(a|s) G)``, with returns to go G of whole episodes (Williams, 1992), without a
    baseline.
    """

    def build(self) -> None:
        super().build()
        if self.config.add_default_connectors_to_learner_pipeline:
            pipeline: Any = self._learner_connector
            pipeline.prepend(ComputeReturnsToGo(gamma=self.config.gamma))

    def compute_loss_for_module(self, *, module_id: str, config: Any, batch: Any, fwd_out: Any) -> jax.Array:
        distribution = self.module[module_id].get_train_action_dist_cls()
        actions = distribution.from_logits(fwd_out[Columns.ACTION_DIST_INPUTS])
        gains = actions.logp(batch[Columns.ACTIONS]) * batch[Columns.RETURNS_TO_GO]
        return -self.masked_mean(gains, batch)
