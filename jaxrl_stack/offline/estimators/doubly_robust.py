"""The doubly robust estimator."""

from jaxrl_stack.offline.estimators.direct_method import DirectMethod


class DoublyRobust(DirectMethod):
    """Fitted Q evaluation, corrected by ratios of probabilities (Jiang and Li, 2016)."""

    method = "dr"
