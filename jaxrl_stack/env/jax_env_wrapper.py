"""Base class of wrappers of JAX environments."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from jaxrl_stack.env.jax_env import AutoResetJaxEnv, JaxEnv

EnvT = TypeVar("EnvT", bound=JaxEnv)


class JaxEnvWrapper(AutoResetJaxEnv, Generic[EnvT]):
    """Base class of wrappers of JAX environments: takes parameters, name and frame rate from the wrapped environment.
    Subclasses set spaces and dynamics.

    Args:
        env: The wrapped environment.

    Attributes:
        unwrapped: The wrapped environment.
    """

    def __init__(self, env: EnvT):
        super().__init__()
        self.unwrapped = env
        self.reset_is_cheap = getattr(env, "reset_is_cheap", True)

    @property
    def params(self) -> Any:
        return self.unwrapped.params

    @property
    def name(self) -> str:
        return self.unwrapped.name

    @property
    def source(self) -> str:
        return self.unwrapped.source

    @property
    def everybody_acts(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.unwrapped.everybody_acts

    @property
    def render_fps(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.unwrapped.render_fps
