"""Registers the algorithms of `jaxrl_stack` with Ray Tune by name. The two packages may be imported in any order."""

from __future__ import annotations

import functools
import sys
import warnings
from typing import Any

from jaxrl_stack.algorithms.registry import ALGORITHMS
from jaxrl_stack.tune.import_hook import AfterImport
from jaxrl_stack.tune.trainables import is_algorithm_class, trainable

_CONFIG_MODULE = "jaxrl_stack.algorithms.algorithm_config"


def install() -> None:
    """Registers the algorithms with Ray Tune: now if ``ray.tune`` is imported already, otherwise when it is imported.
    The import of this package calls this function.
    """
    if not any(isinstance(finder, AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, AfterImport({"ray.tune": _connect, _CONFIG_MODULE: _accept_configs}))
        if "ray.tune" in sys.modules:
            _connect()


def register() -> None:
    """Registers every algorithm with Ray Tune, so that ``tune.Tuner("PPO", ...)`` trains this package's algorithm.

    Importing ``ray.tune`` calls it. Call it again to reclaim the names from a package that registered them afterwards,
    such as RLlib. It imports ``ray.tune``.
    """
    from ray.tune import register_trainable

    for name in ALGORITHMS:
        register_trainable(name, trainable(name))


def _connect() -> None:
    try:
        if not _is_in_worker():
            register()
        _resolve_own_names_first(sys.modules["ray.tune.registry"])
        _take_over_environments(sys.modules["ray.tune.registry"])
        _accept_classes()
        _accept_configs()
    except (ImportError, AttributeError, KeyError) as error:
        # A script that imports ray.tune may have nothing to do with this package.
        warnings.warn(
            f"jaxrl_stack cannot connect to this version of Ray Tune ({error!r}). Pass the trainable and a dict: "
            f"tune.Tuner(jaxrl_stack.tune.trainable('PPO'), param_space=config.to_dict()).",
            RuntimeWarning,
            stacklevel=2,
        )


def _is_in_worker() -> bool:
    """Whether this is a worker process of Ray.

    Workers do not register the algorithms when they import ``ray.tune``, because they use the names that are registered
    in the process that started the run.
    """
    import ray

    return ray.is_initialized() and ray.get_runtime_context().worker.mode == ray.WORKER_MODE


def _resolve_own_names_first(registry: Any) -> None:
    """Makes Ray Tune resolve unregistered names such as "PPO" to this package's algorithms instead of RLlib's.

    Registrations end with ``ray.shutdown()``, and workers have none before their driver's registrations arrive.
    """
    validate = registry.validate_trainable

    @functools.wraps(validate)
    def validate_trainable(trainable_name: str) -> None:
        if registry._has_trainable(trainable_name):
            return validate(trainable_name)
        if trainable_name in ALGORITHMS:
            register()
            return validate(trainable_name)
        try:
            return validate(trainable_name)
        finally:
            # To find a name of its own, RLlib has registered all of them.
            register()

    registry.validate_trainable = validate_trainable


def _take_over_environments(registry: Any) -> None:
    """Makes ``ray.tune.register_env`` replace an environment that this package registered under the same name."""
    register = registry._global_registry.register

    @functools.wraps(register)
    def register_here_too(category: str, key: str, value: Any) -> None:
        register(category, key, value)
        # Not imported for it: then there is nothing to replace, and the name is found with Ray.
        environments = sys.modules.get("jaxrl_stack.env.registry")
        if category == registry.ENV_CREATOR and environments is not None:
            environments.note_env(key, value, replaces=True)

    registry._global_registry.register = register_here_too


def _accept_classes() -> None:
    """Makes ``tune.Tuner(PPO)`` and ``tune.run(PPO)`` accept Algorithm classes, which are not Trainables."""
    from ray.tune import Experiment

    register_if_needed = Experiment.register_if_needed

    @functools.wraps(register_if_needed)
    def register_algorithms_too(run_object: Any) -> Any:
        return register_if_needed(trainable(run_object) if is_algorithm_class(run_object) else run_object)

    Experiment.register_if_needed = staticmethod(register_algorithms_too)


def _accept_configs() -> None:
    """Makes ``tune.Tuner(param_space=...)`` accept an AlgorithmConfig. Does nothing if ``ray.tune`` or the module of
    AlgorithmConfig is not imported yet.
    """
    if "ray.tune" in sys.modules and _CONFIG_MODULE in sys.modules:
        from ray.tune.tune import _Config

        _Config.register(sys.modules[_CONFIG_MODULE].AlgorithmConfig)
