"""What results say of episodes that ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from jaxrl_stack.utils.results import EPISODE_STATISTICS, NAN

if TYPE_CHECKING:
    from jaxrl_stack.acting.recording import EndedEpisodes


def episode_results(episodes: EndedEpisodes) -> dict[str, float]:
    """Mean, min and max of episodes; NaN where there are none."""
    returns, lengths = episodes.returns, episodes.lengths
    if len(returns) == 0:
        return dict.fromkeys(EPISODE_STATISTICS, NAN)
    return {
        "episode_return_mean": float(np.mean(returns, dtype=np.float64)),
        "episode_return_min": float(np.min(returns)),
        "episode_return_max": float(np.max(returns)),
        "episode_len_mean": float(np.mean(lengths)),
        "episode_len_min": int(np.min(lengths)),
        "episode_len_max": int(np.max(lengths)),
        "episode_duration_sec_mean": float(np.mean(episodes.durations)),
    }
