"""Import paths of RLlib's PyTorch classes, its old stack and what comes later: the error says what exists here."""

from __future__ import annotations

import importlib.abc
import re
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_JAX_CLASSES = {
    "core.rl_module.torch": "core.rl_module.rl_module.RLModule (a Flax NNX module)",
    "core.learner.torch": "core.learner.learner.Learner",
    "core.distribution.torch": "core.distribution.jax_distribution (Categorical, DiagGaussian, ...)",
    "algorithms.dqn": "algorithms.dqn.dqn_learner.DQNLearner or "
    "jaxrl_stack.algorithms.dqn.default_dqn_rl_module.DefaultDQNRLModule",
    "algorithms.ppo": "algorithms.ppo.ppo_learner.PPOLearner or "
    "jaxrl_stack.algorithms.ppo.default_ppo_rl_module.DefaultPPORLModule",
    "algorithms.sac": "algorithms.sac.sac_learner.SACLearner or "
    "jaxrl_stack.algorithms.sac.default_sac_rl_module.DefaultSACRLModule",
    "utils.torch_utils": "utils.numpy (one_hot, ...) on the host, and jax.nn and optax in networks and losses",
}
"""Beginning of a path below ``ray.rllib`` -> what to import instead, below ``jaxrl_stack``."""

_OLD_MODULES = {
    "connectors.action": "the pipeline in jaxrl_stack.connectors.module_to_env",
    "connectors.agent": "the pipeline in jaxrl_stack.connectors.env_to_module, and learner connectors for rewards",
    "connectors.connector": "ConnectorV2 (jaxrl_stack.connectors.connector_v2)",
    "connectors.registry": "ConnectorV2 objects in env_runners(env_to_module_connector=...)",
    "connectors.util": "ConnectorV2 objects in env_runners(env_to_module_connector=...)",
    "core.models.specs": "spaces of an RLModule and Columns; modules are checked when they are built",
    "core.rl_module.marl_module": "jaxrl_stack.core.rl_module.multi_rl_module (MultiRLModule, MultiRLModuleSpec)",
    "core.testing": "a small RLModule of your own, and the environments in jaxrl_stack.examples.envs.classes",
    "env.vector_env": "gymnasium.vector.VectorEnv",
    "env.base_env": "gymnasium.Env, or jaxrl_stack.env.jax_env.JaxEnv",
    "evaluation": "jaxrl_stack.env (SingleAgentEnvRunner, EnvRunnerGroup), and for Postprocessing the names in "
    "jaxrl_stack.core.columns.Columns and the learner connector GeneralAdvantageEstimation",
    "models": "an RLModule (jaxrl_stack.core.rl_module.rl_module) for a ModelV2, rl_module(model_config=...) for model "
    "settings, jaxrl_stack.core.models.catalog.Catalog for the ModelCatalog, jaxrl_stack.core.distribution for "
    "action distributions (TorchCategorical and its kin are jax_distribution.Categorical, ...), "
    "jaxrl_stack.core.models.activations.get_activation for get_activation_fn, and connectors for preprocessors",
    "policy.policy_map": "a MultiRLModule: Algorithm.get_module(module_id)",
    "policy.rnn_sequencing": "the learner, which cuts episodes itself: model_config={'max_seq_len': ...}",
    "policy.view_requirement": "a connector that adds what the module needs (jaxrl_stack.connectors)",
    "utils.exploration": "RLModule._forward_exploration()",
    "utils.filter": "the connector jaxrl_stack.connectors.env_to_module.MeanStdFilter",
    "utils.nested_dict": "nested dicts, with jax.tree and jaxrl_stack.utils.nested",
    "utils.replay_buffers.replay_buffer": "jaxrl_stack.utils.replay_buffers.EpisodeReplayBuffer",
    "utils.replay_buffers.utils": "training(replay_buffer_config={...}), which is checked when it is set",
    "utils.sgd": "Learner.update(num_epochs=..., minibatch_size=...)",
    "utils.spaces.repeated": "a Box of fixed length with a mask",
    "utils.spaces.simplex": "a Box, and a softmax in the environment",
}
"""Module of the old API stack, which does not exist here -> what to use instead."""

COMING_ALGORITHMS = ("APPO", "BC", "CQL", "DreamerV3", "IMPALA", "IQL", "MARWIL", "TQC")
"""Algorithms of RLlib that are not here yet."""

_PPO = "comes later: use PPO (jaxrl_stack.algorithms.ppo), with several env runners"
_OFFLINE = "comes with offline learning; until then train in an environment, with DQN or SAC to learn from replay"
_DM_ENV = "comes later: wrap the environment in a gymnasium.Env of your own, as the package shimmy does"
_META = (
    "has no counterpart: write inner updates with jax.grad in compute_loss_for_module() of a Learner "
    "(jaxrl_stack.core.learner.learner)"
)
_NOT_HERE = {
    **{
        f"algorithms.{name.lower()}": "comes later. jaxrl_stack.algorithms.registry.ALGORITHMS is what there is"
        for name in COMING_ALGORITHMS
    },
    "algorithms.appo": _PPO,
    "algorithms.impala": _PPO,
    "algorithms.bc": _OFFLINE,
    "algorithms.cql": _OFFLINE,
    "algorithms.iql": _OFFLINE,
    "algorithms.marwil": _OFFLINE,
    "offline": _OFFLINE,
    "core.learner.differentiable_learner": _META,
    "core.learner.differentiable_learner_config": _META,
    "env.external": "comes later: write a gymnasium.Env whose reset() and step() talk to the other process",
    "env.wrappers.dm_control_wrapper": _DM_ENV,
    "env.wrappers.dm_env_wrapper": _DM_ENV,
    "env.wrappers.recsim": "has no counterpart: wrap the RecSim environment in a gymnasium.Env of your own",
    "utils.debug": "has no counterpart: debugging(seed=...) seeds environments, modules and learners",
}
"""Other module that does not exist here -> why not, and what to do."""

_OTHER_FRAMEWORK = re.compile(r"(^|[._])(torch|tf|eager)([._]|$)")


class TorchNamesFinder(importlib.abc.MetaPathFinder):
    """Comes after the real finders, so it only sees what they did not find."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        """Raise for a module of RLlib that is known not to exist here; pass on everything else.

        Raises:
            ImportError: Naming what to use.
        """
        package, _, rest = fullname.partition(".")
        if package != "jaxrl_stack":
            return None
        if rest in _OLD_MODULES:
            raise ImportError(f"{fullname} is of RLlib's old API stack: use {_OLD_MODULES[rest]}.", name=fullname)
        if rest in _NOT_HERE:
            raise ImportError(f"{fullname} {_NOT_HERE[rest]}.", name=fullname)
        if not _OTHER_FRAMEWORK.search(rest):
            return None
        instead = next((ours for theirs, ours in _JAX_CLASSES.items() if rest.startswith(theirs)), None)
        hint = f" Use jaxrl_stack.{instead}." if instead else " Modules are Flax NNX modules; see core.rl_module."
        raise ImportError(f"{fullname} does not exist: there is one framework here, JAX.{hint}", name=fullname)
