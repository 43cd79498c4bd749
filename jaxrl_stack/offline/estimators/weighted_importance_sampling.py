"""Estimator of a policy's return by weighted importance sampling of whole episodes."""

from jaxrl_stack.offline.estimators.off_policy_estimator import OffPolicyEstimator


class WeightedImportanceSampling(OffPolicyEstimator):
    """Estimator of a policy's return by weighted importance sampling of whole episodes. See
    `jaxrl_stack.ops.off_policy_evaluation`.
    """

    method = "wis"
