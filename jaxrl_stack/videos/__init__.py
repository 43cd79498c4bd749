"""Videos of episodes: conversion of frames to mp4, webm or gif files, and a player for notebooks.

``algo.record("x.mp4")`` and ``policy.record("x.mp4", env)`` make them; `record_checkpoint` makes one of a checkpoint.
"""

from jaxrl_stack.utils.lazy_names import lazy_names

# What builds an algorithm from a checkpoint stands far below this room: found when it is asked for.
_MODULES = {
    "episodes": ("RecordedEpisode",),
    "video": ("Video", "make_video"),
    ".algorithms.checkpoint_video": ("record_checkpoint",),
}

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
