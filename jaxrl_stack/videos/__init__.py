"""Videos of episodes: frames to mp4, webm or gif, and a player in notebooks.

``algo.record("x.mp4")`` and ``policy.record("x.mp4", env)`` make them; `record_checkpoint` makes one of a checkpoint.
"""

import importlib
from typing import Any

# What builds an algorithm from a checkpoint stands far below this room: found when it is asked for.
_HOMES = {
    "RecordedEpisode": "jaxrl_stack.videos.episodes",
    "Video": "jaxrl_stack.videos.video",
    "make_video": "jaxrl_stack.videos.video",
    "record_checkpoint": "jaxrl_stack.algorithms.checkpoint_video",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
