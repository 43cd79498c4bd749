"""Connectors that convert outputs of the module to actions for the environment."""

from jaxrl_stack.compat.absent_connectors import absent
from jaxrl_stack.connectors.markers import (
    ListifyDataForVectorEnv,
    RemoveSingleTsTimeRankFromBatch,
    TensorToNumpy,
    UnBatchToIndividualItems,
)
from jaxrl_stack.connectors.module_to_env.action_noise import ActionNoise, ColoredNoise, OrnsteinUhlenbeckNoise
from jaxrl_stack.connectors.module_to_env.get_actions import GetActions
from jaxrl_stack.connectors.module_to_env.module_to_env_pipeline import ModuleToEnvPipeline
from jaxrl_stack.connectors.module_to_env.normalize_and_clip_actions import NormalizeAndClipActions
from jaxrl_stack.connectors.module_to_env.random_actions import RandomActions

__all__ = [
    "ActionNoise",
    "ColoredNoise",
    "GetActions",
    "ListifyDataForVectorEnv",
    "ModuleToEnvPipeline",
    "NormalizeAndClipActions",
    "OrnsteinUhlenbeckNoise",
    "RandomActions",
    "RemoveSingleTsTimeRankFromBatch",
    "TensorToNumpy",
    "UnBatchToIndividualItems",
]

__getattr__ = absent(__name__)
