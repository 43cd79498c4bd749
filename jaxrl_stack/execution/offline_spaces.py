"""The spaces of a module that is trained on data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxrl_stack.connectors.env_to_module import RecordedMeanStdFilter

if TYPE_CHECKING:
    import gymnasium as gym

    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig


def spaces_without_env(config: AlgorithmConfig) -> tuple[gym.Space, gym.Space]:
    """The module's observation and action space where training samples no environment.

    Those of the config; where it names an environment, which evaluation steps, those that its connectors make of the
    environment's. It is made for this, and kept for evaluation or closed.

    Raises:
        ValueError: If there are none; names the settings.
    """
    if config.env is not None:
        resolved = config._resolve_env()
        env = resolved.make()
        try:
            pipeline = config.build_env_to_module_connector(env=env)
        finally:
            resolved.release(env)
        return pipeline.observation_space, pipeline.action_space
    observation_space, action_space = config.observation_space, config.action_space
    if observation_space is None or action_space is None:
        raise ValueError(
            f"Without an environment the spaces have to be set: environment(observation_space=..., "
            f"action_space=...) are {(observation_space, action_space)}."
        )
    if config.normalize_observations:
        observation_space = RecordedMeanStdFilter(observation_space, action_space).observation_space
    return observation_space, action_space
