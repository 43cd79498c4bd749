"""``register_env`` and ``get_trainable_cls`` under the import path of Ray Tune. Importing this module does not import
Ray.
"""

from __future__ import annotations

import sys
from typing import Any

from jaxrl_stack.algorithms.registry import ALGORITHMS, get_algorithm_class
from jaxrl_stack.env import registry
from jaxrl_stack.env.registry import EnvCreator

__all__ = ["get_trainable_cls", "register_env"]


def register_env(name: str, env_creator: EnvCreator) -> None:
    """Makes `name` usable as ``config.environment(name)``; see `jaxrl_stack.env.registry.register_env`.

    With Ray Tune, every process of the cluster knows the name.
    """
    registry.register_env(name, env_creator)
    if "ray.tune" in sys.modules:
        share_env(name)


def get_trainable_cls(trainable_name: str) -> Any:
    """Algorithm class registered under a name: ``get_trainable_cls("PPO").get_default_config()``.

    Args:
        trainable_name: Name of an algorithm, or a name that was registered with ``ray.tune.register_trainable``.

    Returns:
        The Algorithm class; for a name that only Ray Tune knows, the registered class.

    Raises:
        ValueError: If neither an algorithm nor, in this process, Ray Tune has that name.
    """
    ray_tune = sys.modules.get("ray.tune.registry")
    if trainable_name not in ALGORITHMS and ray_tune is not None and ray_tune._has_trainable(trainable_name):
        return ray_tune.get_trainable_cls(trainable_name)
    return get_algorithm_class(trainable_name)


def share_env(name: object) -> None:
    """Shares the environment creator registered as `name` with all processes of Ray; ignores unknown names."""
    creator = registry.get_env_creator(name) if isinstance(name, str) else None
    if creator is not None:
        from ray.tune import register_env

        register_env(str(name), creator)
