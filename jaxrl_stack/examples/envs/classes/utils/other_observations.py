"""Base class of environments that change the observations of another environment."""

from __future__ import annotations

import abc
from typing import Any

import gymnasium as gym


class OtherObservations(gym.Env, abc.ABC):
    """Mixin that replaces an environment's observations by the result of `_shown`. List it before the environment among
    the base classes.
    """

    @abc.abstractmethod
    def _shown(self, obs: Any) -> Any:
        """Returns the observation that replaces the environment's observation."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        obs, info = super().reset(seed=seed, options=options)
        return self._shown(obs), info

    def step(self, action: Any):
        obs, *rest = super().step(action)
        return self._shown(obs), *rest
