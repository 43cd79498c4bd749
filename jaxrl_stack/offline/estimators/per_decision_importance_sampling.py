"""Estimator of a policy's return by per-decision importance sampling."""

from jaxrl_stack.offline.estimators.off_policy_estimator import OffPolicyEstimator


class PerDecisionImportanceSampling(OffPolicyEstimator):
    """Estimator of a policy's return by per-decision importance sampling. See
    `jaxrl_stack.ops.off_policy_evaluation`.
    """

    method = "pdis"
