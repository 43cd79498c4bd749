"""Import paths of RLlib's PyTorch classes and old stack; errors name the replacements."""

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
    "algorithms.appo": "algorithms.appo.appo_learner.APPOLearner or "
    "jaxrl_stack.algorithms.appo.default_appo_rl_module.DefaultAPPORLModule",
    "algorithms.bc": "algorithms.bc.bc_learner.BCLearner or "
    "jaxrl_stack.algorithms.bc.default_bc_rl_module.DefaultBCRLModule",
    "algorithms.cql": "algorithms.cql.cql_learner.CQLLearner or "
    "jaxrl_stack.algorithms.cql.default_cql_rl_module.DefaultCQLRLModule",
    "algorithms.dqn": "algorithms.dqn.dqn_learner.DQNLearner or "
    "jaxrl_stack.algorithms.dqn.default_dqn_rl_module.DefaultDQNRLModule",
    "algorithms.dreamerv3": "algorithms.dreamerv3.dreamerv3_learner.DreamerV3Learner or "
    "jaxrl_stack.algorithms.dreamerv3.dreamerv3_rl_module.DreamerV3RLModule",
    "algorithms.impala": "algorithms.impala.impala_learner.IMPALALearner, or jaxrl_stack.ops.vtrace",
    "algorithms.iql": "algorithms.iql.iql_learner.IQLLearner or "
    "jaxrl_stack.algorithms.iql.default_iql_rl_module.DefaultIQLRLModule",
    "algorithms.marwil": "algorithms.marwil.marwil_learner.MARWILLearner",
    "algorithms.ppo": "algorithms.ppo.ppo_learner.PPOLearner or "
    "jaxrl_stack.algorithms.ppo.default_ppo_rl_module.DefaultPPORLModule",
    "algorithms.sac": "algorithms.sac.sac_learner.SACLearner or "
    "jaxrl_stack.algorithms.sac.default_sac_rl_module.DefaultSACRLModule",
    "algorithms.tqc": "algorithms.tqc.tqc_learner.TQCLearner or "
    "jaxrl_stack.algorithms.tqc.default_tqc_rl_module.DefaultTQCRLModule",
    "utils.torch_utils": "utils.numpy (one_hot, ...) on the host, and jax.nn and optax in networks and losses",
}
"""Beginning of a path below ``ray.rllib`` -> what to import instead, below ``jaxrl_stack``."""

_OLD_MODULES = {
    "agents": "jaxrl_stack.algorithms, as in: from jaxrl_stack.algorithms.ppo import PPOConfig",
    "contrib": "the algorithms in jaxrl_stack.algorithms.registry.ALGORITHMS",
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
    "action distributions (jax_distribution.Categorical for TorchCategorical, ...), "
    "and connectors for preprocessors",
    **dict.fromkeys(
        ("offline.d4rl_reader", "offline.dataset_reader", "offline.input_reader", "offline.json_reader"),
        "offline_data(input_=...), which reads tables of steps, episodes, npz, HDF5 and Minari",
    ),
    **dict.fromkeys(
        ("offline.dataset_writer", "offline.json_writer", "offline.output_writer"),
        "offline_data(output=...), which writes Parquet",
    ),
    "policy.policy_map": "a MultiRLModule: Algorithm.get_module(module_id)",
    "policy.rnn_sequencing": "the learner, which cuts episodes itself: model_config={'max_seq_len': ...}",
    "policy.view_requirement": "a connector that adds what the module needs (jaxrl_stack.connectors)",
    "utils.exploration": "RLModule._forward_exploration()",
    "utils.filter": "the connector jaxrl_stack.connectors.env_to_module.MeanStdFilter",
    "utils.nested_dict": "nested dicts, with jax.tree and jaxrl_stack.utils.nested",
    "utils.replay_buffers.replay_buffer": "jaxrl_stack.utils.replay_buffers.EpisodeReplayBuffer",
    "utils.replay_buffers.utils": "training(replay_buffer_config={...}), which is checked when it is set",
    "utils.sgd": "Learner.update(num_epochs=..., minibatch_size=...)",
    "utils.spaces.simplex": "a Box, and a softmax in the environment",
}
"""Module of the old API stack, which does not exist here -> what to use instead."""

_LEARNER = "a Learner (jaxrl_stack.core.learner.learner)"
_LOSSES = f"an RLModule (jaxrl_stack.core.rl_module.rl_module) and {_LEARNER}"
_ONE_AGENT_REPLAY = "EpisodeReplayBuffer or PrioritizedEpisodeReplayBuffer"
_JAX_OR_GYM = "gymnasium.Env, or jaxrl_stack.env.jax_env.JaxEnv"
_READ_DATA = "offline_data(input_=...), which reads tables of steps, episodes, npz, HDF5 and Minari"
_UPDATES = f"{_LEARNER}, or algorithm.learner_group.update(...)"
_OLD_NAMES = {
    "": {
        "BaseEnv ExternalEnv": _JAX_OR_GYM,
        "RolloutWorker": "jaxrl_stack.env.single_agent_env_runner.SingleAgentEnvRunner",
        "SampleBatch": "SingleAgentEpisode, or batches as dicts of arrays by jaxrl_stack.core.columns.Columns",
        "TFPolicy TorchPolicy": _LOSSES,
        "VectorEnv": "gymnasium.vector.VectorEnv",
    },
    "algorithms.appo": {"APPOTF1Policy APPOTF2Policy APPOTorchPolicy": _LOSSES},
    "algorithms.cql": {"CQLTFPolicy CQLTorchPolicy": _LOSSES},
    "algorithms.dqn": {"DQNTFPolicy DQNTorchPolicy": _LOSSES},
    "algorithms.impala": {"ImpalaTF1Policy ImpalaTF2Policy ImpalaTorchPolicy": _LOSSES},
    "algorithms.marwil": {"MARWILTF1Policy MARWILTF2Policy MARWILTorchPolicy": _LOSSES},
    "algorithms.ppo": {"PPOTF1Policy PPOTF2Policy": _LOSSES},
    "algorithms.sac": {"SACTFPolicy SACTorchPolicy": _LOSSES},
    "env": {
        "BaseEnv ExternalEnv RemoteBaseEnv": _JAX_OR_GYM,
        "PolicyClient": "a gymnasium.Env whose reset() and step() talk to the other process",
        "VectorEnv": "gymnasium.vector.VectorEnv",
    },
    "examples.multi_agent.utils": {
        "SelfPlayCallbackOldAPIStack SelfPlayLeagueBasedCallbackOldAPIStack": "SelfPlayCallback"
    },
    "execution": {
        "LearnerThread MultiGPULearnerThread multi_gpu_train_one_step train_one_step": _UPDATES,
        "MinibatchBuffer SimpleReplayBuffer": _ONE_AGENT_REPLAY,
        "standardize_fields": "the learner connector GeneralAdvantageEstimation, which standardises advantages",
    },
    "offline": {
        "D4RLReader MixedInput ShuffledInput get_dataset_and_shards get_offline_io_resource_bundles": _READ_DATA,
        "FeatureImportance": "the estimators in jaxrl_stack.offline.estimators",
        "NoopOutput": "offline_data(output=None)",
    },
    "policy": {"TFPolicy TorchPolicy build_policy_class": _LOSSES},
    "utils": {"Filter FilterManager": "the connector jaxrl_stack.connectors.env_to_module.MeanStdFilter"},
    "utils.replay_buffers": {
        "FifoReplayBuffer ReservoirReplayBuffer": _ONE_AGENT_REPLAY,
        "MultiAgentMixInReplayBuffer MultiAgentPrioritizedReplayBuffer MultiAgentReplayBuffer ReplayMode": (
            "MultiAgentEpisodeReplayBuffer or MultiAgentPrioritizedEpisodeReplayBuffer"
        ),
    },
}
"""Package -> names of the old API stack that it had, in one text -> what to use instead."""
_OLD_MODULES |= {
    f"{package}.{name}".removeprefix("."): instead
    for package, of_package in _OLD_NAMES.items()
    for names, instead in of_package.items()
    for name in names.split()
}

_NO_COUNTERPART = {
    "env.wrappers.recsim": "wrap the RecSim environment in a gymnasium.Env of your own",
    "utils.debug": "debugging(seed=...) seeds environments, modules and learners, and the callback "
    "jaxrl_stack.callbacks.callbacks.MemoryTrackingCallbacks watches the memory",
}
"""Other module that does not exist here -> what to do."""

_OTHER_FRAMEWORK = re.compile(r"(^|[._])(torch|tf|eager)([._]|$)")


class TorchNamesFinder(importlib.abc.MetaPathFinder):
    """Import finder that raises an error for RLlib modules that this package does not have.

    Handles only modules that no other finder finds. The missing modules are modules of other frameworks, of the old API
    stack, or without a counterpart in this package.
    """

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        """Raises for an RLlib module that is known to be missing in this package; ignores other names.

        Raises:
            ImportError: For such a module; names the replacement.
        """
        package, _, rest = fullname.partition(".")
        if package != "jaxrl_stack":
            return None
        listed = rest
        # The nearest one that says something: some of these packages are here, for other modules in them.
        while listed and listed not in _OLD_MODULES and listed not in _NO_COUNTERPART:
            listed = listed.rpartition(".")[0]
        if listed in _OLD_MODULES:
            raise ImportError(f"{fullname} is from RLlib's old API stack. Use {_OLD_MODULES[listed]}.", name=fullname)
        if listed:
            raise ImportError(f"{fullname} has no counterpart: {_NO_COUNTERPART[listed]}.", name=fullname)
        if not _OTHER_FRAMEWORK.search(rest):
            return None
        instead = next((ours for theirs, ours in _JAX_CLASSES.items() if rest.startswith(theirs)), None)
        hint = f" Use jaxrl_stack.{instead}." if instead else " Modules are Flax NNX modules; see core.rl_module."
        raise ImportError(f"{fullname} does not exist: this package supports JAX only.{hint}", name=fullname)
