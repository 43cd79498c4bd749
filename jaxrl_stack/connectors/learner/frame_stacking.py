"""FrameStacking in a learner pipeline, under RLlib's import path."""

from __future__ import annotations

from jaxrl_stack.connectors.common.frame_stacking import FrameStacking

__all__ = ["FrameStacking", "FrameStackingLearner"]


class FrameStackingLearner(FrameStacking):
    """FrameStacking for learner pipelines, with ``as_learner_connector=True``. It stacks nothing, because observations
    are already stacked. It checks that the length of the input space's last axis is a multiple of ``num_frames``; the
    output space is the input space.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **{"as_learner_connector": True, **kwargs})
