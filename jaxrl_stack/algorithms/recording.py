"""Videos of what an algorithm does in its evaluation environments."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import jax

from jaxrl_stack.algorithms.settings_display import short
from jaxrl_stack.core import COMPONENT_ENV_TO_MODULE_CONNECTOR
from jaxrl_stack.env.recording import record_on_host
from jaxrl_stack.env.single_agent_env_runner import SingleAgentEnvRunner
from jaxrl_stack.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME
from jaxrl_stack.utils.seeds import derived_seed
from jaxrl_stack.utils.streams import Stream, stream_key
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
    # As an evaluation draws it.
    key = jax.random.fold_in(stream_key(runner.config.root_seed, Stream.EVALUATION), algorithm.iteration)
    episodes = runner.record(key=jax.random.fold_in(key, seed), num_episodes=num_episodes)
    return episodes, runner.env.render_fps


def _on_host(algorithm: Algorithm, num_episodes: int, seed: int) -> tuple[list[RecordedEpisode], float]:
    driver: Any = algorithm.driver
    config = algorithm.config.get_evaluation_config_object()
    assert config is not None
    state = {NUM_ENV_STEPS_SAMPLED_LIFETIME: driver.num_env_steps}
    connector = driver.env_to_module_state()
    if connector:
        state[COMPONENT_ENV_TO_MODULE_CONNECTOR] = connector

    def send_state(group: Any) -> None:
        group.sync_weights(from_worker_or_learner_group=driver.learner_group, more_state=state)

    own = derived_seed("evaluation", SingleAgentEnvRunner.seed_of(config), algorithm.iteration, seed)
    return record_on_host(config, send_state, seed=own, num_episodes=num_episodes)
