"""Import paths of RLlib's PyTorch classes and old stack: they do not exist here, and the error says what does."""

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
    "utils.torch_utils": "utils.numpy (one_hot, ...) on the host, and jax.nn and optax in networks and losses",
}
"""Package below ``ray.rllib`` (Python imports it first) -> what to import instead, below ``jaxrl_stack``."""

_OLD_MODULES = {
    "env.vector_env": "gymnasium.vector.VectorEnv",
    "env.base_env": "gymnasium.Env, or jaxrl_stack.env.jax_env.JaxEnv",
    "evaluation": "jaxrl_stack.env (SingleAgentEnvRunner, EnvRunnerGroup)",
    "utils.exploration": "RLModule._forward_exploration()",
    "utils.filter": "the connector jaxrl_stack.connectors.env_to_module.MeanStdFilter",
    "utils.spaces.repeated": "a Box of fixed length with a mask",
    "utils.spaces.simplex": "a Box, and a softmax in the environment",
}
"""Module of the old API stack, which does not exist here -> what to use instead."""


class TorchNamesFinder(importlib.abc.MetaPathFinder):
    """Comes after the real finders, so it only sees what they did not find."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        """Raise for a module of RLlib's PyTorch side or old stack; pass on everything else.

        Raises:
            ImportError: Naming what to use.
        """
        package, _, rest = fullname.partition(".")
        if package != "jaxrl_stack":
            return None
        if rest in _OLD_MODULES:
            raise ImportError(f"{fullname} is of RLlib's old API stack: use {_OLD_MODULES[rest]}.", name=fullname)
        if not any(part == "torch" or part.startswith("torch_") for part in rest.split(".")):
            return None
        instead = next((ours for theirs, ours in _JAX_CLASSES.items() if rest.startswith(theirs)), None)
        hint = f" Use jaxrl_stack.{instead}." if instead else " Modules are Flax NNX modules; see core.rl_module."
        raise ImportError(f"{fullname} does not exist: there is one framework here, JAX.{hint}", name=fullname)
