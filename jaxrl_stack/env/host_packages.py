"""Import of packages that provide the environments of gymnasium ids. If a package is missing, the error says how to
install the package.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator

from jaxrl_stack.utils.optional_packages import optional_import

REGISTERED_BY = {"ALE/": "ale_py", "BabyAI-": "minigrid", "MiniGrid-": "minigrid", "dm_control/": "shimmy"}
"""How ids begin -> the module whose import registers them with gymnasium."""
INSTALLED_BY = {
    "Box2D": "gymnasium[box2d]",
    "ale_py": "jaxrl-stack[atari]",
    "dm_control": "shimmy[dm-control]",
    "envpool": "jaxrl-stack[envpool]",
    "minigrid": "minigrid",
    "mujoco": "gymnasium[mujoco]",
    "pygame": "gymnasium[classic-control]",
    "shimmy": "shimmy[dm-control]",
}
"""Module -> what ``pip install`` gets."""


def import_package(name: str, module: str) -> Any:
    """Imports the module that an environment needs; the error names the command that installs it.

    Raises:
        ImportError: The package is not installed; the message says how to install it.
    """
    return optional_import(module, purpose=f"environment({name!r})", install=INSTALLED_BY[module])


def register_ids_of(name: str) -> None:
    """Imports the package that registers the gymnasium id `name`, if `REGISTERED_BY` has a package for the beginning of
    this id, such as "ALE/". Otherwise, does nothing.

    Raises:
        ImportError: The package is not installed; the message says how to install it.
    """
    module = next((module for start, module in REGISTERED_BY.items() if name.startswith(start)), None)
    if module is not None:
        gym.register_envs(import_package(name, module))


def import_entry_point(spec: Any) -> None:
    """Imports the entry point (class or function) that creates the environment of a gymnasium id. A missing package
    then raises an error before any actor starts.

    Raises:
        ImportError: A package is missing; one sentence that says how to install it.
    """
    if not isinstance(spec.entry_point, str):
        return
    try:
        load_env_creator(spec.entry_point)
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, ModuleNotFoundError):
            cause = cause.__cause__ or cause.__context__
        if cause is None or not cause.name:
            error.add_note(f"Raised while what makes environment({spec.id!r}) was imported.")
            raise
        # What else these packages say of it has other remedies.
        raise ImportError(_needs(spec.id, cause, cause.name.partition(".")[0])) from None


def render_modes(spec: Any) -> Sequence[str]:
    """Returns the render modes that the environment of a gymnasium id declares."""
    maker = load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
    return getattr(maker, "metadata", {}).get("render_modes", ())


def _needs(name: str, cause: BaseException, module: str) -> str:
    remedy = f"pip install '{INSTALLED_BY[module]}'" if module in INSTALLED_BY else "install the package that brings it"
    return f"environment({name!r}) needs {module} ({cause}): {remedy}."
