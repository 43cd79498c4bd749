"""Videos of an algorithm in its evaluation environments."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_stack.algorithms.settings_display import short
from jaxrl_stack.videos.encoding import checked_path
from jaxrl_stack.videos.episodes import check_num_episodes
from jaxrl_stack.videos.video import Video, make_video

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm import Algorithm
    from jaxrl_stack.algorithms.games import Player


def record(
    algorithm: Algorithm,
    path: str | os.PathLike[str],
    episodes: int = 1,
    *,
    against: Player | None = None,
    seat: Any = None,
    seed: int = 0,
    fps: float | None = None,
) -> Video:
    """Records a video; see `Algorithm.record` for the arguments."""
    checked_path(path)
    check_num_episodes(episodes)
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**32:
        raise ValueError(f"record(seed={seed!r}): must be an integer from 0 to 2**32 - 1.")
    if against is not None:
        # By name: that module imports `Algorithm`, which imports this one.
        games = importlib.import_module("jaxrl_stack.algorithms.recorded_games")
        recorded, own_fps = games.record_games(algorithm, against, episodes, seed=seed, seat=seat)
    elif seat is not None:
        raise ValueError(
            f"record(seat={seat!r}): applies only to games against a rival. Add against='random', or leave seat out."
        )
    else:
        recorded, own_fps = algorithm.driver.record(algorithm.iteration, seed, episodes)
        if not recorded:
            raise ValueError(
                f"record() renders frames in episode callbacks, but env_runner_cls="
                f"{short(algorithm.config.env_runner_cls)} calls none. Call the callbacks on_episode_start and "
                f"on_episode_step in this class, or use algorithm.get_policy().record(path, env)."
            )
    return make_video(recorded, path, own_fps if fps is None else fps)
