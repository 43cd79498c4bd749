"""Conversion of recorded environment observations to module inputs, for runs that do not sample an environment."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from jaxrl_stack.connectors.recorded_inputs import PipelineInputs
from jaxrl_stack.datasets.bad_data import BadDataError
from jaxrl_stack.env.randomized_jax_env import with_randomized_params
from jaxrl_stack.env.step_output import CONNECTORS, NO_CONNECTORS, described_connectors
from jaxrl_stack.utils.notices import notice_once

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.connectors.env_to_module import EnvToModulePipeline
    from jaxrl_stack.datasets.opening import Dataset


def pipeline_without_env(config: AlgorithmConfig) -> EnvToModulePipeline:
    """Builds the env-to-module pipeline of a run that trains without sampling an environment.

    If the config names an environment, this function creates the environment to build the pipeline, and then keeps it
    for an env runner or closes it. Otherwise, the pipeline is built from the config's spaces.

    Raises:
        ValueError: If the config names neither an environment nor both spaces, or if its connectors cannot be built
            from spaces only; the message names the settings.
    """
    if config.env is not None:
        resolved = config._resolve_env()
        env = resolved.make()
        try:
            seen = with_randomized_params(config, env) if resolved.is_jax else env
            return config.build_env_to_module_connector(env=seen)
        finally:
            resolved.release(env)
    observation_space, action_space = config.observation_space, config.action_space
    if observation_space is None or action_space is None:
        raise ValueError(
            "Without an environment, observation_space and action_space are required, but they are "
            f"{(observation_space, action_space)}. Set environment(observation_space=..., action_space=...)."
        )
    try:
        return config.build_env_to_module_connector(spaces={"__env_single__": (observation_space, action_space)})
    except Exception as error:
        raise ValueError(
            f"Without an environment, the connectors of env_runners(env_to_module_connector=...) cannot be created: "
            f"{error!r}. Set environment(...) to the data's environment, or let your function create the connectors "
            "from its argument `spaces`, without `env`."
        ) from error


def spaces_without_env(config: AlgorithmConfig) -> tuple[gym.Space, gym.Space]:
    """Returns the module's ``(observation space, action space)`` in a run that trains without sampling an environment.
    The spaces come from the config's env-to-module connectors, which `pipeline_without_env` builds.

    Raises:
        ValueError: See `pipeline_without_env`.
    """
    pipeline = pipeline_without_env(config)
    return pipeline.observation_space, pipeline.action_space


def inputs_of(config: AlgorithmConfig, space: gym.Space) -> PipelineInputs:
    """Returns an object that converts observations to module inputs with the config's env-to-module connectors; the
    connectors are created at the first use.

    Args:
        config: Names the connectors, and the environment or its spaces.
        space: Space of the module's observations.
    """
    return PipelineInputs(space, functools.partial(pipeline_without_env, config))


def check_connectors_of(data: Dataset, config: AlgorithmConfig, inputs: PipelineInputs | None) -> None:
    """Raises BadDataError if recorded module inputs were made by other env-to-module connectors than the config's.

    Without an environment the config's spaces are those of the data, whatever made it.

    Raises:
        BadDataError: Names the file and the connectors.
    """
    if config.env is None or inputs is None:
        return
    seen: list[Any] = []
    for _, reader in data.readers:
        recorded = reader.info.more.get(CONNECTORS)
        if recorded is None or recorded in seen:
            continue
        seen.append(recorded)
        here = described_connectors(inputs.pipeline) if config._env_to_module_connector is not None else NO_CONNECTORS
        if statistics := recorded.get("statistics"):
            if config.is_online and recorded == here:
                notice_once(
                    f"{reader.path} and files like it have observations that {statistics} normalised with the "
                    "statistics of the recording run; this run starts with new statistics."
                )
                continue
            raise BadDataError(
                f"The recorded observations were normalised by the connectors {statistics}, whose statistics are not "
                "in the data. Record without these connectors and set offline_data(normalize_observations=True), or "
                "train without an environment: environment(observation_space=..., action_space=...).",
                path=reader.path,
            )
        if recorded != here:
            raise BadDataError(
                f"The recorded observations were made by the env-to-module connectors {recorded['names']}, but the "
                f"config has {here['names']}. Set env_runners(env_to_module_connector=...) as in the recording run.",
                path=reader.path,
            )
