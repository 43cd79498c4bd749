"""Base class of the schedule functions."""

from __future__ import annotations

import abc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def array_module(t: Any) -> Any:
    """`jax.numpy` for JAX arrays (traced ones too), else `numpy`: host schedules never start the backend."""
    return jnp if isinstance(t, jax.Array) else np


class Schedule(abc.ABC):
    """A function of the timestep. Call it, or its `value` method, with an int or an integer array."""

    def __init__(self, framework: str | None = None):
        """Args:
        framework: None or "jax"; exists so that code written for RLlib runs.

        Raises:
            ValueError: If `framework` is something else.
        """
        if framework not in (None, "jax"):
            raise ValueError(
                f"framework={framework!r} is not supported by schedules. Leave it out or use 'jax'."
            )
        self.framework = framework

    def value(self, t: Any) -> Any:
        """The schedule's value at timestep `t`; broadcasts to the shape of `t`."""
        return self._value(t)

    def __call__(self, t: Any) -> Any:
        return self.value(t)

    @abc.abstractmethod
    def _value(self, t: Any) -> Any:
        """Override this: the value at timestep `t`."""
