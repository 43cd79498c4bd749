"""``jaxrl evaluate``: restores an algorithm and runs episodes with it."""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxrl_stack.cli.common import CliError, reading_options, wrong_input
from jaxrl_stack.cli.experiment import config_for_checkpoint, load_checkpoint_player

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm import Algorithm
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig


def run(arguments: argparse.Namespace) -> int:
    """Evaluates the policy of a checkpoint according to the options, and prints the results as a table or JSON.

    Raises:
        CliError: If there is no checkpoint, or an option does not fit it.
    """
    from jaxrl_stack.runs.writers import as_json

    path = pathlib.Path(arguments.checkpoint)
    _check_options(arguments)
    if arguments.data:
        return _estimate(arguments)
    config = config_for_checkpoint(arguments.checkpoint, arguments)
    if arguments.episodes is not None:
        config.evaluation(evaluation_duration=arguments.episodes, evaluation_duration_unit="episodes")
    options = (("explore", arguments.explore), ("seed", arguments.seed))
    changes = {name: value for name, value in options if value is not None}
    algo = restored_for_evaluation(path, config, arguments.env, changes)
    try:
        result = algo.evaluate()
    finally:
        algo.stop()
    if arguments.json:
        print(json.dumps(as_json(result), indent=2))
    else:
        _print_table(path, result["env_runners"])
    return 0


def _check_options(arguments: argparse.Namespace) -> None:
    """Raises CliError if options about environments are combined with recorded episodes (--data), or options about
    recorded episodes are used without --data.

    Raises:
        CliError: Names the option.
    """
    given = {name: getattr(arguments, name) for name in ("episodes", "env")}
    if not arguments.data:
        given = {name: getattr(arguments, name) for name in ("method", "gamma", "epsilon", "module")}
    for name, value in given.items():
        if value is not None:
            if arguments.data:
                raise CliError(
                    f"--{name} {value}: has no effect with --data, which reads recorded episodes. Leave --{name} out, "
                    "or leave --data out to evaluate in an environment."
                )
            raise CliError(f"--{name} {value}: applies only to recorded episodes. Leave it out, or add --data PATH.")


def _estimate(arguments: argparse.Namespace) -> int:
    """Prints the estimated value of a checkpoint's policy on recorded episodes."""
    from jaxrl_stack.checkpoints.plain_data import code_named_by
    from jaxrl_stack.core import DEFAULT_MODULE_ID
    from jaxrl_stack.policy.estimation import estimate
    from jaxrl_stack.policy.policy import has_connectors, module_of_checkpoint
    from jaxrl_stack.policy.recorded_actions import ActingBy
    from jaxrl_stack.runs.writers import as_json

    path, explore, epsilon = arguments.checkpoint, arguments.explore is not False, arguments.epsilon or 0.0
    with wrong_input(f"CHECKPOINT {path}"):
        acts = has_connectors(path)
    if acts:
        policy, config = load_checkpoint_player(path, arguments)
        assert policy is not None
        estimates = functools.partial(
            policy.estimate, arguments.data, arguments.method, explore=explore, epsilon_greedy=epsilon
        )
    else:
        config = config_for_checkpoint(path, arguments)
        with wrong_input(f"CHECKPOINT {path}"):
            code = code_named_by(config, config.algo_class)
            module = module_of_checkpoint(path, arguments.module or DEFAULT_MODULE_ID, allow=code)
        acting = ActingBy(explore, epsilon)
        estimates = functools.partial(estimate, module, arguments.data, methods=arguments.method, acting=acting)
    gamma = config.gamma if arguments.gamma is None and config is not None else arguments.gamma
    if gamma is not None:
        estimates = functools.partial(estimates, gamma=gamma)
    with wrong_input("--data"):
        found = estimates(seed=arguments.seed or 0, data_options=reading_options(arguments))
    print(json.dumps(as_json(found.as_json()), indent=2) if arguments.json else f"{path}\n{found}")
    return 0


def restored_for_evaluation(
    path: pathlib.Path, config: AlgorithmConfig, env: str | None, settings: Mapping[str, Any]
) -> Algorithm:
    """Restores the algorithm of a checkpoint for evaluation. Before that, writes the entries of `settings` to the
    ``evaluation_config`` of `config`; entries with other names do not change.

    Args:
        path: The checkpoint.
        config: Config to restore it with; changed in place.
        env: Another environment for evaluation; None for the config's.
        settings: Settings of evaluation.

    Raises:
        CliError: If there is no checkpoint, or an option does not fit it.
    """
    import jax

    from jaxrl_stack.algorithms.algorithm import Algorithm
    from jaxrl_stack.algorithms.games import is_same_env

    if settings:
        with wrong_input():
            _set_in_evaluation(config, **settings)
    with wrong_input(f"CHECKPOINT {path}"):
        algo = Algorithm.from_checkpoint(str(path), config=config)
    if env is None or is_same_env(algo.driver.evaluation.config.env, env):
        return algo
    try:
        has_state = bool(jax.tree.leaves(algo.driver.env_to_module_state()))
        weights = algo.get_weights()
    finally:
        algo.stop()
    if has_state:
        raise CliError(
            f"--env {env}: the checkpoint's connectors have state, such as running statistics, which fits only the "
            "environment of the training. Leave --env out to evaluate in the environment of the training."
        )
    return _moved(weights, config, env)


def _set_in_evaluation(config: AlgorithmConfig, **settings: Any) -> None:
    present = config.evaluation_config or {}
    if not isinstance(present, dict):
        present = {name: present.stored_value(name) for name in present.explicitly_set}
    config.evaluation(evaluation_config={**present, **settings})


def _moved(weights: dict[str, Any], config: AlgorithmConfig, env: str) -> Algorithm:
    """Creates an algorithm with the config and weights of another algorithm, but with a different environment.

    If the algorithm trains on recorded data, the environment is used for evaluation only.
    """
    evaluated = config.get_evaluation_config_object()
    config = config.copy(copy_frozen=False)
    if config.env is None or evaluated is None or not evaluated.is_same(config, "env"):
        _set_in_evaluation(config, env=env)
    if config.env is not None:
        config.environment(env)
    with wrong_input(f"--env {env}"):
        moved = config.build_algo()
        try:
            moved.set_weights(weights)
        except BaseException:
            moved.stop()
            raise
    return moved


def _print_table(path: pathlib.Path, values: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from jaxrl_stack.utils.metrics import EPISODE_MODULE_RETURN_MEAN

    table = Table("", "mean", "min", "max")
    for name, label in (("episode_return", "return"), ("episode_len", "length")):
        table.add_row(label, *(f"{values[f'{name}_{how}']:,.1f}" for how in ("mean", "min", "max")))
    for policy, mean in values.get(EPISODE_MODULE_RETURN_MEAN, {}).items():
        table.add_row(f"return of {policy}", f"{mean:,.1f}")
    print(f"{path}: {values['num_episodes']:,} episodes, {values['num_env_steps_sampled']:,} steps")
    Console().print(table)
