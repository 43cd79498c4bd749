"""Action distributions."""

from __future__ import annotations

from jaxrl_stack.compat.renamed import absent_or_renamed
from jaxrl_stack.core.distribution.distribution import Distribution
from jaxrl_stack.core.distribution.jax_distribution import (
    Categorical,
    Deterministic,
    DiagGaussian,
    MultiCategorical,
    MultiDistribution,
    SquashedDeterministic,
    SquashedGaussian,
    get_action_dist_cls_for_space,
)

__all__ = [
    "Categorical",
    "Deterministic",
    "DiagGaussian",
    "Distribution",
    "MultiCategorical",
    "MultiDistribution",
    "SquashedDeterministic",
    "SquashedGaussian",
    "get_action_dist_cls_for_space",
]

_ABSENT = {f"Torch{name}": f"`jaxrl_stack.core.distribution.{name}`" for name in __all__ if name[0].isupper()}
_ABSENT["TorchDistribution"] = _ABSENT["torch"] = "the classes of `jaxrl_stack.core.distribution`"
__getattr__ = absent_or_renamed(__name__, absent=_ABSENT)
