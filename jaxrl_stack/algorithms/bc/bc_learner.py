"""BC's loss: the negative log-probability of the recorded actions."""

from __future__ import annotations

from jaxrl_stack.algorithms.marwil.marwil_learner import ACTION_LOGP_MEAN_KEY, MARWILLearner
from jaxrl_stack.core.learner.learner import POLICY_LOSS_KEY


class BCLearner(MARWILLearner):
    """Behaviour cloning: MARWIL's loss with ``beta=0``, for modules with or without a value function."""

    @classmethod
    def rl_module_required_apis(cls) -> list[type]:
        return []

    @classmethod
    def all_result_names(cls) -> tuple[str, ...]:
        """Names of BC's learner metrics: MARWIL's metrics, without the metrics of the value function."""
        of_values = set(MARWILLearner.result_names) - {POLICY_LOSS_KEY, ACTION_LOGP_MEAN_KEY}
        return tuple(name for name in super().all_result_names() if name not in of_values)
