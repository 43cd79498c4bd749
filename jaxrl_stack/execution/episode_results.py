"""Statistics of finished episodes (returns, lengths, durations) for the result of an iteration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_stack.utils.results import EPISODE_STATISTICS, NAN

if TYPE_CHECKING:
    from jaxrl_stack.acting.recording import EndedEpisodes
    from jaxrl_stack.core.module_map import ModuleMap


def episode_results(episodes: EndedEpisodes) -> dict[str, float]:
    """Mean, min and max of the episodes' returns and lengths, and mean duration; NaN without episodes."""
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


def mean_returns_by_id(
    mean: Any, means: Mapping[str, Mapping[str, float]], module_map: ModuleMap
) -> dict[str, dict[str, Any]]:
    """Mean returns by agent and by module, each under RLlib's two keys: ``..._episode_return_mean`` and
    ``..._episode_returns_mean``.

    RLlib's keys are singular for one agent and plural for several. Scripts read both.

    Args:
        mean: Mean return of the episodes.
        means: ``{"agent": {id: mean}, "module": {id: mean}}`` of several agents; {} for one agent.
        module_map: Map from agents to modules.
    """
    if not means:
        means = module_map.numbers("{}", dict.fromkeys(module_map.module_of, mean))
    keys = ("{}_episode_return_mean", "{}_episode_returns_mean")
    return {key.format(kind): dict(own) for key in keys for kind, own in means.items()}
