"""``register_env`` at the path where scripts expect it. Does not import Ray."""

from __future__ import annotations

import sys

from jaxrl_stack.env import registry
from jaxrl_stack.env.registry import EnvCreator

__all__ = ["register_env"]


def register_env(name: str, env_creator: EnvCreator) -> None:
    """Makes `name` usable as ``config.environment(name)``; see `jaxrl_stack.env.registry.register_env`.

    Where Ray Tune is used, the name is known in every process of the cluster.
    """
    registry.register_env(name, env_creator)
    if "ray.tune" in sys.modules:
        share_env(name)


def share_env(name: object) -> None:
    """Let Ray carry the creator that is registered as `name`, if there is one, to its other processes."""
    creator = registry.get_env_creator(name) if isinstance(name, str) else None
    if creator is not None:
        from ray.tune import register_env

        register_env(str(name), creator)
