"""Config and stop criteria from options and experiment files."""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import pathlib
import re
import runpy
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxrl_stack.cli.common import CliError, json_object, wrong_input
from jaxrl_stack.runs.stop import StopCriteria

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.algorithms.games import LoadedPlayer

_FILE_KEYS = {"algo": str, "env": str, "config": dict, "stop": dict}


def experiment(
    arguments: argparse.Namespace, set_output: Callable[[AlgorithmConfig], object] = lambda config: None
) -> tuple[AlgorithmConfig, StopCriteria, str]:
    """Reads the experiment from the options: config, stop criteria, and a sentence about where the settings come from.

    Args:
        arguments: The options.
        set_output: Function that sets the results directory and checkpoints of the config, before it is validated.

    Returns:
        The validated config, the stop criteria, and a sentence about where the settings come from.

    Raises:
        CliError: If an option, a setting or a file is invalid.
    """
    from jaxrl_stack.algorithms.result_names import known_result

    stop = None if arguments.stop is None else json_object("--stop", arguments.stop)
    plateau = None if arguments.plateau is None else json_object("--plateau", arguments.plateau)
    settings = None if arguments.config is None else json_object("--config", arguments.config)
    criteria_from = "--stop"
    arguments.algo = arguments.algo and in_any_case(arguments.algo)
    if arguments.config_file is None and arguments.restore is not None and arguments.algo is None:
        config = config_of_checkpoint(f"--restore {arguments.restore}", pathlib.Path(arguments.restore), arguments.env)
        origin = _change(config, arguments.env, settings, arguments.restore)
    elif arguments.config_file is None:
        config, origin = _config_of_options(arguments.algo, arguments.env, settings, "--config")
    else:
        path = pathlib.Path(arguments.config_file)
        config, origin, stop_of_file = _config_of_file(path, arguments, settings)
        if stop is None:
            stop, criteria_from = stop_of_file, f"stop in {path}"
    if arguments.assignments:
        _assign(config, arguments.assignments)
        origin = f"{origin} Changed: {', '.join(arguments.assignments)}."
    if arguments.seed is not None:
        with wrong_input("--seed"):
            config.debugging(seed=arguments.seed)
    if arguments.evaluation_interval is not None:
        config.evaluation(evaluation_interval=arguments.evaluation_interval)
    if config.env is None:
        raise CliError("--env is missing. Name an environment: --env gymnax/CartPole-v1 (`jaxrl list envs`).")
    set_output(config)
    with wrong_input():
        config.validate()
        criteria = StopCriteria(stop or {}, criteria_from, plateau=plateau)
        criteria.check_evaluation(config.evaluation_interval, "Add --evaluation-interval 10.")
        criteria.check_names(known_result(config))
    if arguments.num_iterations is not None:
        # Those of RUN@35 come after the 35.
        done = getattr(arguments, "forked_at", 0)
        criteria.add("training_iteration", done + arguments.num_iterations)
    return config, criteria, origin


def in_any_case(algo: str) -> str:
    """Returns the name of an algorithm with the correct upper and lower case, such as "PPO" for "ppo"; an unknown name
    does not change.
    """
    from jaxrl_stack.algorithms.registry import ALGORITHMS

    return next((name for name in ALGORITHMS if name.casefold() == algo.casefold()), algo)


def _assign(config: AlgorithmConfig, assignments: Sequence[str]) -> None:
    """Applies the options ``--set name=value`` to a config; ``--set name.inner=value`` changes one entry of a setting
    that is a dict.
    """
    from jaxrl_stack.algorithms.model_settings import given_settings
    from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig

    for assignment in assignments:
        name, sign, text = assignment.partition("=")
        if not (name and sign):
            raise CliError(f"--set {assignment!r}: must be name=value, such as --set lr=0.001.")
        setting, *inner = name.split(".")
        value = _parsed(text)
        with wrong_input(f"--set {assignment}"):
            if inner:
                present = config.stored_value(setting)
                if not isinstance(present, Mapping | DefaultModelConfig | None):
                    raise ValueError(
                        f"{setting!r} is {present!r}, which has no entry {inner[0]!r}. Set the whole setting: --set "
                        f"{setting}=VALUE"
                    )
                value = _with_entry(given_settings(present), inner, value)
            config.update_from_dict({setting: value})


_SPACE = re.compile(r"(uniform|loguniform|randint|lograndint)\((.*)\)")
"""Search spaces of Ray Tune in ``--set lr=loguniform(1e-5,1e-2)``."""


def swept(assignments: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Separates ``--set`` options that sweep a setting from the other options.

    Returns ``({setting: values or search space}, list of the other options)``. An option sweeps a setting if it has
    several values (``lr=1e-4,3e-4``) or a Ray Tune search space (``lr=loguniform(1e-5,1e-2)``).

    Entries of ``env_config`` get the names of `run_sweep`, such as ``env_config/gravity`` for ``env_config.gravity``.

    Raises:
        CliError: If an option lists values for an entry of another dict, or a search space does not have two bounds.
    """
    space, single = {}, []
    for assignment in assignments:
        name, _, text = assignment.partition("=")
        sampled = _SPACE.fullmatch(text.strip())
        if sampled is not None:
            space[name.replace("env_config.", "env_config/")] = _search_space(assignment, *sampled.groups())
            continue
        listed = _parsed(f"[{text}]")
        values = listed if isinstance(listed, list) else [_parsed(part) for part in text.split(",")]
        if len(values) < 2:
            single.append(assignment)
        elif name.startswith("env_config.") and name.count(".") == 1:
            space[name.replace(".", "/")] = values
        elif "." in name:
            setting = name.partition(".")[0]
            raise CliError(
                f"--set {assignment}: cannot list values for an entry of a dict. List whole dicts: "
                f"{setting}={{...}},{{...}}."
            )
        else:
            space[name] = values
    return space, single


def _search_space(assignment: str, kind: str, text: str) -> Any:
    """Converts the text of a Ray Tune search space, such as ``loguniform(1e-5,1e-2)``, to Ray Tune's object.

    Raises:
        CliError: If the search space does not have two bounds, the lower bound first.
    """
    from ray import tune

    ends = _parsed(f"[{text}]")
    numbers = ends if isinstance(ends, list) else []
    if len(numbers) != 2 or not all(isinstance(end, int | float) for end in numbers) or numbers[0] >= numbers[1]:
        raise CliError(f"--set {assignment}: must have two bounds, the lower one first: {kind}(1e-5,1e-2).")
    with wrong_input(f"--set {assignment}"):
        return getattr(tune, kind)(*numbers)


def _with_entry(settings: Mapping[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    name, *inner = path
    if inner:
        below = settings.get(name)
        value = _with_entry(below if isinstance(below, Mapping) else {}, inner, value)
    return {**settings, name: value}


def _parsed(text: str) -> Any:
    """Parses the value of a setting as JSON or as a Python literal; returns other input as text."""
    for parse in (json.loads, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError):
            return parse(text)
    return text


def _config_of_options(
    algo: str | None, env: str | None, settings: Mapping[str, Any] | None, settings_from: str
) -> tuple[AlgorithmConfig, str]:
    from jaxrl_stack.algorithms.registry import get_algorithm_config_class, tuned_evidence, tuned_settings

    if algo is None:
        raise CliError("--algo is missing. Name an algorithm: --algo PPO (`jaxrl list algorithms`).")
    with wrong_input("--algo"):
        config_class = get_algorithm_config_class(algo)
    config = config_class()
    if env is not None:
        config.environment(env)
    if settings is not None:
        with wrong_input(settings_from):
            config.update_from_dict(settings)
        return config, f"{algo}'s defaults with the settings of {settings_from}."
    known = tuned_settings(algo)
    if env is None or env not in known:
        return config, f"{algo}'s default settings (there are no tuned ones for this environment)."
    tuned = known[env]
    config.update_from_dict(tuned)
    shown = ", ".join(f"{name}={_shown(value)}" for name, value in tuned.items())
    evidence = tuned_evidence(algo)[env]
    return (
        config,
        f"tuned example settings {shown} ({evidence}; --config '{{}}' starts from {algo}'s defaults instead).",
    )


def _change(config: AlgorithmConfig, env: str | None, settings: Mapping[str, Any] | None, source: Any) -> str:
    """Applies command-line options to a config, and returns a text for the user that names the source of the settings.

    The config was read from a file or checkpoint. An example of the text is
    ``"settings of my_run.json and of --config."``.
    """
    if env is not None:
        config.environment(env)
    if settings:
        with wrong_input("--config"):
            config.update_from_dict(settings)
    return f"settings of {source}{' and of --config' if settings else ''}."


def config_of_checkpoint(option: str, path: pathlib.Path, env: str | None = None) -> AlgorithmConfig:
    """Reads the algorithm config in a checkpoint.

    Args:
        option: Option that named the checkpoint, for messages.
        path: The checkpoint.
        env: The user's environment. If it is the checkpoint's, its code is trusted.

    Raises:
        CliError: If there is no checkpoint, or it does not contain all settings.
    """
    from jaxrl_stack.algorithms.games import code_of_env
    from jaxrl_stack.algorithms.stored_run import stored_config
    from jaxrl_stack.checkpoints.checkpointable import opened
    from jaxrl_stack.utils.class_paths import ClassLoader

    by_file = "name the Python file that defines the run's `config`: --config-file PATH"
    try:
        with opened(path) as stored:
            config, missing = stored_config(stored, ClassLoader(code_of_env(env)), {})
    except (OSError, ValueError) as error:
        raise CliError(
            f"{option}: {error} Pass the path that `jaxrl train` printed. If the environment is your own, add --env "
            f"module:Class. If settings contain your own code, {by_file}."
        ) from error
    if missing:
        raise CliError(
            f"{option}: the checkpoint lacks the settings {', '.join(missing)}: it cannot store their values, such as "
            f"functions. To supply them, {by_file}."
        )
    return config


def config_for_checkpoint(path: str, arguments: argparse.Namespace) -> AlgorithmConfig:
    """Returns the config with which to restore a checkpoint: from ``--config-file``, or the config in the
    checkpoint.
    """
    if arguments.config_file is not None:
        return python_experiment(pathlib.Path(arguments.config_file))[0]
    return config_of_checkpoint(f"CHECKPOINT {path}", pathlib.Path(path), arguments.env)


def load_checkpoint_player(path: str, arguments: argparse.Namespace) -> LoadedPlayer:
    """Loads the policy from a checkpoint of an algorithm or of a policy.

    Returns the policy and the algorithm's config; the config is None if it is unknown.

    Args:
        path: The checkpoint.
        arguments: ``config_file``, ``env`` and ``module``.

    Raises:
        CliError: If there is no checkpoint, it needs code that the options do not name, or several modules are trained.
    """
    from jaxrl_stack.algorithms.games import is_policy, load_player

    where = f"CHECKPOINT {path}"
    with wrong_input(where):
        has_config = not is_policy(path)
    needs_config = has_config or arguments.config_file is not None
    config = config_for_checkpoint(path, arguments) if needs_config else None
    with wrong_input():
        return load_player(where, path, config=config, module_id=arguments.module, choice="--module {}")


def _shown(value: Any) -> str:
    return value.__name__ if callable(value) else json.dumps(value)


def _config_of_file(
    path: pathlib.Path, arguments: argparse.Namespace, settings: Mapping[str, Any] | None
) -> tuple[AlgorithmConfig, str, dict[str, Any] | None]:
    option = f"--config-file {path}"
    if path.suffix == ".py":
        config, stop = python_experiment(path)
        if arguments.algo not in (None, algo_name(config)):
            raise CliError(f"--algo {arguments.algo}: {path} configures {algo_name(config)}. Leave --algo out.")
        return config, _change(config, arguments.env, settings, path), stop
    if path.suffix != ".json":
        raise CliError(f"{option}: must be a .py or a .json file.")
    content = json_object(option, _text(path, option), is_file=True)
    unknown = sorted(content.keys() - _FILE_KEYS.keys())
    if unknown:
        raise CliError(
            f'{option}: unknown key {unknown[0]!r}; keys are {", ".join(_FILE_KEYS)}. Put settings into "config": '
            f'{{"algo": "PPO", "env": "gymnax/CartPole-v1", "config": {{"lr": 0.0003}}}}.'
        )
    for key, value in content.items():
        if not isinstance(value, _FILE_KEYS[key]):
            what = "an object" if _FILE_KEYS[key] is dict else "a string"
            raise CliError(f"{option}: {key!r} must be {what}, not {value!r}.")
    merged = None
    if "config" in content or settings is not None:
        merged = {**content.get("config", {}), **(settings or {})}
    algo = arguments.algo or content.get("algo")
    config, origin = _config_of_options(
        algo and in_any_case(algo), arguments.env or content.get("env"), merged, str(path)
    )
    return config, origin, content.get("stop")


def _text(path: pathlib.Path, option: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise CliError(f"{option}: cannot be read ({error.strerror}). Name an existing file.") from error
    except UnicodeDecodeError as error:
        raise CliError(f"{option}: is not text in UTF-8 ({error.reason}). Name a .py or a .json file.") from error


def python_experiment(path: pathlib.Path, option: str | None = None) -> tuple[AlgorithmConfig, dict[str, Any] | None]:
    """Runs a user's Python file and returns the values of the file's variables `config` and `stop`.

    `stop` contains the stop criteria; None if the file does not define `stop`.

    Args:
        path: The file.
        option: Words of the command line that name the file, for messages. None for ``--config-file PATH``.

    Raises:
        CliError: If the file does not exist, fails, or defines something else.
    """
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig

    option = f"--config-file {path}" if option is None else option
    _text(path, option)
    # As `python path` would do it: imports beside the file work.
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        names = runpy.run_path(str(path), run_name="__jaxrl_train__")
    except Exception as error:
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
        line = f", line {lines[-1]}" if lines else ""
        raise CliError(f"{option}{line}: {type(error).__name__}: {error}") from error
    config, stop = names.get("config"), names.get("stop")
    if not isinstance(config, AlgorithmConfig) or config.algo_class is None:
        raise CliError(
            f"{option}: the file must define `config`, an algorithm's config such as PPOConfig().environment(...), but "
            f"`config` is {config!r}."
        )
    if stop is not None and not isinstance(stop, dict):
        raise CliError(
            f"{option}: the file's variable `stop` is {stop!r}, but must be a dict. Define stop = "
            "{'training_iteration': 100}."
        )
    return config.copy(copy_frozen=False), stop


def algo_name(config: AlgorithmConfig) -> str:
    """Name of the algorithm that a config builds."""
    return config.algo_class.__name__
