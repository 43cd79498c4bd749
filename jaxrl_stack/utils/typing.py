"""Type aliases with RLlib's names, for annotations."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, TypeVar, Union

import gymnasium as gym
import jax
import numpy as np
import optax
from flax import nnx

if TYPE_CHECKING:
    from jaxrl_stack.core.rl_module.rl_module import MultiRLModuleSpec, RLModuleSpec
    from jaxrl_stack.env.env_context import EnvContext
    from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode
    from jaxrl_stack.utils.policy_spec import PolicySpec

    MultiAgentEpisode = Any

T = TypeVar("T")

# Arrays, and nestings of them. JAX's tracers are jax.Arrays, too.
TensorType = np.ndarray | jax.Array
TensorStructType = TensorType | dict | tuple
TensorShape = tuple[int, ...] | list[int]
SpaceStruct = gym.Space | dict | tuple
StateDict = dict[str, Any]

# Networks and what trains them.
NetworkType = nnx.Module
DeviceType = str | int | jax.Device
RLModuleSpecType = Union["RLModuleSpec", "MultiRLModuleSpec"]
Optimizer = LocalOptimizer = optax.GradientTransformation | nnx.Optimizer
Param = nnx.Param | jax.Array
ParamRef = Hashable
ParamDict = dict[ParamRef, Param]
ParamList = list[Param]
NamedParamDict = dict[str, Param]
ModelGradients = Any
"""A pytree like the parameters."""
ModelWeights = dict
ModelInputDict = dict[str, TensorType]
LearningRateOrSchedule = float | list[list[float]] | list[tuple[int, float]]
"""A number, or ``[[timestep, value], ...]``, linear in between."""

# Settings.
AlgorithmConfigDict = PartialAlgorithmConfigDict = ModelConfigDict = EnvConfigDict = dict
FromConfigSpec = dict[str, Any] | type | str
ConvFilterSpec = list[list[Any]]
"""``[num_filters, kernel_size, stride]`` per layer."""
FileType = Any

# Agents, modules, episodes.
AgentID = Hashable
ModuleID = PolicyID = str
EpisodeID = int | str
EpisodeType = Union["SingleAgentEpisode", "MultiAgentEpisode"]
MultiAgentDict = dict[AgentID, Any]
MultiAgentPolicyConfigDict = dict[PolicyID, "PolicySpec"]
AgentToModuleMappingFn = Callable[[AgentID, EpisodeType], ModuleID]
SampleBatchType = dict[str, Any]
"""``{module_id: {column: arrays}}``."""
ShouldModuleBeUpdatedFn = list[ModuleID] | Callable[[ModuleID, SampleBatchType | None], bool]
IsPolicyToTrain = Callable[[PolicyID, SampleBatchType | None], bool]

# Environments.
EnvType = gym.Env
EnvID = int | str
EnvCreator = Callable[["EnvContext"], EnvType | None]
EnvObsType = EnvActionType = Any
EnvInfoDict = dict
MultiEnvDict = dict[EnvID, MultiAgentDict]

# Results.
ResultDict = dict
LearnerStatsDict = GradInfoDict = dict
