"""FrameStacking in an env-to-module pipeline."""

from jaxrl_stack.connectors.common.frame_stacking import FrameStacking

FrameStackingEnvToModule = FrameStacking

__all__ = ["FrameStacking", "FrameStackingEnvToModule"]
