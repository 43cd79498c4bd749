"""Estimator of a policy's return by ordinary importance sampling of whole episodes."""

from jaxrl_stack.offline.estimators.off_policy_estimator import OffPolicyEstimator


class ImportanceSampling(OffPolicyEstimator):
    """Estimator of a policy's return by ordinary importance sampling of whole episodes. See
    `jaxrl_stack.ops.off_policy_evaluation`.
    """

    method = "is"
