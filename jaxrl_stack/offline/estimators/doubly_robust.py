"""Doubly robust estimator of a policy's return."""

from jaxrl_stack.offline.estimators.direct_method import DirectMethod


class DoublyRobust(DirectMethod):
    """Doubly robust estimator: fitted Q evaluation, corrected by importance sampling ratios (Jiang and Li, 2016)."""

    method = "dr"
