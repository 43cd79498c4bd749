"""What a policy is worth, from recorded episodes: RLlib's names of estimators."""

from jaxrl_stack.offline.estimators.direct_method import DirectMethod
from jaxrl_stack.offline.estimators.doubly_robust import DoublyRobust
from jaxrl_stack.offline.estimators.importance_sampling import ImportanceSampling
from jaxrl_stack.offline.estimators.off_policy_estimator import OffPolicyEstimator
from jaxrl_stack.offline.estimators.per_decision_importance_sampling import PerDecisionImportanceSampling
from jaxrl_stack.offline.estimators.weighted_importance_sampling import WeightedImportanceSampling

__all__ = [
    "DirectMethod",
    "DoublyRobust",
    "ImportanceSampling",
    "OffPolicyEstimator",
    "PerDecisionImportanceSampling",
    "WeightedImportanceSampling",
]
