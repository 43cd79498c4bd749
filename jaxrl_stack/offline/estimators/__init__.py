"""Off-policy estimators of a policy's return from recorded episodes, under RLlib's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxrl_stack.offline.estimators.direct_method import DirectMethod
from jaxrl_stack.offline.estimators.doubly_robust import DoublyRobust
from jaxrl_stack.offline.estimators.importance_sampling import ImportanceSampling
from jaxrl_stack.offline.estimators.off_policy_estimator import OffPolicyEstimator
from jaxrl_stack.offline.estimators.per_decision_importance_sampling import PerDecisionImportanceSampling
from jaxrl_stack.offline.estimators.weighted_importance_sampling import WeightedImportanceSampling

ESTIMATORS: dict[str, type[OffPolicyEstimator]] = {
    own.method: own
    for own in (
        ImportanceSampling,
        PerDecisionImportanceSampling,
        WeightedImportanceSampling,
        DirectMethod,
        DoublyRobust,
    )
}
"""Estimators by the names of their methods."""

__all__ = [
    "ESTIMATORS",
    "DirectMethod",
    "DoublyRobust",
    "ImportanceSampling",
    "OffPolicyEstimator",
    "PerDecisionImportanceSampling",
    "WeightedImportanceSampling",
    "estimators_of",
]


def estimators_of(methods: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Resolves the setting `off_policy_estimation_methods` to estimator classes with their settings, ``{name: {"type":
    class, ...}}``.

    Raises:
        ValueError: The type of an estimator is unknown.
    """
    found = {}
    for name, settings in methods.items():
        own = {"type": settings} if isinstance(settings, str | type) else dict(settings or {})
        kind = own.get("type", name)
        kind = ESTIMATORS.get(kind, kind) if isinstance(kind, str) else kind
        if not (isinstance(kind, type) and issubclass(kind, OffPolicyEstimator)):
            raise ValueError(
                f"a dict of estimators, in which the type of {name!r} is one of {sorted(ESTIMATORS)} or a subclass "
                f"of OffPolicyEstimator"
            )
        found[name] = {**own, "type": kind}
    return found
