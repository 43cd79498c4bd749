"""FrameStacking in a learner pipeline, under RLlib's import path."""

from __future__ import annotations

from jaxrl_stack.connectors.common.frame_stacking import FrameStacking

__all__ = ["FrameStacking", "FrameStackingLearner"]


class FrameStackingLearner(FrameStacking):
    """FrameStacking with ``as_learner_connector=True``: declares the space of stacked observations, and checks that
    observations are stacked already.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **{"as_learner_connector": True, **kwargs})
