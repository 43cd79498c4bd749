"""Learner of vanilla policy gradients for several modules that share parameters."""

from __future__ import annotations

import optax

from jaxrl_stack.examples.learners.classes.vpg_learner import VPGLearner


class VPGLearnerSharedOptimizer(VPGLearner):
    """`VPGLearner` with one Adam optimizer over the parameters of all modules; shared parameters are updated once per
    step.
    """

    def configure_optimizers(self) -> None:
        """Registers one Adam optimizer for the parameters of all modules."""
        self.register_optimizer(
            optimizer_name="shared_optimizer",
            optimizer=optax.adam,
            params=self.get_parameters(self.template),
            lr_or_lr_schedule=self.config.lr,
        )
