"""An evaluation: how much is sampled for it, and what is reported of it. How it is sampled, each place says."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrl_stack.acting.recording import EndedEpisodes
from jaxrl_stack.env.episode_quota import episode_quota
from jaxrl_stack.execution.driver import episode_results
from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger
from jaxrl_stack.utils.results import merge_nested

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig

Amounts = list[tuple[int, dict[str, int]]]
"""``(id of a runner, {"num_episodes": n} or {"num_timesteps": n})``."""
Share = tuple[int, EndedEpisodes, dict[str, Any]]
"""``(env steps, the episodes that ended, the runner's reduced metrics)``."""


def evaluation_results(
    config: AlgorithmConfig,
    ids: Sequence[int],
    sample: Callable[[Amounts, bool], Sequence[Share]],
    is_training: Callable[[], bool] | None = None,
) -> dict[str, Any]:
    """What ``result["evaluation"]["env_runners"]`` holds.

    Args:
        config: Evaluation's.
        ids: Of the runners that sample.
        sample: ``(amounts, whether environments may be reset first) -> shares``, one round of sampling.
        is_training: For a duration of "auto": whether the training step beside it goes on.
    """
    started = time.perf_counter()
    logger = MetricsLogger(root=True, stats_cls_lookup=config.stats_cls_lookup)
    shares: list[Share] = []
    for number, amounts in enumerate(_rounds(config, ids, shares, is_training)):
        new = sample(amounts, number == 0)
        logger.aggregate([metrics for _, _, metrics in new])
        shares += new
    ended = [episodes for _, episodes, _ in shares] or [EndedEpisodes.of(())]
    episodes = EndedEpisodes(**jax.tree.map(lambda *parts: np.concatenate(parts), *map(vars, ended)))
    results = logger.compile()
    counts = {
        "num_episodes": len(episodes.returns),
        "num_env_steps_sampled": sum(num_env_steps for num_env_steps, _, _ in shares),
        "sample": time.perf_counter() - started,
    }
    merge_nested(results, episode_results(episodes) | counts)
    return results


def _rounds(
    config: AlgorithmConfig, ids: Sequence[int], shares: Sequence[Share], is_training: Callable[[], bool] | None
) -> Iterator[Amounts]:
    """What to sample; `shares` is what was sampled so far. "auto": about a second per round, until training is done."""
    if config.evaluation_duration != "auto":
        duration = int(config.evaluation_duration)
        if config.evaluation_duration_unit == "episodes":
            quota = zip(ids, episode_quota(duration, len(ids)), strict=True)
            yield [(i, {"num_episodes": n}) for i, n in quota if n]
        else:
            yield [(i, {"num_timesteps": -(-duration // len(ids))}) for i in ids]
        return
    assert is_training is not None
    started = time.perf_counter()
    fewest = num_steps = config.evaluation_auto_duration_min_env_steps_per_sample
    yield [(i, {"num_timesteps": num_steps}) for i in ids]
    while is_training():
        sampled = sum(num_env_steps for num_env_steps, _, _ in shares)
        rate = sampled / max(time.perf_counter() - started, 1e-9) / len(ids)
        num_steps = int(np.clip(rate, fewest, config.evaluation_auto_duration_max_env_steps_per_sample))
        yield [(i, {"num_timesteps": num_steps}) for i in ids]
