"""RLlib's import path of the class `FrameStacking` (alias `FrameStackingEnvToModule`), for env-to-module pipelines."""

from jaxrl_stack.connectors.common.frame_stacking import FrameStacking
from jaxrl_stack.connectors.common.frame_stacking import FrameStacking as FrameStackingEnvToModule

__all__ = ["FrameStacking", "FrameStackingEnvToModule"]
