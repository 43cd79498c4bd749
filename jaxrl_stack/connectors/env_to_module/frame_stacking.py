"""Re-exports the class `FrameStacking`, for env-to-module pipelines, under its RLlib import path.

`FrameStackingEnvToModule` is an alias of this class.
"""

from jaxrl_stack.connectors.common.frame_stacking import FrameStacking
from jaxrl_stack.connectors.common.frame_stacking import FrameStacking as FrameStackingEnvToModule

__all__ = ["FrameStacking", "FrameStackingEnvToModule"]
