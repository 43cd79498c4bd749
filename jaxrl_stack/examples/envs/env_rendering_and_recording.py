"""Callback that records videos of episodes and logs them with the results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxrl_stack.callbacks.callbacks import RLlibCallback
from jaxrl_stack.utils.images import resize

_IMAGES = "render_images"
HEIGHT, WIDTH = 64, 96
"""Of the images of a video, in pixels."""


class EnvRenderCallback(RLlibCallback):
    """Renders every step of gymnasium environments with ``render_mode="rgb_array"``, and logs videos of the best and
    the worst episode.

    Of the episodes that end in a sample the best one and the worst one are logged, as lists of videos uint8
    ``[1, T, 3, HEIGHT, WIDTH]``, under ``episode_videos_best`` and ``episode_videos_worst``.

    Args:
        env_runner_indices: ``worker_index`` of the env runners that render; None: all of them.
    """

    def __init__(self, env_runner_indices: Sequence[int] | None = None):
        super().__init__()
        self._env_runner_indices = env_runner_indices
        self._videos: list[tuple[float, np.ndarray]] = []

    def on_episode_step(self, *, episode: Any, env_runner: Any, env: Any, env_index: int, **kwargs: Any) -> None:
        """Stores an image of the environment after the step, for a video of the episode."""
        if self._env_runner_indices is not None and env_runner.worker_index not in self._env_runner_indices:
            return
        image = resize(env.unwrapped.envs[env_index].render(), HEIGHT, WIDTH)
        episode.custom_data.setdefault(_IMAGES, []).append(np.moveaxis(image, -1, 0))

    def on_episode_end(self, *, episode: Any, **kwargs: Any) -> None:
        """Stores the video of the episode if the episode's return is the highest or the lowest one since the last call
        of `on_sample_end`.
        """
        images = episode.custom_data.pop(_IMAGES, None)
        if not images:
            return
        ranked = sorted([*self._videos, (episode.get_return(), np.stack(images)[None])], key=lambda video: video[0])
        self._videos = ranked if len(ranked) < 2 else [ranked[0], ranked[-1]]

    def on_sample_end(self, *, metrics_logger: Any, **kwargs: Any) -> None:
        """Logs the videos of the best and the worst episode that ended since the previous call."""
        if self._videos:
            metrics_logger.log_value("episode_videos_best", self._videos[-1][1], reduce="item_series")
            metrics_logger.log_value("episode_videos_worst", self._videos[0][1], reduce="item_series")
        self._videos = []
