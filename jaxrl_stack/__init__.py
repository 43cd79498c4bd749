"""RLlib's new API stack on JAX: the same calls, compiled from environment to optimizer.

Importing this module is cheap: it starts no JAX backend and imports neither jax nor gymnax nor Ray. Public names live
where RLlib has them, with ``ray.rllib`` replaced by ``jaxrl_stack`` (``from jaxrl_stack.algorithms.ppo import
PPOConfig``); those that nearly every script needs are here as well: ``from jaxrl_stack import PPOConfig, RLModule``.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from jaxrl_stack.compat.near_names import NearNames
from jaxrl_stack.compat.torch_names import TorchNamesFinder
from jaxrl_stack.compat.unsupported_names import UnsupportedModules, name_elsewhere
from jaxrl_stack.tune.registration import install as _connect_with_tune
from jaxrl_stack.utils.lazy_names import lazy_names

if TYPE_CHECKING:
    from jaxrl_stack import distributed
    from jaxrl_stack.algorithms.algorithm import Algorithm
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.algorithms.appo.appo import APPO, APPOConfig
    from jaxrl_stack.algorithms.bc.bc import BC, BCConfig
    from jaxrl_stack.algorithms.benchmark import run_benchmark
    from jaxrl_stack.algorithms.cql.cql import CQL, CQLConfig
    from jaxrl_stack.algorithms.dqn.dqn import DQN, DQNConfig
    from jaxrl_stack.algorithms.dreamerv3.dreamerv3 import DreamerV3, DreamerV3Config
    from jaxrl_stack.algorithms.impala.impala import IMPALA, IMPALAConfig
    from jaxrl_stack.algorithms.iql.iql import IQL, IQLConfig
    from jaxrl_stack.algorithms.marwil.marwil import MARWIL, MARWILConfig
    from jaxrl_stack.algorithms.ppo.ppo import PPO, PPOConfig
    from jaxrl_stack.algorithms.pqn.pqn import PQN, PQNConfig
    from jaxrl_stack.algorithms.sac.sac import SAC, SACConfig
    from jaxrl_stack.algorithms.td3.td3 import TD3, TD3Config
    from jaxrl_stack.algorithms.tournament import run_tournament
    from jaxrl_stack.algorithms.tqc.tqc import TQC, TQCConfig
    from jaxrl_stack.callbacks.callbacks import RLlibCallback
    from jaxrl_stack.connectors.connector_v2 import ConnectorV2
    from jaxrl_stack.core.columns import Columns
    from jaxrl_stack.core.learner.learner import Learner
    from jaxrl_stack.core.opponents import Snapshots
    from jaxrl_stack.core.rl_module.apis.value_function_api import ValueFunctionAPI
    from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig
    from jaxrl_stack.core.rl_module.rl_module import RLModule, RLModuleSpec
    from jaxrl_stack.env.jax_env import AutoResetJaxEnv, JaxEnv
    from jaxrl_stack.env.multi_agent_env import MultiAgentEnv
    from jaxrl_stack.env.registry import register_env
    from jaxrl_stack.env.single_agent_env_runner import SingleAgentEnvRunner
    from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode
    from jaxrl_stack.policy.policy import Policy
    from jaxrl_stack.utils.devices import use_cpu_devices

__version__ = "0.1.0"

__all__ = [
    "APPO",
    "BC",
    "CQL",
    "DQN",
    "IMPALA",
    "IQL",
    "MARWIL",
    "PPO",
    "PQN",
    "SAC",
    "TD3",
    "TQC",
    "APPOConfig",
    "Algorithm",
    "AlgorithmConfig",
    "AutoResetJaxEnv",
    "BCConfig",
    "CQLConfig",
    "Columns",
    "ConnectorV2",
    "DQNConfig",
    "DefaultModelConfig",
    "DreamerV3",
    "DreamerV3Config",
    "IMPALAConfig",
    "IQLConfig",
    "JaxEnv",
    "Learner",
    "MARWILConfig",
    "MultiAgentEnv",
    "PPOConfig",
    "PQNConfig",
    "Policy",
    "RLModule",
    "RLModuleSpec",
    "RLlibCallback",
    "SACConfig",
    "SingleAgentEnvRunner",
    "SingleAgentEpisode",
    "Snapshots",
    "TD3Config",
    "TQCConfig",
    "ValueFunctionAPI",
    "__version__",
    "distributed",
    "register_env",
    "run_benchmark",
    "run_tournament",
    "use_cpu_devices",
]

# Imported when asked for: their modules import jax.
_MODULES = {
    "algorithms.algorithm": ("Algorithm",),
    "algorithms.algorithm_config": ("AlgorithmConfig",),
    "algorithms.appo.appo": ("APPO", "APPOConfig"),
    "algorithms.bc.bc": ("BC", "BCConfig"),
    "algorithms.benchmark": ("run_benchmark",),
    "algorithms.cql.cql": ("CQL", "CQLConfig"),
    "algorithms.dqn.dqn": ("DQN", "DQNConfig"),
    "algorithms.dreamerv3.dreamerv3": ("DreamerV3", "DreamerV3Config"),
    "algorithms.impala.impala": ("IMPALA", "IMPALAConfig"),
    "algorithms.iql.iql": ("IQL", "IQLConfig"),
    "algorithms.marwil.marwil": ("MARWIL", "MARWILConfig"),
    "algorithms.ppo.ppo": ("PPO", "PPOConfig"),
    "algorithms.pqn.pqn": ("PQN", "PQNConfig"),
    "algorithms.sac.sac": ("SAC", "SACConfig"),
    "algorithms.td3.td3": ("TD3", "TD3Config"),
    "algorithms.tournament": ("run_tournament",),
    "algorithms.tqc.tqc": ("TQC", "TQCConfig"),
    "callbacks.callbacks": ("RLlibCallback",),
    "connectors.connector_v2": ("ConnectorV2",),
    "core.columns": ("Columns",),
    "core.learner.learner": ("Learner",),
    "core.opponents": ("Snapshots",),
    "core.rl_module.apis.value_function_api": ("ValueFunctionAPI",),
    "core.rl_module.default_model_config": ("DefaultModelConfig",),
    "core.rl_module.rl_module": ("RLModule", "RLModuleSpec"),
    "distributed": (),
    "env.jax_env": ("AutoResetJaxEnv", "JaxEnv"),
    "env.multi_agent_env": ("MultiAgentEnv",),
    "env.registry": ("register_env",),
    "env.single_agent_env_runner": ("SingleAgentEnvRunner",),
    "episodes.single_agent_episode": ("SingleAgentEpisode",),
    "policy.policy": ("Policy",),
    "utils.devices": ("use_cpu_devices",),
}

if not any(isinstance(finder, TorchNamesFinder) for finder in sys.meta_path):
    sys.meta_path += [UnsupportedModules(), TorchNamesFinder(), NearNames(__name__)]
# Imports nothing: it waits for ray.tune.
_connect_with_tune()

__getattr__, __dir__ = lazy_names(__name__, _MODULES, name_elsewhere)
