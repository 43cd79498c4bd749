"""``jaxrl record``: runs episodes with a checkpoint's policy, and records every step to files."""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jaxrl_stack.cli.common import wrong_input
from jaxrl_stack.cli.evaluate import restored_for_evaluation
from jaxrl_stack.cli.experiment import config_for_checkpoint

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig

_NUM_ENVS = 16


def run(arguments: argparse.Namespace) -> int:
    """Runs evaluation episodes of a checkpoint's policy according to the options, records every step to files, and
    prints the mean return.

    Raises:
        CliError: If there is no checkpoint, or an option does not fit it.
    """
    config = config_for_checkpoint(arguments.checkpoint, arguments)
    settings = _settings(config, arguments)
    config.offline_data(output=None)
    config.evaluation(evaluation_duration=arguments.episodes, evaluation_duration_unit="episodes")
    path = pathlib.Path(arguments.checkpoint)
    algo = restored_for_evaluation(path, config, arguments.env, settings)
    try:
        found = algo.evaluate()["env_runners"]
    finally:
        # Writes what is left.
        with wrong_input(f"--out {arguments.out}"):
            algo.stop()
    print(f"{path}: {found['num_episodes']:,} episodes, {found['num_env_steps_sampled']:,} steps")
    print(f"Mean return: {found['episode_return_mean']:,.1f}")
    print(f"Data: {arguments.out}")
    return 0


def _settings(config: AlgorithmConfig, arguments: argparse.Namespace) -> dict[str, Any]:
    """Converts the options to evaluation settings: exploration, number of environments, seed, and output of the
    recorded steps.
    """
    settings = {
        "explore": arguments.explore or arguments.epsilon > 0.0,
        "num_envs_per_env_runner": arguments.num_envs or min(_NUM_ENVS, arguments.episodes),
        "output": arguments.out,
        "output_format": arguments.format,
        "output_write_infos": arguments.infos,
    }
    if arguments.seed is not None:
        settings["seed"] = arguments.seed
    if arguments.epsilon:
        settings["module_to_env_connector"] = _with_random_actions(config, arguments.epsilon)
    return settings


def _with_random_actions(config: AlgorithmConfig, epsilon: float) -> Callable[[Any, Any], list[Any]]:
    """Returns a function that creates module-to-env connectors: the config's connectors, then a connector that samples
    random actions.
    """
    from jaxrl_stack.connectors.module_to_env import RandomActions

    given = config.get_evaluation_config_object() or config

    def connectors(env: Any, spaces: Any) -> list[Any]:
        own = given.user_connectors("module_to_env_connector", (env, spaces))
        return [*own, RandomActions(epsilon=epsilon, normalize_actions=given.normalize_actions)]

    return connectors
