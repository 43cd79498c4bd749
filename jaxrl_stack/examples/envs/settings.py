"""Base class of JAX environments whose settings have names and default values."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from jaxrl_stack.env.jax_env import AutoResetJaxEnv


class ConfiguredEnv(AutoResetJaxEnv):
    """Base class of JAX environments whose settings have names and default values.

    Args:
        config: Values by name, as ``config.environment(Env, env_config={...})`` hands them over.
        **settings: The same as keywords: ``Env(length=3)``. They win over `config`.

    Raises:
        ValueError: A name that the environment does not have.
    """

    #: ``{name: default}`` of every setting; the values are attributes of an instance.
    defaults: dict[str, Any] = {}

    def __init__(self, config: Mapping[str, Any] | None = None, **settings: Any):
        super().__init__()
        settings = {**(config or {}), **settings}
        for name, value in settings.items():
            if name not in self.defaults:
                near = difflib.get_close_matches(name, self.defaults, n=1)
                raise ValueError(
                    f"{type(self).__name__} has no setting {name!r} (given: {value!r}). "
                    + (f"Did you mean {near[0]!r}? " if near else "")
                    + f"It has: {', '.join(self.defaults) or 'none'}."
                )
        self.settings = {**self.defaults, **settings}

    def _require(self, name: str, holds: bool, what: str) -> None:
        if not holds:
            raise ValueError(f"{type(self).__name__}({name}={self.settings[name]!r}): must be {what}.")
