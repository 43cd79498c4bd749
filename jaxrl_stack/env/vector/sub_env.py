"""How one environment of a vector is made; light to import, because every process of an async vector does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym

from jaxrl_stack.env.env_context import EnvContext


class SubEnvMaker:
    """Makes one `gymnasium.Env`; called without arguments, in this process or in the environment's own.

    Args:
        name: What to call the environment in messages.
        creator: Takes the context, returns the environment.
        context: Config and place of the environment.

    Raises:
        TypeError: What the creator returns is no `gymnasium.Env`.
    """

    def __init__(self, name: str, creator: Callable[[EnvContext], Any], context: EnvContext):
        self.name = name
        self.creator = creator
        self.context = context

    def __call__(self) -> gym.Env:
        try:
            env = self.creator(self.context)
        except Exception as error:
            error.add_note(f"While making environment({self.name!r}) with {self.context!r}.")
            raise
        if not isinstance(env, gym.Env):
            raise TypeError(
                f"environment({self.name!r}): its creator returned {env!r} for {self.context!r}, but a host "
                "environment has to be a gymnasium.Env, or, for all copies at once, a "
                "gymnasium.vector.VectorEnv."
            )
        return env


class RegisteredEnvCreator:
    """Makes the environment of a gymnasium id; holds all that gymnasium's registry says, so needs no registry.

    Args:
        spec: ``gymnasium.spec(id)``.
        disable_env_checker: Leave gymnasium's checks of every observation away.
    """

    def __init__(self, spec: Any, disable_env_checker: bool):
        self.spec = spec
        self.disable_env_checker = disable_env_checker

    def __call__(self, context: EnvContext) -> gym.Env:
        return gym.make(self.spec, **{"disable_env_checker": self.disable_env_checker, **context})
