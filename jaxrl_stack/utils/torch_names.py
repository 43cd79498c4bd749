"""Import paths of RLlib's PyTorch classes: they do not exist here, and the error says what does."""

from __future__ import annotations

import importlib.abc
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_JAX_CLASSES = {
    "core.rl_module.torch": "core.rl_module.rl_module.RLModule (a Flax NNX module)",
    "core.learner.torch": "core.learner.learner.Learner",
    "core.distribution.torch": "core.distribution.jax_distribution (Categorical, DiagGaussian, ...)",
    "algorithms.dqn.torch": "algorithms.dqn.dqn_learner.DQNLearner or "
    "jaxrl_stack.algorithms.dqn.default_dqn_rl_module.DefaultDQNRLModule",
    "algorithms.ppo.torch": "algorithms.ppo.ppo_learner.PPOLearner or "
    "jaxrl_stack.algorithms.ppo.default_ppo_rl_module.DefaultPPORLModule",
    "algorithms.sac.torch": "algorithms.sac.sac_learner.SACLearner or "
    "jaxrl_stack.algorithms.sac.default_sac_rl_module.DefaultSACRLModule",
}
"""Package below ``ray.rllib`` (Python imports it first) -> what to import instead, below ``jaxrl_stack``."""


class TorchNamesFinder(importlib.abc.MetaPathFinder):
    """Comes after the real finders, so it only sees what they did not find."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        """Raise for a module of RLlib's PyTorch side; pass on everything else.

        Raises:
            ImportError: Naming the JAX class.
        """
        package, _, rest = fullname.partition(".")
        if package != "jaxrl_stack" or "torch" not in rest.split("."):
            return None
        instead = next((ours for theirs, ours in _JAX_CLASSES.items() if rest.startswith(theirs)), None)
        hint = f" Use jaxrl_stack.{instead}." if instead else " Modules are Flax NNX modules; see core.rl_module."
        raise ImportError(f"{fullname} does not exist: there is one framework here, JAX.{hint}", name=fullname)
