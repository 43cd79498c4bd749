"""Videos of what an algorithm does in its evaluation environments."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from jaxrl_stack.algorithms.settings_display import short
from jaxrl_stack.env.recording import record_on_host
from jaxrl_stack.execution.host_driver import evaluation_seed
from jaxrl_stack.videos.encoding import checked_path
from jaxrl_stack.videos.episodes import RecordedEpisode, check_num_episodes
from jaxrl_stack.videos.video import Video, make_video

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm import Algorithm


def record(
    algorithm: Algorithm, path: str | os.PathLike[str], episodes: int = 1, *, seed: int = 0, fps: float | None = None
) -> Video:
    """See `Algorithm.record`."""
    checked_path(path)
    check_num_episodes(episodes)
    driver = algorithm.driver
    recorded, own_fps = (_on_device if driver.is_on_device else _on_host)(algorithm, episodes, seed)
    if not recorded:
        raise ValueError(
            f"record(): {short(algorithm.config.env_runner_cls)} has called no callback of episodes, at which frames "
            "are taken. Call them in env_runner_cls, or use algorithm.get_policy().record(path, env)."
        )
    return make_video(recorded, path, own_fps if fps is None else fps)


def _on_device(algorithm: Algorithm, num_episodes: int, seed: int) -> tuple[list[RecordedEpisode], float]:
    runner: Any = algorithm.eval_env_runner
    if runner is None:
        raise ValueError(
            "record() needs an environment in this process, and this algorithm has none here. Set environment(...); "
            "with num_learners > 0, record from a checkpoint: Algorithm.from_checkpoint(path, num_learners=0)."
        )
    driver: Any = algorithm.driver
    episodes = runner.record(key=driver.evaluation_key(algorithm.iteration, seed), num_episodes=num_episodes)
    return episodes, runner.env.render_fps


def _on_host(algorithm: Algorithm, num_episodes: int, seed: int) -> tuple[list[RecordedEpisode], float]:
    driver: Any = algorithm.driver
    config = algorithm.config.get_evaluation_config_object()
    assert config is not None
    seed = evaluation_seed(config, algorithm.iteration, seed)
    return record_on_host(config, driver.sync_evaluation, seed=seed, num_episodes=num_episodes)
