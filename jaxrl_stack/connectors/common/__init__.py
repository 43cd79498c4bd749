"""Connectors that can be used in more than one pipeline."""

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
