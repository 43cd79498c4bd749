"""Base class of environments that change the observations of another environment."""

from __future__ import annotations

import abc
from typing import Any

import gymnasium as gym


class OtherObservations(gym.Env, abc.ABC):
    """Mixin that changes an environment's observations: `reset` and `step` return ``_shown(obs)`` in place of ``obs``.

    Subclasses define `_shown`. List the mixin before the environment among the base classes.
    """

    @abc.abstractmethod
    def _shown(self, obs: Any) -> Any:
        """Converts an observation of the environment to the observation that the agent gets."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        obs, info = super().reset(seed=seed, options=options)
        return self._shown(obs), info

    def step(self, action: Any):
        obs, *rest = super().step(action)
        return self._shown(obs), *rest
