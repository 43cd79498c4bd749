"""Errors for methods, attributes and arguments of RLlib's old API stack and of other packages; the errors name the
replacements.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

_USE_MODULE = "Use algorithm.get_policy(module_id) to act, or algorithm.get_module(module_id) for the network."
_USE_CHECKPOINTS = "Use algorithm.save_to_path(path) and Algorithm.from_checkpoint(path)."
_CHANGE = (
    "Use algorithm.change_settings(lr=...) while it trains, or algorithm.reset(config) to start from the beginning."
)
OLD_MEMBERS = {
    "policy_map": _USE_MODULE,
    "add_policy": "Use algorithm.add_module(module_id, module_spec).",
    "remove_policy": "Use algorithm.remove_module(module_id).",
    "workers": "Use algorithm.env_runner_group.",
    "evaluation_workers": "Use algorithm.eval_env_runner_group.",
    "restore_workers": "Lost actors are restarted with fault_tolerance(restart_failed_env_runners=True).",
    "export_policy_model": _USE_CHECKPOINTS,
    "export_policy_checkpoint": _USE_CHECKPOINTS,
    "import_policy_model_from_h5": _USE_CHECKPOINTS,
    "from_state": _USE_CHECKPOINTS,
    "reset_config": _CHANGE,
    "update_config": _CHANGE,
}
"""Members of RLlib's old API stack, and what to use instead."""

_LOAD = "algorithm.save_to_path(path) writes a checkpoint, and Algorithm.from_checkpoint(path) loads it."
_ENV = "An algorithm creates its environments. Set them before build_algo(): config.environment(env)."
_ACT = (
    "The greedy action for one observation is algorithm.compute_single_action(obs, explore=False); for batches and "
    "recurrent states use algorithm.get_policy()."
)
_SEED = "Set it before build_algo(): config.debugging(seed=...)."
FOREIGN_MEMBERS = {
    "predict": _ACT,
    "act": _ACT,
    "compute_action": _ACT,
    "load": _LOAD,
    "get_env": _ENV,
    "set_env": _ENV,
    "env": _ENV,
    "set_random_seed": _SEED,
    "seed": _SEED,
    "policy": "Use algorithm.get_policy() to act, or algorithm.get_module() for the network.",
    "model": "Use algorithm.get_module() for the network.",
    "get_parameters": "Use algorithm.get_weights().",
    "set_parameters": "Use algorithm.set_weights(weights).",
    "learning_rate": _CHANGE,
    "lr_schedule": _CHANGE,
    "set_logger": "Set it before build_algo(): config.reporting(results_dir=..., loggers=...).",
    "logger": "algorithm.metrics.log_value(name, value) adds a number to the next result.",
    "num_timesteps": "Use algorithm.num_env_steps_sampled_lifetime.",
    "evaluate_policy": "Use algorithm.evaluate().",
}
"""Members of other packages' algorithms, and what to use here."""


class AnsweringClass(abc.ABCMeta):
    """Metaclass of `Algorithm`. If a script uses a class method that only other packages have, such as
    ``PPO.load(path)``, raises an AttributeError that names the replacement.
    """

    if not TYPE_CHECKING:

        def __getattr__(cls, name: str) -> Any:
            if name in FOREIGN_MEMBERS:
                raise AttributeError(f"{cls.__name__} has no {name}. {FOREIGN_MEMBERS[name]}")
            raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")


_OTHER_ARGUMENTS = {
    "total_timesteps": "learn({{'num_env_steps_sampled_lifetime': {value!r}}})",
    "callback": "config.callbacks(on_train_result=...) before build_algo()",
    "n_eval_episodes": "config.evaluation(evaluation_duration={value!r}) before build_algo()",
    "num_episodes": "config.evaluation(evaluation_duration={value!r}) before build_algo()",
    "deterministic": "compute_single_action(obs, explore={opposite!r})",
}
"""Argument of other packages' methods -> what to write."""


def unknown_arguments(algorithm: Any, method: str, arguments: Mapping[str, Any], *, takes: str) -> TypeError:
    """Creates the error for a call of an algorithm's method with arguments that the method does not have.

    Args:
        algorithm: The algorithm.
        method: Name of the method.
        arguments: The unknown ones by name.
        takes: Arguments of the method, for the message.
    """
    known = [name for name in arguments if name in _OTHER_ARGUMENTS]
    name = known[0] if known else next(iter(arguments))
    call = f"{type(algorithm).__name__}.{method}()"
    if not known:
        return TypeError(f"{call} got an unexpected keyword argument {name!r}; it takes {takes}.")
    value = arguments[name]
    return TypeError(f"{call} has no {name}: write {_OTHER_ARGUMENTS[name].format(value=value, opposite=not value)}.")


def train_takes_nothing(algorithm: Any, given: Sequence[Any], named: Mapping[str, Any]) -> TypeError:
    """Creates the error for a call of `Algorithm.train` with arguments.

    Args:
        algorithm: The algorithm.
        given: Positional arguments.
        named: Keyword arguments.
    """
    if any(name in _OTHER_ARGUMENTS for name in named):
        return unknown_arguments(algorithm, "train", named, takes="nothing")
    arguments = ", ".join([*map(repr, given), *(f"{name}={value!r}" for name, value in named.items())])
    number = next((value for value in (*given, *named.values()) if isinstance(value, int)), "number")
    return TypeError(
        f"{type(algorithm).__name__}.train({arguments}): train() runs one iteration and takes no arguments; "
        f"algo.learn({number}) runs {number} iterations, as a loop around algo.train() does."
    )
