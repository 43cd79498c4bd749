"""Parts of an algorithm: names of batch columns, action distributions, models, RLModules and Learners.

Names of agents, modules and components for all layers above; their values are RLlib's.
"""

from __future__ import annotations

from jaxrl_stack.compat.renamed import absent_or_renamed
from jaxrl_stack.core.columns import Columns as Columns

DEFAULT_AGENT_ID = "default_agent"
DEFAULT_POLICY_ID = "default_policy"
DEFAULT_MODULE_ID = DEFAULT_POLICY_ID
ALL_MODULES = "__all_modules__"

COMPONENT_ENV_RUNNER = "env_runner"
COMPONENT_ENV_TO_MODULE_CONNECTOR = "env_to_module_connector"
COMPONENT_EVAL_ENV_RUNNER = "eval_env_runner"
COMPONENT_LEARNER = "learner"
COMPONENT_LEARNER_GROUP = "learner_group"
COMPONENT_METRICS_LOGGER = "metrics_logger"
COMPONENT_MODULE_TO_ENV_CONNECTOR = "module_to_env_connector"
COMPONENT_OPTIMIZER = "optimizer"
COMPONENT_REPLAY_BUFFER = "replay_buffer"
COMPONENT_RL_MODULE = "rl_module"


__getattr__ = absent_or_renamed(__name__, absent={"TorchRLModule": "`core.rl_module.RLModule`, a Flax NNX module"})
