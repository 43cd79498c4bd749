"""Connectors that convert sampled steps to the batch that a loss receives."""

from jaxrl_stack.compat.absent_connectors import absent
from jaxrl_stack.connectors.learner.add_next_observations_from_episodes_to_train_batch import (
    AddNextObservationsFromEpisodesToTrainBatch,
)
from jaxrl_stack.connectors.learner.compute_returns_to_go import ComputeReturnsToGo
from jaxrl_stack.connectors.learner.frame_stacking import FrameStacking, FrameStackingLearner
from jaxrl_stack.connectors.learner.general_advantage_estimation import GeneralAdvantageEstimation
from jaxrl_stack.connectors.learner.learner_connector_pipeline import LearnerConnectorPipeline
from jaxrl_stack.connectors.learner.normalize_rewards import NormalizeRewards
from jaxrl_stack.connectors.learner.scale_rewards import ScaleRewards
from jaxrl_stack.connectors.markers import (
    AddColumnsFromEpisodesToTrainBatch,
    AddObservationsFromEpisodesToBatch,
    AddOneTsToEpisodesAndTruncate,
    AddStatesFromEpisodesToBatch,
    AddTimeDimToBatchAndZeroPad,
    BatchIndividualItems,
    NumpyToTensor,
)

__all__ = [
    "AddColumnsFromEpisodesToTrainBatch",
    "AddNextObservationsFromEpisodesToTrainBatch",
    "AddObservationsFromEpisodesToBatch",
    "AddOneTsToEpisodesAndTruncate",
    "AddStatesFromEpisodesToBatch",
    "AddTimeDimToBatchAndZeroPad",
    "BatchIndividualItems",
    "ComputeReturnsToGo",
    "FrameStacking",
    "FrameStackingLearner",
    "GeneralAdvantageEstimation",
    "LearnerConnectorPipeline",
    "NormalizeRewards",
    "NumpyToTensor",
    "ScaleRewards",
]

__getattr__ = absent(__name__)
