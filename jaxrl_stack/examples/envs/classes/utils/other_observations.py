"""Base of environments that replace the observations of another environment."""

from __future__ import annotations

import abc
from typing import Any

import gymnasium as gym


class OtherObservations(gym.Env, abc.ABC):
    """Mixin that passes an environment's observations through `_shown`. List it before the environment among the
    bases.
    """

    @abc.abstractmethod
    def _shown(self, obs: Any) -> Any:
        """Returns the observation that replaces the environment's."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        obs, info = super().reset(seed=seed, options=options)
        return self._shown(obs), info

    def step(self, action: Any):
        obs, *rest = super().step(action)
        return self._shown(obs), *rest
