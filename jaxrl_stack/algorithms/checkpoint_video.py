"""Videos of episodes played by the algorithm of a checkpoint."""

from __future__ import annotations

import os
from typing import Any

from jaxrl_stack.algorithms.algorithm import Algorithm
from jaxrl_stack.algorithms.games import Player
from jaxrl_stack.videos.encoding import checked_path
from jaxrl_stack.videos.video import Video


def record_checkpoint(
    checkpoint: str | os.PathLike[str],
    path: str | os.PathLike[str],
    episodes: int = 1,
    *,
    against: Player | None = None,
    seat: Any = None,
    seed: int = 0,
    fps: float | None = None,
    **settings: Any,
) -> Video:
    """Records a video of episodes played by the algorithm of a checkpoint.

    Args:
        checkpoint: A folder written by ``Algorithm.save_to_path``.
        path: File that ends in .mp4, .webm or .gif; see `Algorithm.record`.
        episodes: Number of episodes.
        against, seat: Player of the other seats of a game, and seat of the policy; see `Algorithm.record`.
        seed: Selects the episodes.
        fps: Frames per second.
        **settings: Arguments of ``Algorithm.from_checkpoint``: `config`, `allow`, and settings that replace stored
            ones.

    Raises:
        FileNotFoundError: If there is no checkpoint.
        ValueError: See ``Algorithm.from_checkpoint`` and `Algorithm.record`.
    """
    checked_path(path)
    algorithm = Algorithm.from_checkpoint(checkpoint, **settings)
    try:
        return algorithm.record(path, episodes, against=against, seat=seat, seed=seed, fps=fps)
    finally:
        algorithm.stop()
