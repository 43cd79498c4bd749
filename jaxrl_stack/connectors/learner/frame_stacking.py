"""`FrameStacking` and `FrameStackingLearner` for learner pipelines, under their RLlib import path."""

from __future__ import annotations

from jaxrl_stack.connectors.common.frame_stacking import FrameStacking

__all__ = ["FrameStacking", "FrameStackingLearner"]


class FrameStackingLearner(FrameStacking):
    """`FrameStacking` for learner pipelines: checks the space of the stacked observations, and stacks nothing.

    The env-to-module pipeline has already stacked the observations. The connector checks that the length of the input
    space's last axis is a multiple of ``num_frames``; the output space is the input space. The default of
    ``as_learner_connector`` is True.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **{"as_learner_connector": True, **kwargs})
