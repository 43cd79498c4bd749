"""A video of what is in a checkpoint."""

from __future__ import annotations

import os
from typing import Any

from jaxrl_stack.algorithms.algorithm import Algorithm
from jaxrl_stack.videos.encoding import checked_path
from jaxrl_stack.videos.video import Video


def record_checkpoint(
    checkpoint: str | os.PathLike[str],
    path: str | os.PathLike[str],
    episodes: int = 1,
    *,
    seed: int = 0,
    fps: float | None = None,
    **settings: Any,
) -> Video:
    """A video of what the algorithm of a checkpoint does.

    Args:
        checkpoint: A folder written by ``Algorithm.save_to_path``.
        path: See `Algorithm.record`, also for the other arguments.
        episodes: How many.
        seed: Which ones.
        fps: Frames per second.
        **settings: For ``Algorithm.from_checkpoint``: `config`, `allow`, settings in place of the stored ones.

    Raises:
        FileNotFoundError: There is no checkpoint.
        ValueError: As ``Algorithm.from_checkpoint`` and `Algorithm.record`.
    """
    checked_path(path)
    algorithm = Algorithm.from_checkpoint(checkpoint, **settings)
    try:
        return algorithm.record(path, episodes, seed=seed, fps=fps)
    finally:
        algorithm.stop()
