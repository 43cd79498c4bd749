"""Base class for adapters of environment suites. An adapter wraps one environment of a suite, created from an id."""

from __future__ import annotations

import abc
import difflib
import importlib.metadata
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box, Dict, Space

from jaxrl_stack.env.env_context import refuse_unknown
from jaxrl_stack.env.jax_env import AutoResetJaxEnv, StepOutcome


class SuiteEnv(AutoResetJaxEnv):
    """Base class of the environments of a suite. An environment is named "<prefix>/<id>".

    A subclass sets `prefix`, lists its `ids`, and defines `setup`, `reset_env` and `step_env`, which call the suite's
    functions without automatic resets.

    Args:
        env_id: One of `ids`.
        env_config: Settings of the environment, for `setup`.

    Attributes:
        prefix: Prefix before the slash.
        distribution: Name of the package on the package index; errors mention its version. By default the prefix.

    Raises:
        ValueError: Unknown id, with near matches; unknown setting. Errors of the suite's code are reraised with a note
            that names suite, version and id.
    """

    prefix: ClassVar[str]
    distribution: ClassVar[str | None] = None
    reset_is_cheap = False
    _casts_observations = True
    has_own_bounds = False

    def __init__(self, env_id: str, env_config: Mapping[str, Any] | None = None):
        known = list(self.ids())
        if env_id not in known:
            near = [f"{self.prefix}/{i}" for i in difflib.get_close_matches(env_id, known, n=3)]
            hint = f"Did you mean {' or '.join(map(repr, near))}? " if near else ""
            raise ValueError(
                f"{self.suite()} has no environment {env_id!r}. {hint}"
                f"`jaxrl list --envs {self.prefix}` prints all {len(known)} names."
            )
        self.env_id = env_id
        try:
            self.setup(env_id, dict(env_config or {}))
        except Exception as error:
            error.add_note(f"Raised while {self.source} was made.")
            raise

    @classmethod
    @abc.abstractmethod
    def ids(cls) -> Sequence[str]:
        """Returns the ids of all environments that the suite provides."""

    @abc.abstractmethod
    def setup(self, env_id: str, config: dict[str, Any]) -> None:
        """Creates the suite's environment, and sets `observation_space` and `action_space`.

        Args:
            env_id: One of `ids`.
            config: The user's ``env_config``. `refuse_unknown` serves for what is not known.
        """

    @property
    def name(self) -> str:
        return f"{self.prefix}/{self.env_id}"

    @property
    def source(self) -> str:
        return f"{self.name} ({self.suite()})"

    @classmethod
    def suite(cls) -> str:
        """Returns the name and version of the suite's package as text, for messages; only the name if the package is
        not installed.
        """
        name = cls.distribution or cls.prefix
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            return name

    def refuse_unknown(self, config: Mapping[str, Any], known: Sequence[str]) -> None:
        """Raises ValueError for a key of `config` that is not in `known`; the error suggests a similar known name."""
        refuse_unknown(self.name, config, known, f"Its settings: {', '.join(known) or 'none'}.")


def arguments_of(function: Callable[..., Any]) -> list[str]:
    """Returns the names of a function's arguments, without `self` and without arguments that cannot be passed by
    keyword.
    """
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [name for name, p in inspect.signature(function).parameters.items() if p.kind in kinds and name != "self"]


def masked_space(observations: Space, mask_shape: tuple[int, ...]) -> Dict:
    """Returns the space of observations with an action mask (1: legal): a Dict with RLlib's keys "observations" and
    "action_mask".

    Args:
        observations: Space of the observations without the mask.
        mask_shape: Shape of the mask, ``(n,)`` for ``Discrete(n)`` actions.
    """
    return Dict({"action_mask": Box(0.0, 1.0, mask_shape, np.float32), "observations": observations})


def as_image(array: Any) -> np.ndarray:
    """Converts an image ``[H, W, 3]`` with values from 0 to 255, a JAX or NumPy array of any dtype, to NumPy uint8."""
    return np.asarray(array).astype(np.uint8)


__all__ = ["StepOutcome", "SuiteEnv", "arguments_of", "as_image", "masked_space"]
