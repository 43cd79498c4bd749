"""Direct method of off-policy evaluation: the mean value of initial states, with a Q function from fitted Q
evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxrl_stack.offline.estimators.off_policy_estimator import OffPolicyEstimator


class DirectMethod(OffPolicyEstimator):
    """Direct method: the mean value of initial states, with a Q function from fitted Q evaluation (Le et al., 2019).

    Args:
        policy, gamma, epsilon_greedy: See `OffPolicyEstimator`.
        q_model_config: Settings of fitted Q evaluation, the fields of `jaxrl_stack.policy.fitted_q.FittedQConfig`.
        **kwargs: See `OffPolicyEstimator`.
    """

    method = "dm"

    def __init__(
        self,
        policy: Any,
        gamma: float = 0.99,
        epsilon_greedy: float = 0.0,
        q_model_config: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ):
        super().__init__(policy, gamma, epsilon_greedy, **kwargs)
        self._q_model_config = q_model_config

    @property
    def q_model_config(self) -> Mapping[str, Any] | None:
        return self._q_model_config
