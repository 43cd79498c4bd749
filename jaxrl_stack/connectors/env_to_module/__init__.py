"""Connectors that convert observations of the environment to inputs of the module."""

from jaxrl_stack.compat.absent_connectors import absent
from jaxrl_stack.connectors.common.flatten_observations import FlattenObservations
from jaxrl_stack.connectors.common.frame_stacking import FrameStacking
from jaxrl_stack.connectors.common.frame_stacking import FrameStacking as FrameStackingEnvToModule
from jaxrl_stack.connectors.env_to_module.default_observations import DefaultObservations
from jaxrl_stack.connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
from jaxrl_stack.connectors.env_to_module.mean_std_filter import MeanStdFilter, RecordedMeanStdFilter
from jaxrl_stack.connectors.env_to_module.observation_preprocessor import (
    MultiAgentObservationPreprocessor,
    ObservationPreprocessor,
    SingleAgentObservationPreprocessor,
)
from jaxrl_stack.connectors.env_to_module.one_hot_integers import OneHotIntegers
from jaxrl_stack.connectors.env_to_module.prev_actions_prev_rewards import PrevActionsPrevRewards
from jaxrl_stack.connectors.env_to_module.resize_images import ResizeImages
from jaxrl_stack.connectors.env_to_module.returns_so_far import ReturnsSoFar
from jaxrl_stack.connectors.markers import (
    AddObservationsFromEpisodesToBatch,
    AddStatesFromEpisodesToBatch,
    AddTimeDimToBatchAndZeroPad,
    BatchIndividualItems,
    NumpyToTensor,
)

__all__ = [
    "AddObservationsFromEpisodesToBatch",
    "AddStatesFromEpisodesToBatch",
    "AddTimeDimToBatchAndZeroPad",
    "BatchIndividualItems",
    "DefaultObservations",
    "EnvToModulePipeline",
    "FlattenObservations",
    "FrameStacking",
    "FrameStackingEnvToModule",
    "MeanStdFilter",
    "MultiAgentObservationPreprocessor",
    "NumpyToTensor",
    "ObservationPreprocessor",
    "OneHotIntegers",
    "PrevActionsPrevRewards",
    "RecordedMeanStdFilter",
    "ResizeImages",
    "ReturnsSoFar",
    "SingleAgentObservationPreprocessor",
]

__getattr__ = absent(__name__)
