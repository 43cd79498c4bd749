"""Connectors that serve in more than one pipeline."""

from jaxrl_stack.connectors.common.absent import absent
from jaxrl_stack.connectors.common.flatten_observations import FlattenObservations
from jaxrl_stack.connectors.common.frame_stacking import FrameStacking

__all__ = ["FlattenObservations", "FrameStacking"]

__getattr__ = absent(__name__)
