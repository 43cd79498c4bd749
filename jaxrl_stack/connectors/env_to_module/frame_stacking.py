"""FrameStacking in an env-to-module pipeline, under RLlib's import path."""

from jaxrl_stack.connectors.common.frame_stacking import FrameStacking
from jaxrl_stack.connectors.common.frame_stacking import FrameStacking as FrameStackingEnvToModule

__all__ = ["FrameStacking", "FrameStackingEnvToModule"]
