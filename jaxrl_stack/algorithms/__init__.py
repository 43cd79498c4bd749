"""Algorithm configs, the class `Algorithm`, the registry of algorithms by name, and one folder per algorithm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxrl_stack.compat.unsupported_names import name_elsewhere
from jaxrl_stack.utils.lazy_names import lazy_names

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm import Algorithm
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.algorithms.appo.appo import APPO, APPOConfig
    from jaxrl_stack.algorithms.bc.bc import BC, BCConfig
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
    from jaxrl_stack.algorithms.tqc.tqc import TQC, TQCConfig

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
    "BCConfig",
    "CQLConfig",
    "DQNConfig",
    "DreamerV3",
    "DreamerV3Config",
    "IMPALAConfig",
    "IQLConfig",
    "MARWILConfig",
    "PPOConfig",
    "PQNConfig",
    "SACConfig",
    "TD3Config",
    "TQCConfig",
]

# Imported when asked for: no algorithm pays for the others.
_MODULES = {
    "algorithm": ("Algorithm",),
    "algorithm_config": ("AlgorithmConfig",),
    "appo.appo": ("APPO", "APPOConfig"),
    "bc.bc": ("BC", "BCConfig"),
    "cql.cql": ("CQL", "CQLConfig"),
    "dqn.dqn": ("DQN", "DQNConfig"),
    "dreamerv3.dreamerv3": ("DreamerV3", "DreamerV3Config"),
    "impala.impala": ("IMPALA", "IMPALAConfig", "Impala", "ImpalaConfig"),
    "iql.iql": ("IQL", "IQLConfig"),
    "marwil.marwil": ("MARWIL", "MARWILConfig"),
    "ppo.ppo": ("PPO", "PPOConfig"),
    "pqn.pqn": ("PQN", "PQNConfig"),
    "sac.sac": ("SAC", "SACConfig"),
    "td3.td3": ("TD3", "TD3Config"),
    "tqc.tqc": ("TQC", "TQCConfig"),
}

__getattr__, __dir__ = lazy_names(__name__, _MODULES, name_elsewhere)
