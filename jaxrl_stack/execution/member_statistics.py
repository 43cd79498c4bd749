"""Statistics of the last episodes of each member of a population."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from jaxrl_stack.utils import counters

if TYPE_CHECKING:
    from jaxrl_stack.acting.episode_window import EpisodeWindow


def episode_results_of_members(window: EpisodeWindow, seconds_per_step: float) -> dict[str, np.ndarray]:
    """Statistics (return, length, duration) of the last episodes of every member; see `execution.episode_results`.

    Args:
        window: Window with fields ``[M, ...]``, NumPy.
        seconds_per_step: Wall time of one step of one environment.

    Returns:
        ``float64[M]`` by name; NaN for members without finished episodes.
    """
    size = window.returns.shape[1]
    is_known = np.arange(size) >= size - window.count[:, None]
    results = {}
    for name, values in (("return", window.returns), ("len", window.lengths)):
        values = values.astype(np.float64)
        number = np.maximum(window.count, 1)
        results[f"episode_{name}_mean"] = np.where(is_known, values, 0.0).sum(axis=1) / number
        results[f"episode_{name}_min"] = np.where(is_known, values, np.inf).min(axis=1)
        results[f"episode_{name}_max"] = np.where(is_known, values, -np.inf).max(axis=1)
    results["episode_duration_sec_mean"] = results["episode_len_mean"] * seconds_per_step
    return {name: np.where(window.count > 0, values, np.nan) for name, values in results.items()}


def num_episodes_of_members(window: EpisodeWindow) -> np.ndarray:
    """Number of finished episodes of each of M members so far, int64 ``[M]``."""
    return np.array([counters.to_int(counter) for counter in window.num_episodes], np.int64)
