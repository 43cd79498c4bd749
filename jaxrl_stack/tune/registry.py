"""``register_env`` and ``get_trainable_cls`` at the path where scripts expect them. Does not import Ray."""

from __future__ import annotations

import sys
from typing import Any

from jaxrl_stack.algorithms.registry import ALGORITHMS, get_algorithm_class
from jaxrl_stack.env import registry
from jaxrl_stack.env.registry import EnvCreator

__all__ = ["get_trainable_cls", "register_env"]


def register_env(name: str, env_creator: EnvCreator) -> None:
    """Makes `name` usable as ``config.environment(name)``; see `jaxrl_stack.env.registry.register_env`.

    Where Ray Tune is used, the name is known in every process of the cluster.
    """
    registry.register_env(name, env_creator)
    if "ray.tune" in sys.modules:
        share_env(name)


def get_trainable_cls(trainable_name: str) -> Any:
    """The Algorithm class of a name: ``get_trainable_cls("PPO").get_default_config()``.

    Args:
        trainable_name: An algorithm's name, or one that ``ray.tune.register_trainable`` knows.

    Returns:
        The Algorithm class; for a name that only Ray Tune knows, what is registered there.

    Raises:
        ValueError: There is no algorithm of that name, and nothing is registered with Ray Tune in this process.
    """
    ray_tune = sys.modules.get("ray.tune.registry")
    if trainable_name not in ALGORITHMS and ray_tune is not None and ray_tune._has_trainable(trainable_name):
        return ray_tune.get_trainable_cls(trainable_name)
    return get_algorithm_class(trainable_name)


def share_env(name: object) -> None:
    """Let Ray carry the creator that is registered as `name`, if there is one, to its other processes."""
    creator = registry.get_env_creator(name) if isinstance(name, str) else None
    if creator is not None:
        from ray.tune import register_env

        register_env(str(name), creator)
