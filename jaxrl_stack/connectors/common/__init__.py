"""Connectors that fit into several kinds of pipelines, such as env-to-module and learner pipelines."""

from jaxrl_stack.compat.absent_connectors import absent
from jaxrl_stack.connectors.common.flatten_observations import FlattenObservations
from jaxrl_stack.connectors.common.frame_stacking import FrameStacking
from jaxrl_stack.connectors.markers import (
    AddObservationsFromEpisodesToBatch,
    AddStatesFromEpisodesToBatch,
    AddTimeDimToBatchAndZeroPad,
    BatchIndividualItems,
    NumpyToTensor,
    TensorToNumpy,
)

__all__ = [
    "AddObservationsFromEpisodesToBatch",
    "AddStatesFromEpisodesToBatch",
    "AddTimeDimToBatchAndZeroPad",
    "BatchIndividualItems",
    "FlattenObservations",
    "FrameStacking",
    "NumpyToTensor",
    "TensorToNumpy",
]

__getattr__ = absent(__name__)
